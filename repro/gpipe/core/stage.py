"""F, R and B of one micro-batch on one stage of a rank, and what is kept between them.

With re-materialization F keeps only the boundary inputs, R runs the layers again with a graph, and
B differentiates (section 2.3 of arXiv:1811.06965v5). F and R must do the same.

The passes of the first step with inputs of one form are watched: whether the layers write to the
stage's inputs, which buffers change, which generators they draw from, what requires a gradient, and
whether R does what F did. Later passes trust that, except for one micro-batch of each step, whose R
is compared with its F. If a later pass behaves differently, the step is refused; the next step then
allows it if it can. Watched passes also see how gradients lie in memory. Later passes trust that
only in front of layers for which it cannot change, see `_is_plain`.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import Forms, Message, copied, settle_gradients
from repro.gpipe.core.layers import is_compiled, modules_of, more_than_a_sequence, parameters_of
from repro.gpipe.core.loss_check import state_preserved
from repro.gpipe.core.microbatch import Tree, flatten, refuse_unplain, unflatten
from repro.gpipe.core.ownership import refuse_foreign_leaves
from repro.gpipe.errors import is_refusal
from repro.gpipe.exact import rng
from repro.gpipe.exact.attributes import LeftBehind, checksums
from repro.gpipe.exact.batchnorm import NO_STATISTICS, NORMS
from repro.gpipe.exact.buffers import Changing, Snapshot, as_before, copies
from repro.gpipe.exact.grad_mode import OperatorLog
from repro.gpipe.schedule.actions import Cell

_log = logging.getLogger(__name__)

Loss = Callable[[int, Tree], Tensor]  # (micro-batch, outputs) -> its share of the mini-batch loss
_Calls = Sequence[tuple[int, Callable[[Tree], Tree]]]  # index and layer
# For each layer, which tensors of its output require a gradient.
_Requiring = list[list[bool]]

# Part of torch's message about a layer that writes to the stage's inputs.
_WRITES_TO_LEAF = "leaf Variable that requires grad"
_MOST_FORMS = 2**10  # of inputs that are remembered; a sequence's length may differ in every step
_MOST_LOSSES = 8  # modules that are remembered; one may be made anew for every step
_RUNS_AGAIN = "the next steps allow for it, so train_step can be called again"
_OVERWRITES = (
    "a layer wrote to its stage's inputs in place, which none did when such inputs came first; "
    + _RUNS_AGAIN
)

_NOT_THE_SAME = "not the same when a micro-batch is recomputed"
_MOVES_AGAIN = (
    "a layer or the loss holds state that re-materialization moves again; keep it in a buffer "
    "(register_buffer) or a plain number, draw from torch's default generator, or build the "
    "Pipeline with checkpoint='never'"
)


@dataclass
class _Known:
    """What watched passes have shown of a stage with inputs of one form."""

    call: int  # of the engine, a step or an evaluation: all its passes are watched
    # Whether F gives the same bits without a graph; None before it was tried. Which kernels torch
    # chooses depends on what requires a gradient inside.
    without_graph: bool | None = None
    requiring: _Requiring = field(default_factory=list)
    # Places between layers, and whether their gradients come in the layout of a boundary.
    settled: dict[Hashable, bool] = field(default_factory=dict)


@dataclass
class _Saved:
    """What a stage keeps of a micro-batch between F and B."""

    inputs: Message
    known: _Known
    watched: bool
    seeds: Sequence[int]  # of each layer, and of the loss
    leaves: list[Tensor] = field(default_factory=list)  # the last pass's, where its graph ends
    outputs: list[Tensor] | None = None  # with their graph, once F or R has built one
    requiring: _Requiring = field(default_factory=list)  # in F; without a graph as when watched
    buffers: Snapshot = field(default_factory=list)  # those that F changes, as they were before
    had_graph: bool = True  # in F
    left: LeftBehind | None = None  # of a watched F, to compare R with
    sums: list[Tensor] = field(default_factory=list)  # of outputs, of one F in each later step


class HeldStages:
    """The stages that one rank holds, on one device: usually one.

    What belongs to a whole step, such as random generators and buffers, is shared.

    Attributes:
        stages: for each of them its layers' indices in the whole model, in order.
        indices: those of all these layers.
        names: keys of all these layers in the unsplit model's state dict.
        module: all these layers; users may put another layer in the place of one.
        first: number of this replica's first micro-batch, counted over all replicas.
        whole: whether each micro-batch is the whole mini-batch of all replicas.
        loss: follows the last of these stages if it is the model's last.
        loss_module: the loss if it is a module that may hold state. That must move in the order of
            the micro-batches, so F computes such a loss too.
        sampled: the micro-batch of this step whose R is compared with its F.
        problem: why the step must not count, or empty.
    """

    def __init__(
        self,
        stages: Mapping[int, Sequence[int]],
        modules: Mapping[int, nn.Module],
        names: Sequence[str],
        device: torch.device,
        seed: int,
    ) -> None:
        self.stages, self.indices, self.names = stages, [*modules], names
        self.module = nn.Sequential(OrderedDict(zip(names, modules.values(), strict=True)))
        self._last_stage = max(stages)
        self.device, self.seed = device, seed
        self.step = self.first = self.sampled = 0
        self.whole = False
        self.problem = ""
        self.loss: Loss | None = None
        self.loss_module: nn.Module | None = None
        self.statistics = NO_STATISTICS
        self.kept: dict[Cell, _Saved] = {}
        self._autocast: torch.dtype | None = None  # of the user's region
        self._forms = Forms()
        self._layers: dict[int, list[tuple[int, nn.Module]]] = {}
        self._before_plain: set[int] = set()  # layers behind which a plain one runs
        self._tree: object = None  # names, layers and all their submodules, as of the last step
        # By the modules of the loss, as losses may take turns.
        self._changing_with: dict[tuple[nn.Module, ...], Changing] = {}
        self._loss_modules: tuple[nn.Module, ...] = ()
        # For each loss and state of the modules: which of them train, and which parameters do.
        self._known_in_modes: dict[object, dict[object, _Known]] = {}
        self._known: dict[object, _Known] = {}
        self._call = 0  # evaluations between two steps have the number of the second
        self._evaluation, self._step_seed = 0, seed
        # Of sampled passes: the stage, what is known, and whether R has made the same. That is read
        # at the end of the step, so that no GPU is waited for.
        self._same: list[tuple[int, _Known, Tensor]] = []
        self._watched = False  # any pass of this step
        self._watches_always = False
        self._overwriting: set[int] = set()  # stages whose layers write to the stage's inputs
        self._draws: set[str] = set()  # other generators than torch's that a layer draws from
        self._seen_parameters = False  # whether F was seen to leave the parameters' values
        self._others: dict[str, rng.Source] = {}
        self._follow()

    def begin_step(self, step: int, *, evaluate: bool = False) -> None:
        """Before the first action of a step, or of an evaluation between two steps."""
        self._call += 1
        # Evaluations between two steps draw different numbers, for Monte-Carlo dropout for example.
        self._evaluation = self._evaluation + 1 if evaluate and step == self.step else 0
        again = rng.hashed(self.seed, step, rng.EVALUATION, self._evaluation)
        self._step_seed = again if evaluate else self.seed
        self._same.clear()
        if self.kept:  # the last step failed: what it has shown is watched again
            self._known.clear()
            self.kept.clear()
        self._follow()
        placed = (each for layers in self._layers.values() for each in layers)
        self._before_plain = {n - 1 for n, layer in placed if _is_plain(layer)}
        self._modes = self._get_modes()
        if len(self._known_in_modes) + len(self._known) > _MOST_FORMS:
            self._known_in_modes.clear()
        self._known = self._known_in_modes.setdefault(self._modes, {})
        self._watched = False
        self.step = step
        self.statistics = NO_STATISTICS
        self.problem = self.misfit

    def end_step(self) -> None:
        """After the last action of a training step."""
        for stage, known, same in self._same:
            if not same:
                known.without_graph = False  # which might have run other kernels
                self.refuse(f"stage {stage}: its outputs are {_NOT_THE_SAME}: {_MOVES_AGAIN}")
        if self._get_modes() != self._modes and not self._watches_always:
            self._watches_always = True
            if not self._watched:
                self.refuse(
                    "a layer changed which of its modules are in training mode, or which of its "
                    f"parameters are trained; {_RUNS_AGAIN}"
                )

    def parameters_of(self, stage: int) -> list[nn.Parameter]:
        """The parameters of one of these stages, in layer order."""
        layers = [layer for _, layer in self._layers[stage]]
        return parameters_of(part for layer in layers for part in modules_of(layer))

    @property
    def misfit(self) -> str:
        """Why `module` cannot be run, such as added or removed layers; otherwise empty."""
        names = [*self.module._modules]
        if names == [*self.names]:
            return more_than_a_sequence(self.module, "pipe.module")
        return (
            f"pipe.module: its layers are {', '.join(names) or 'none'}, and the Pipeline was built "
            f"with {', '.join(self.names)}; build another one to add or remove some"
        )

    def refuse(self, problem: str) -> None:
        """If there is a problem, let the step end as all ranks expect, and refuse it then."""
        if problem:
            self.problem = self.problem or f"step {self.step}: {problem}"

    def _get_modes(self) -> tuple[object, ...]:
        modes = [module.training for module in self.modules]
        modes += [parameter.requires_grad for parameter in self.parameters]
        return (*self._loss_modules, *modes)

    def _follow(self) -> None:
        """From now on run the layers that `module` holds; the user may have replaced some."""
        self.modules = modules_of(self.module)
        self.parameters = parameters_of(self.modules)
        tree = [*self.module._modules], [*self.module], self.modules
        # A module only equals itself.
        if tree != self._tree:
            self._tree = tree
            self._changing_with.clear()
            self._known_in_modes.clear()
            self._compiled = any(map(is_compiled, self.modules))
            self.norms = [module for module in self.modules if isinstance(module, NORMS)]
            if not self.misfit:
                layers = dict(zip(self.indices, self.module, strict=True))
                self._layers = {
                    stage: [(n, layers[n]) for n in ns] for stage, ns in self.stages.items()
                }
                self._draws |= rng.declared(self.module)
        self._loss_modules = () if self.loss_module is None else (*modules_of(self.loss_module),)
        if self._loss_modules not in self._changing_with:
            if len(self._changing_with) > _MOST_LOSSES:
                self._changing_with.clear()
                self._known_in_modes.clear()
            modules = dict.fromkeys([*self.modules, *self._loss_modules])
            self._changing_with[self._loss_modules] = Changing(modules)
        self.changing = self._changing_with[self._loss_modules]

    # F.

    def forward(self, cell: Cell, inputs: Message, *, keep: bool) -> Message | Tensor | None:
        """F: the message for the next stage, or the share of the loss, without a graph.

        Inputs for which a gradient goes back require one. `keep` keeps the graph, so that B can
        follow without R. Otherwise the loss is left to R, so that it is computed once.
        """
        saved = self.kept[cell] = self._save("F", cell, inputs)
        known, log = saved.known, None if keep else self._begin_recomputed(saved)
        before = self.changing.before_forward(closely=saved.watched)
        self.statistics.counting = True
        with torch.set_grad_enabled(saved.had_graph):
            value, requiring = self._run(cell, saved, log)
            outputs, skeleton = flatten(value)
            loss = None
            if keep or self.loss_module is not None:
                loss = self._loss_of(cell, value, saved.seeds[-1], saved)
        self.statistics.counting = False
        first_changes = self.changing.after_forward(before, closely=saved.watched)
        for other in self.kept.values() if first_changes else ():
            other.buffers += copies(first_changes)

        made = outputs if loss is None else [*outputs, loss]
        if saved.watched:
            refuse_foreign_leaves(outputs, [*saved.leaves, *self.parameters_of(cell[0])])
        if saved.left is not None:
            saved.left.after_forward(made)
            saved.leaves = []
        if keep:
            saved.outputs = outputs if loss is None else [loss]
        sampled = cell[1] == self.sampled and not (keep or saved.watched) and self._is_exact
        saved.sums = checksums(outputs) if sampled else []
        saved.requiring = requiring or known.requiring
        if not self._has_loss(cell):
            self._fit_requiring(saved, outputs)
        outputs = [t.detach() for t in outputs]  # and without a graph unless that is kept
        if log is not None:
            known.requiring = saved.requiring
            known.without_graph = self._same_without_graph(cell, saved, log, outputs)
        if self._has_loss(cell):
            return None if loss is None else loss.detach()
        for tensor, requires in zip(outputs, saved.requiring[-1], strict=True):
            tensor.requires_grad_(requires)
        return self._forms.message((True, cell), outputs, skeleton, crosses=True)

    def _begin_recomputed(self, saved: _Saved) -> OperatorLog | None:
        """Note what R must find, before an F; returns a log if F is to be tried without a graph."""
        log, known = None, saved.known
        saved.buffers = self.changing.snapshot()
        if known.without_graph is None:
            log = OperatorLog()
            self.statistics.settle()  # the operators of a merge are not the layers'
        saved.had_graph = saved.watched or not known.without_graph
        if saved.watched:
            saved.left = LeftBehind(self.module, values=not self._seen_parameters)
            self._seen_parameters = True
        return log

    def _fit_requiring(self, saved: _Saved, outputs: Sequence[Tensor]) -> None:
        """Refuse an F without a graph that returns another number of tensors than one with."""
        if len(saved.requiring[-1]) == len(outputs):
            return
        self.refuse(
            "the number of tensors that a stage returns depends on their contents; return as "
            "many always, or build the Pipeline with checkpoint='never'"
        )
        floats = [t.is_floating_point() for t in outputs]
        saved.requiring = [*saved.requiring[:-1], floats]

    def _save(self, kind: str, cell: Cell, inputs: Message) -> _Saved:
        key = kind, cell[0], self._autocast, inputs.form.text
        known = self._known.get(key)
        if known is None:
            # The log of operators would keep a layer from running compiled.
            known = self._known[key] = _Known(self._call, False if self._compiled else None)
        watched = self._watches_always or known.call == self._call
        self._watched |= watched
        return _Saved(inputs, known, watched, self._seeds(*cell))

    def _seeds(self, stage: int, i: int) -> list[int]:
        """Seeds of the random state of (step, i, layer): for each of the stage's, then the loss.

        They are hashed together, since between two layers this code is in no cache.
        """
        indices = [*(n for n, _ in self._layers[stage]), self.indices[-1] + 1]
        return [rng.hashed(self._step_seed, self.step, self.first + i, n) for n in indices]

    def _same_without_graph(
        self, cell: Cell, saved: _Saved, log: OperatorLog, expected: Sequence[Tensor]
    ) -> bool:
        """Whether F without a graph gives the same bits, and calls the same operators as `log`.

        Values alone would not do: those of a small layer may be equal by chance.
        """
        without, leaves = OperatorLog(), saved.leaves
        self.statistics.settle()
        try:
            # The trial leaves buffers and statistics as F has left them.
            with torch.no_grad(), as_before(copies(saved.buffers)):
                outputs, _ = flatten(self._run(cell, saved, without)[0])
        except RuntimeError:  # for example torch.autograd.grad in a forward
            return False
        finally:
            saved.leaves = leaves
        return log.calls == without.calls and all(map(torch.equal, outputs, expected))

    # R and B.

    def recompute(self, cell: Cell) -> Tensor | None:
        """R: the same values as F, with a graph; it needs no gradient.

        Returned is the micro-batch's share of the loss, if that follows.
        """
        saved = self.kept[cell]
        with torch.enable_grad(), as_before(saved.buffers):
            value, requiring = self._run(cell, saved)
            outputs, _ = flatten(value)
            # What a module counts in F is not counted once more.
            with state_preserved(self.loss_module, again=True):
                loss = self._loss_of(cell, value, saved.seeds[-1], saved)
        twice = [loss] if loss is not None and self.loss_module is not None else []
        self._compare(cell, saved, [*outputs, *twice], requiring)
        if loss is None:
            saved.outputs = outputs
            return None
        saved.outputs = [loss]
        return loss.detach()

    def _compare(
        self, cell: Cell, saved: _Saved, outputs: Sequence[Tensor], requiring: _Requiring
    ) -> None:
        """Refuse the step if R has not made what F did."""
        problem = saved.left.after_recompute(outputs) if saved.left is not None else ""
        if problem:
            self._raise_another(cell[0], problem)
        if saved.sums:
            pairs = zip(saved.sums, checksums(outputs), strict=False)
            same = torch.stack([a == b for a, b in pairs]).all()
            self._same.append((cell[0], saved.known, same))
        if requiring == saved.requiring:
            return
        ends_here = self._has_loss(cell)
        if not ends_here and len(requiring[-1]) != len(saved.requiring[-1]):
            raise ValueError(
                f"stage {cell[0]}: it returns {len(saved.requiring[-1])} tensors, and "
                f"{len(requiring[-1])} when that is recomputed; a layer must do the same both times"
            )
        same_outputs = ends_here or requiring[-1] == saved.requiring[-1]
        if not saved.had_graph:
            # Other kernels may have run. From now on F has a graph, which tells what requires a
            # gradient.
            saved.known.without_graph = False
            self.refuse(f"what requires a gradient inside a layer has changed; {_RUNS_AGAIN}")
        elif not same_outputs:
            self.refuse(
                "which outputs of a stage require a gradient is not the same in the forward and "
                "when that is recomputed; a layer must do the same both times"
            )

    @property
    def _is_exact(self) -> bool:
        """Whether F and R must have the same bits."""
        return self.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()

    def _raise_another(self, stage: int, problem: str) -> None:
        problem = f"stage {stage}: {problem} {_NOT_THE_SAME}"
        if not self._is_exact:
            advice = "torch.use_deterministic_algorithms(True) would show"
            _log.warning("%s; that may be rounding, which %s", problem, advice)
            return
        raise ValueError(f"{problem}: {_MOVES_AGAIN}")

    def backward(self, cell: Cell, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """B: add to the parameters' gradients, free what was kept, and return those of the inputs.

        There is one for each tensor that required one in F, or one for the loss. It is None where
        the loss does not depend on the tensor.
        """
        saved = self.kept.pop(cell)
        assert saved.outputs is not None, f"B before F or R of {cell}"
        outputs = saved.outputs
        if not self._has_loss(cell):
            required = zip(outputs, saved.requiring[-1], strict=True)
            outputs = [tensor for tensor, requires in required if requires]
        both = zip(outputs, gradients, strict=True)
        pairs = [(t, g) for t, g in both if t.requires_grad and g is not None]
        if pairs:
            roots, their_gradients = zip(*pairs, strict=True)
            versions = _versions(self.parameters)
            torch.autograd.backward(roots, their_gradients)
            if not self.whole and _versions(self.parameters) != versions:
                raise ValueError(
                    "a hook changed parameters before the gradient of the mini-batch was complete, "
                    "as an optimizer does that steps in register_post_accumulate_grad_hook; give "
                    "train_step the optimizer, or take micro_batches=1 and replicas=1"
                )
        for given, leaf in zip(saved.inputs.tensors, saved.leaves, strict=True):
            given.grad = leaf.grad
        return [t.grad for t in saved.inputs.tensors if t.requires_grad]

    # An evaluation.

    def evaluate(self, cell: Cell, inputs: Message) -> Message:
        """Outputs without gradients; keeps nothing and computes no loss."""
        saved = self._save("evaluate", cell, inputs)
        with torch.no_grad():
            tensors, skeleton = flatten(self._run(cell, saved)[0])
        crosses = not self._has_loss(cell)
        return self._forms.message((False, cell), tensors, skeleton, crosses=crosses)

    def score(self, cell: Cell, outputs: Tree) -> Tensor:
        """The micro-batch's share of an evaluation's loss."""
        with torch.no_grad():
            loss = self._loss_of(cell, outputs, self._seeds(*cell)[-1])
        assert loss is not None
        return loss

    # Running layers.

    def _run(
        self, cell: Cell, saved: _Saved, log: OperatorLog | None = None
    ) -> tuple[Tree, _Requiring]:
        """Run the stage's layers on the saved inputs, which stay as they are.

        Layers that work in place on the stage's inputs (timm's ResNet does) would spoil what R
        needs, so they get copies, as do all layers of the first stage: its inputs are the user's.
        F and R treat the inputs alike, since a product's last bits may depend on their alignment.
        """
        stage = cell[0]
        inputs, form = saved.inputs.tensors, saved.inputs.form
        copy = saved.watched or stage == 0 or stage in self._overwriting
        # Other leaves in each pass: a hook that a layer sets on its input would stay on it.
        saved.leaves = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
        tensors = [copied(t) for t in saved.leaves] if copy else saved.leaves
        versions = _versions(tensors)
        try:
            with log or nullcontext():
                value = unflatten(tensors, form.skeleton)
                value, requiring = self._through(
                    value,
                    self._layers[stage],
                    saved.seeds,
                    watched=saved.watched,
                    settled=saved.known.settled,
                )
        except RuntimeError as error:
            if copy or _WRITES_TO_LEAF not in str(error):
                raise
            # The step will not count, but first its messages must be complete.
            self._overwriting.add(stage)
            self.refuse(_OVERWRITES)
            return self._run(cell, saved, log)
        now = _versions(tensors)
        for n in form.sharing:
            # Without a boundary both tensors would have changed; behind it they are two.
            if now[n] != versions[n]:
                raise ValueError(
                    f"stage {stage}: a layer writes in place to tensor {n} of what enters it, and "
                    "another one there shares its memory; clone() one of them, or choose a "
                    "balance that keeps these layers together"
                )
        # A write through `.data` is not counted.
        if now != versions or (saved.watched and not all(map(torch.equal, tensors, inputs))):
            if not copy:
                self.refuse(_OVERWRITES)
            self._overwriting.add(stage)
        if not self._has_loss(cell):
            refuse_unplain(value, f"stage {stage}: what its last layer returns")
        return value, requiring

    def _has_loss(self, cell: Cell) -> bool:
        """Whether the loss follows this stage."""
        return self.loss is not None and cell[0] == self._last_stage

    def _loss_of(
        self, cell: Cell, value: Tree, seed: int, saved: _Saved | None = None
    ) -> Tensor | None:
        """The micro-batch's share of the loss, if that follows; to random state it is a layer."""
        if self.loss is None or not self._has_loss(cell):
            return None
        call = self.indices[-1] + 1, partial(self.loss, cell[1])
        watched = self._watched if saved is None else saved.watched
        settled = {} if saved is None else saved.known.settled
        return self._through(value, [call], [seed], watched=watched, settled=settled)[0]

    def _through(
        self,
        value: Tree,
        calls: _Calls,
        seeds: Sequence[int],
        *,
        watched: bool,
        settled: dict[Hashable, bool],
    ) -> tuple[Tree, _Requiring]:
        """Run layers one after the other, each with random state of its own.

        Two slow things are left out where they change nothing: seeding other generators than
        torch's where no layer draws from them, and looking at the gradients that a plain layer
        hands back.
        """
        requiring: _Requiring = []
        names = self._others.keys() if watched else self._others.keys() & self._draws
        others = [self._others[name] for name in names]
        with self.region:
            for (index, call), seed in zip(calls, seeds, strict=False):
                rng.reseed(seed, self.device, others)
                try:
                    value = call(value)
                except Exception as error:
                    if not is_refusal(error) and isinstance(call, nn.Module):
                        error.add_note(f"(in layers[{index}], a {type(call).__name__})")
                    raise
                if torch.is_grad_enabled():
                    trust = not watched and index in self._before_plain
                    requiring.append(settle_gradients(value, settled, index, trust=trust))
                if watched:
                    self._draws |= {n for n, s in self._others.items() if s.has_moved(seed)}
        return value, requiring

    @property
    def region(self) -> AbstractContextManager[object]:
        """The autocast region of layers and loss."""
        dtype = self._autocast
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    @contextmanager
    def generators_preserved(self) -> Iterator[None]:
        """Wrap a step: put the user's generators of random numbers back at its end.

        Refuse the step if something draws from a generator that is not seeded, so that F and R drew
        different numbers.
        """
        self._others = rng.other_sources()
        with rng.preserved(self.device, self._others) as moved:
            yield
        unseen = moved - self._draws
        if unseen and not self._watched:
            self._draws |= unseen
            self.refuse(
                f"something drew from {min(unseen)}'s random numbers, which no layer did when such "
                f"inputs came first; {_RUNS_AGAIN}"
            )

    @contextmanager
    def autocast_left(self) -> Iterator[None]:
        """Leave the user's torch.autocast region for a step: only layers and loss run inside it.

        Inside it, the gradients of operators that ran in float32 would be computed in the lower
        precision, and so would an optimizer that multiplies matrices.
        """
        kind = self.device.type
        if not torch.is_autocast_enabled(kind):
            yield
            return
        self._autocast = torch.get_autocast_dtype(kind)
        # The region caches weights in the lower precision until its end, for many steps perhaps.
        torch.clear_autocast_cache()
        try:
            with torch.autocast(kind, enabled=False):
                yield
        finally:
            self._autocast = None
            torch.clear_autocast_cache()


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is one of torch's own without parts, hooks or another forward.

    The layout of the gradients that it hands back depends on the form of its inputs and on the
    layout of the gradients that it gets, never on their values.
    """
    is_torchs = type(layer).__module__.startswith("torch.nn.modules.") and not layer._modules
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    hooks = hooks or layer._backward_hooks or layer._backward_pre_hooks
    return is_torchs and not hooks and "forward" not in vars(layer)


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Torch's count of in-place writes to each tensor; 0 for inference tensors, which have none."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # asking each one first takes ten times as long
        return [0 if t.is_inference() else t._version for t in tensors]
