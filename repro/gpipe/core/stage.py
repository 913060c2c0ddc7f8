"""F, R and B of one micro-batch on one stage of a rank, and what is kept between them.

With re-materialization F keeps only the boundary inputs, R runs the layers again with a graph, and
B differentiates (section 2.3 of arXiv:1811.06965v5). F and R must do the same.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import Form, Forms, Message, copied, settle_gradients
from repro.gpipe.core.layers import modules_of, more_than_a_sequence, parameters_of
from repro.gpipe.core.microbatch import Tree, flatten, refuse_unplain, unflatten
from repro.gpipe.core.ownership import refuse_foreign_leaves
from repro.gpipe.exact import rng
from repro.gpipe.exact.attributes import LeftBehind, digest
from repro.gpipe.exact.batchnorm import Statistics
from repro.gpipe.exact.buffers import Changing, Snapshot, as_before, copies
from repro.gpipe.exact.grad_mode import OperatorLog
from repro.gpipe.schedule.actions import Cell

_log = logging.getLogger(__name__)

Loss = Callable[[int, Tree], Tensor]  # (micro-batch, outputs) -> its share of the mini-batch loss
# Layer index, layer, and the generators besides torch's that it draws from; see `rng`.
_Call = tuple[int, Callable[[Tree], Tree], set[str]]
# For each layer, which tensors of its output require a gradient.
_Requiring = list[list[bool]]

# Part of torch's message about a layer that writes to the stage's inputs.
_WRITES_TO_LEAF = "leaf Variable that requires grad"
_MOST_FORMS = 2**10  # of inputs that are remembered; a sequence's length may differ in every step
_LEARNING_IN_A_ROW = 10  # steps, before a warning says that these are slow
_RUNS_AGAIN = "the next steps allow for it, so train_step can be called again"


@dataclass
class _Known:
    """What was found out about a stage when inputs of one form came first.

    Attributes:
        call: of the engine in which that was, a step or an evaluation. All of its micro-batches of
            this form are looked at closely.
        without_graph: whether F gives the same bits without a graph; None before it was tried.
            Which kernels torch chooses depends on what requires a gradient inside.
        requiring: what requires a gradient inside.
    """

    call: int
    without_graph: bool | None = None
    requiring: _Requiring = field(default_factory=list)


@dataclass
class _SavedForward:
    """What a stage keeps of a micro-batch between F and B.

    Attributes:
        inputs: what entered the stage.
        learning: whether F and R are looked at closely.
        known: see `_Known`.
        leaves: the inputs as the last pass had them, where the graph of the outputs ends.
        outputs: with their graph, once F or R has built one.
        sent: the form in which the outputs went to the next stage; None of a loss.
        buffers: copies from before F, of the buffers that F changes.
        had_graph: whether F had a graph.
        made: if learning, digests of the outputs of F, which R must make again.
        left: if learning, what F left in its layers, which R must leave again.
    """

    inputs: Message
    learning: bool
    known: _Known
    leaves: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] | None = None
    sent: Form | None = None
    buffers: Snapshot = field(default_factory=list)
    had_graph: bool = True
    made: list[bytes] = field(default_factory=list)
    left: LeftBehind | None = None


class HeldStages:
    """The stages that one rank holds, on one device: usually one.

    A stage is a run of consecutive layers. What belongs to a stage and a micro-batch has the key
    `Cell`. What belongs to a whole step, such as random generators and buffers, is shared.

    In the step in which inputs of a form come first, the stage learns from F and R: whether the
    layers write to the stage's inputs, which buffers change, which generators they draw from, and
    whether R does what F did.

    Args:
        layers: stage -> layer index in the whole model -> module, in order.
        names: keys of all these layers in the unsplit model's state dict.
        device: where they run.
        seed: of the random state, see `rng`.

    Attributes:
        module: all these layers; users may put another layer in the place of one.
        loss: follows the last of these stages if it is the model's last.
        problem: why the step must not count, or empty.
    """

    def __init__(
        self,
        layers: Mapping[int, Mapping[int, nn.Module]],
        names: Sequence[str],
        device: torch.device,
        seed: int,
    ) -> None:
        modules = [module for of_stage in layers.values() for module in of_stage.values()]
        self.names = names
        self.module = nn.Sequential(OrderedDict(zip(names, modules, strict=True)))
        self.indices = [index for of_stage in layers.values() for index in of_stage]
        self._counts = {stage: len(of_stage) for stage, of_stage in layers.items()}
        self._last_stage = max(layers)
        self.device = device
        self.seed = seed
        self.step = 0
        self._call = 0  # evaluations between two steps have the number of the second
        self.first = 0  # number of this replica's first micro-batch, counted over all replicas
        self.problem = ""
        self.loss: Loss | None = None
        self.loss_module: nn.Module | None = None  # the loss, if it is one; its buffers may change
        self.statistics: Statistics | None = None  # while a training step runs
        self.autocast: torch.dtype | None = None  # in which layers and loss run; see `autocast`
        self.kept: dict[Cell, _SavedForward] = {}
        self._forms = Forms()
        self._overwriting: set[int] = set()  # stages whose layers write to the stage's inputs
        # Which modules train, and which parameters: at the start of this step.
        self._modes: tuple[tuple[bool, ...], ...] = ()
        self._known_in_modes: dict[object, dict[object, _Known]] = {}
        self._requiring: _Requiring = []  # of the last pass with a graph
        self._learns_always = False
        self._learning = False  # in the present F or R
        self._learnt = False  # in this step
        self._learnt_in_a_row = 0  # steps
        self._loss_index = max(self.indices, default=-1) + 1
        self._loss_draws: set[str] = set()
        self._layers: dict[int, list[_Call]] = {stage: [] for stage in layers}
        self._tree: object = None  # names, layers and all their submodules, as of the last step
        self._seen_parameters = False  # whether F was seen to leave the parameters' values
        # Generators of random numbers besides torch's, by name: which there are, and which any of
        # the layers, or something unknown, draws from.
        self._others: dict[str, rng.Source] = {}
        self._drawn: set[str] = set()
        self._drawn_unseen: set[str] = set()
        self._follow()

    def begin_step(self, step: int) -> None:
        """Before the first action of a step or an evaluation; `step` is the number of the step."""
        self._call += 1
        self._follow()
        self._modes = self._get_modes()
        if len(self._known_in_modes) > _MOST_FORMS:
            self._known_in_modes.clear()
        self._known = self._known_in_modes.setdefault(self._modes, {})
        if len(self._known) > _MOST_FORMS:
            self._known.clear()
        self._learnt_in_a_row = self._learnt_in_a_row + 1 if self._learnt else 0
        if self._learnt_in_a_row == _LEARNING_IN_A_ROW:
            _log.warning(
                "steps are slow: each of the last %d had inputs of a new form, and so was looked "
                "at closely; pad to few shapes, and give constants that change as tensors",
                _LEARNING_IN_A_ROW,
            )
        self._learnt = False
        self.step = step
        self.problem = self.misfit
        self.kept.clear()  # of a step that failed

    @property
    def stages(self) -> list[int]:
        """Their numbers, in order."""
        return [*self._counts]

    def parameters_of(self, stage: int) -> list[nn.Parameter]:
        """The parameters of one of these stages, in layer order."""
        before = sum(count for other, count in self._counts.items() if other < stage)
        layers = [*self.module][before : before + self._counts[stage]]
        return parameters_of(part for layer in layers for part in modules_of(layer))

    def end_step(self) -> None:
        """After the last action of a training step."""
        if self._get_modes() != self._modes and not self._learns_always:
            self._learns_always = True
            if not self._learnt:
                self._refuse(
                    "a layer changed which of its modules are in training mode, or which of its "
                    f"parameters are trained; {_RUNS_AGAIN}"
                )

    def _refuse(self, problem: str) -> None:
        """Let the step end as all ranks expect, and not count."""
        self.problem = self.problem or f"step {self.step}: {problem}"

    def _get_modes(self) -> tuple[tuple[bool, ...], ...]:
        return (
            tuple([module.training for module in self.modules]),
            tuple([parameter.requires_grad for parameter in self.parameters]),
        )

    def _follow(self) -> None:
        """From now on run the layers that `module` holds; the user may have replaced some."""
        self.modules = modules_of(self.module)
        self.parameters = parameters_of(self.modules)
        of_loss = [] if self.loss_module is None else modules_of(self.loss_module)
        tree = [*self.module._modules], [*self.module], self.modules, of_loss
        if tree == self._tree:  # a module only equals itself
            return
        self._tree = tree
        if self.misfit:
            return
        calls = [call for of_stage in self._layers.values() for call in of_stage]
        draws = {id(layer): names for _, layer, names in calls}
        remaining = zip(self.indices, self.module, strict=True)
        for stage, count in self._counts.items():
            self._layers[stage] = [
                (index, layer, draws.get(id(layer), set()) | rng.declared(layer))
                for index, layer in islice(remaining, count)
            ]
        self.changing = Changing(dict.fromkeys(self.modules + of_loss))  # also of new layers
        self._known_in_modes.clear()

    @property
    def misfit(self) -> str:
        """Why `module` cannot be run: layers were added or removed, say; otherwise empty."""
        names = [*self.module._modules]
        if names == [*self.names]:
            return more_than_a_sequence(self.module, "pipe.module")
        return (
            f"pipe.module: its layers are {', '.join(names) or 'none'}, and the Pipeline was built "
            f"with {', '.join(self.names)}; put another layer in the place of one, or build "
            "another Pipeline to add or remove some"
        )

    # F.

    def forward(self, cell: Cell, inputs: Message, *, keep: bool) -> Message | Tensor:
        """F of a micro-batch on a stage.

        Args:
            cell: stage and micro-batch.
            inputs: on this device; tensors for which a gradient goes back require one.
            keep: keep the graph, so that B can follow without R.

        Returns:
            What goes to the next stage, or on the last one the micro-batch's share of the loss;
                without a graph.
        """
        kept = self.kept[cell] = self._saved("F", cell, inputs)
        known, log = kept.known, None
        if not keep:
            kept.buffers = self.changing.snapshot()
            if known.without_graph is None:
                log = OperatorLog()
                self._settle_statistics()
            kept.had_graph = kept.learning or not known.without_graph
            if kept.learning:
                kept.left = LeftBehind(self.module, values=not self._seen_parameters)
                self._seen_parameters = True

        self._count(True)
        with torch.set_grad_enabled(kept.had_graph):
            if kept.learning:
                with self.changing.learning() as first_changes:
                    outputs, skeleton = self._outputs(cell, kept, log)
                refuse_foreign_leaves(outputs, [*kept.leaves, *self.parameters_of(cell[0])])
            else:
                outputs, skeleton = self._outputs(cell, kept, log)
                first_changes = self.changing.first_changes()
        self._count(False)
        for other in self.kept.values() if first_changes else ():
            other.buffers += copies(first_changes)

        if kept.left is not None:
            kept.left.after_forward()
            kept.made = [digest(t) for t in outputs]
            kept.leaves = []
        if keep:
            kept.outputs = outputs
        if kept.had_graph:
            requiring = [t.requires_grad for t in outputs]
        else:
            requiring = self._expected_to_require(known, outputs)
        # Detached, and without a graph unless that is kept.
        outputs = [t.detach() for t in outputs]
        if log is not None:
            known.requiring = self._requiring
            known.without_graph = self._same_without_graph(cell, kept, log, outputs)
        if self._has_loss(cell):
            return outputs[0]
        for tensor, requires in zip(outputs, requiring, strict=True):
            tensor.requires_grad_(requires)
        message = self._forms.message((True, cell), outputs, skeleton, crosses=True)
        kept.sent = message.form
        return message

    def _saved(self, kind: str, cell: Cell, inputs: Message) -> _SavedForward:
        key = kind, cell[0], self.autocast, inputs.form.text
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(self._call)
        self._learning = self._learns_always or known.call == self._call
        self._learnt |= self._learning
        return _SavedForward(inputs, self._learning, known)

    def _expected_to_require(self, known: _Known, outputs: Sequence[Tensor]) -> list[bool]:
        """Which outputs of an F without a graph require a gradient; R will tell."""
        if len(known.requiring[-1]) == len(outputs):
            return known.requiring[-1]
        self._refuse(
            "the number of tensors that a stage returns depends on their contents; return as many "
            "always, or build the Pipeline with checkpoint='never'"
        )
        return [t.is_floating_point() for t in outputs]

    def _outputs(
        self, cell: Cell, kept: _SavedForward, log: OperatorLog | None = None
    ) -> tuple[list[Tensor], Tree]:
        """Run the layers; the outputs, flattened, which the next stage must get as they are."""
        made = self._run(cell, kept, log)
        if not self._has_loss(cell):
            self._refuse_unplain(cell, made)
        return flatten(made)

    def _refuse_unplain(self, cell: Cell, outputs: Tree) -> None:
        refuse_unplain(outputs, f"stage {cell[0]}: what its last layer returns")

    def _same_without_graph(
        self, cell: Cell, kept: _SavedForward, log: OperatorLog | None, expected: Sequence[Tensor]
    ) -> bool:
        """Whether F without a graph gives the same bits, and calls the same operators as `log`.

        Values alone would not do: those of a small layer may be equal by chance.
        """
        without = OperatorLog()
        leaves = kept.leaves
        self._settle_statistics()
        try:
            # The trial leaves buffers and statistics as F has left them.
            with torch.no_grad(), as_before(copies(kept.buffers)):
                outputs, _ = flatten(self._run(cell, kept, without))
        except RuntimeError:  # torch.autograd.grad in a forward, say
            return False
        finally:
            kept.leaves = leaves
        same_calls = log is None or log.calls == without.calls
        return same_calls and all(map(torch.equal, outputs, expected))

    # R and B.

    def recompute(self, cell: Cell) -> None:
        """R: the same values as F, with a graph; it needs no gradient."""
        kept = self.kept[cell]
        self._learning = kept.learning
        with torch.enable_grad(), as_before(kept.buffers) if kept.buffers else nullcontext():
            kept.outputs, _ = flatten(self._run(cell, kept))
        if kept.left is not None:
            self._hold_against_forward(cell, kept.outputs, kept.made, kept.left)
        different = not kept.had_graph and kept.known.requiring != self._requiring
        if different:
            # From now on F has a graph, which tells what requires a gradient. Of this one it is not
            # known whether other kernels ran.
            kept.known.without_graph = False
            if kept.buffers or not self._same_without_graph(cell, kept, None, kept.outputs):
                self._refuse(f"what requires a gradient inside a layer has changed; {_RUNS_AGAIN}")
        if kept.sent is None:
            return
        sent = [meta.requires_grad for meta in kept.sent.tensors]
        if len(sent) != len(kept.outputs):
            raise ValueError(
                f"stage {cell[0]}: it returns {len(sent)} tensors, and {len(kept.outputs)} when "
                "that is recomputed; a layer must do the same both times"
            )
        if sent != [t.requires_grad for t in kept.outputs]:
            self._refuse(
                "which outputs of a stage require a gradient "
                + (
                    f"has changed; {_RUNS_AGAIN}"
                    if different
                    else "is not the same in the forward and when that is recomputed; a layer "
                    "must do the same both times"
                )
            )

    def _hold_against_forward(
        self, cell: Cell, outputs: Sequence[Tensor], made: Sequence[bytes], left: LeftBehind
    ) -> None:
        """Raise a ValueError if R made other bits than F, or left something else in its layers."""
        other = left.after_recompute()
        problem = f"{other} is" if other else ""
        if not problem and [digest(t) for t in outputs] != made:
            problem = "its outputs are"
        if not problem:
            return
        if self.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
            _log.warning(
                "stage %d: %s not the same bits when it is recomputed; that may be rounding, which "
                "torch.use_deterministic_algorithms(True) would tell",
                cell[0],
                problem,
            )
            return
        raise ValueError(
            f"stage {cell[0]}: {problem} not the same when a micro-batch is recomputed, so it "
            "would train on other values than its forward gave: a layer or the loss holds state "
            "that re-materialization moves again; keep it in a buffer (register_buffer) or a plain "
            "number, draw from torch's default generator, or build the Pipeline with "
            "checkpoint='never'"
        )

    def backward(self, cell: Cell, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """B: add to the parameters' gradients and free what was kept.

        Args:
            cell: stage and micro-batch.
            gradients: one for each output that required one in F, None where the loss does not
                depend on it; or one for the loss.

        Returns:
            One gradient for each input tensor that requires one, None if the loss does not depend
                on it.
        """
        kept = self.kept.pop(cell)
        assert kept.outputs is not None, f"B before F or R of {cell}"
        outputs = kept.outputs
        if kept.sent is not None:
            metas = zip(outputs, kept.sent.tensors, strict=True)
            outputs = [tensor for tensor, meta in metas if meta.requires_grad]
        pairs = [
            (t, g)
            for t, g in zip(outputs, gradients, strict=True)
            if t.requires_grad and g is not None
        ]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        for given, leaf in zip(kept.inputs.tensors, kept.leaves, strict=True):
            given.grad = leaf.grad
        return [t.grad for t in kept.inputs.tensors if t.requires_grad]

    # An evaluation.

    def evaluate(self, cell: Cell, inputs: Message) -> Message:
        """Outputs without gradients; keeps nothing and computes no loss."""
        self._saved("evaluate", cell, inputs)
        copies_of_inputs = [copied(t) for t in inputs.tensors]
        versions = _versions(copies_of_inputs)
        value = unflatten(copies_of_inputs, inputs.form.skeleton)
        with torch.no_grad():
            outputs = self._through(cell[1], value, self._layers[cell[0]])
        if not self._has_loss(cell):
            self._refuse_unplain(cell, outputs)
        self._refuse_writes_to_shared(cell[0], copies_of_inputs, versions, inputs.form)
        tensors, skeleton = flatten(outputs)
        crosses = not self._has_loss(cell)
        return self._forms.message((False, cell), tensors, skeleton, crosses=crosses)

    def score(self, cell: Cell, outputs: Tree) -> Tensor:
        """The micro-batch's share of an evaluation's loss."""
        with torch.no_grad():
            return self._through(cell[1], outputs, self._loss_call(cell))

    # Running layers.

    def _count(self, on: bool) -> None:
        if self.statistics is not None:
            self.statistics.counting = on

    def _settle_statistics(self) -> None:
        """Keep operators that merge statistics out of a trial: they are not the layers'."""
        if self.statistics is not None:
            self.statistics.settle()

    def _run(self, cell: Cell, kept: _SavedForward, log: OperatorLog | None = None) -> Tree:
        """Run a stage's layers and loss on the kept inputs, which stay as they are.

        Layers that work in place on the stage's inputs (timm's ResNet does) would spoil what R
        needs, so they get copies. On the first stage layers always get copies, because its inputs
        are the user's own. F and R treat the inputs alike, since a matrix product's last bits may
        depend on how its operands are aligned.
        """
        stage, i = cell
        inputs, form = kept.inputs.tensors, kept.inputs.form
        copy = self._learning or stage == 0 or stage in self._overwriting
        # Other leaves in each pass: a hook that a layer sets on its input would stay on it.
        kept.leaves = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
        tensors = [copied(t) for t in kept.leaves] if copy else kept.leaves
        versions = _versions(tensors)
        calls = [*self._layers[stage], *self._loss_call(cell)]
        try:
            with log or nullcontext():
                outputs = self._through(i, unflatten(tensors, form.skeleton), calls)
        except RuntimeError as error:
            if copy or _WRITES_TO_LEAF not in str(error):
                raise
            # The step will not count, but first its messages must be complete.
            self._note_overwriting(stage)
            return self._run(cell, kept, log)
        self._refuse_writes_to_shared(stage, tensors, versions, form)
        overwritten = _versions(tensors) != versions
        if self._learning and not overwritten:
            # A write through `.data` is not counted.
            overwritten = not all(map(torch.equal, tensors, inputs))
        if overwritten and not copy:
            self._note_overwriting(stage)
        elif overwritten:
            self._overwriting.add(stage)
        return outputs

    def _note_overwriting(self, stage: int) -> None:
        self._overwriting.add(stage)
        self._refuse(
            "a layer wrote to its stage's inputs in place, which none did when such inputs came "
            f"first; {_RUNS_AGAIN}"
        )

    def _refuse_writes_to_shared(
        self, stage: int, tensors: Sequence[Tensor], versions: Sequence[int], form: Form
    ) -> None:
        """Raise a ValueError if layers wrote in place to an input that shares memory with another.

        Without a boundary both might have changed. Behind it they are two tensors, and only one
        has changed.
        """
        if not form.sharing:
            return
        now = _versions(tensors)
        for n in form.sharing:
            if now[n] != versions[n]:
                first = self.names[self.indices.index(self._layers[stage][0][0])]
                raise ValueError(
                    f"layer {first} or one behind it writes in place to tensor {n} of what "
                    "enters this stage, which shares memory with another tensor there (one is a "
                    "view of the other, say): across a stage boundary they are separate; clone() "
                    "one of them, or choose a balance that keeps these layers together"
                )

    def _has_loss(self, cell: Cell) -> bool:
        """Whether the loss follows this stage."""
        return self.loss is not None and cell[0] == self._last_stage

    def _loss_call(self, cell: Cell) -> list[_Call]:
        """The loss, if it follows this stage; to random state it is one more layer."""
        if self.loss is None or not self._has_loss(cell):
            return []
        return [(self._loss_index, partial(self.loss, cell[1]), self._loss_draws)]

    @contextmanager
    def generators_preserved(self, *, watch: bool) -> Iterator[None]:
        """Around a step: put the user's generators of random numbers back at its end.

        Args:
            watch: refuse the step if something draws from a generator that is not seeded for F and
                R, which then drew different numbers.
        """
        self._others = rng.other_sources()
        with rng.preserved(self.device), rng.unmoved(self._others) as moved:
            yield
        unseen = set(moved) - self._drawn - self._drawn_unseen
        if watch and unseen and not self._learnt:
            self._drawn_unseen |= unseen
            self._refuse(
                f"something drew from {min(unseen)}'s random numbers, which no layer did when such "
                f"inputs came first; {_RUNS_AGAIN}"
            )

    def _through(self, i: int, value: Tree, calls: Sequence[_Call]) -> Tree:
        """Run layers one after the other, each with the random state of (step, i, layer)."""
        kind, dtype = self.device.type, self.autocast
        requiring: _Requiring = []
        with nullcontext() if dtype is None else torch.autocast(kind, dtype):
            for index, call, draws in calls:
                seed = rng.hashed(self.seed, self.step, self.first + i, index)
                names = self._others if self._learning else draws | self._drawn_unseen
                rng.reseed(
                    seed,
                    self.device,
                    [self._others[name] for name in names if name in self._others],
                )
                value = call(value)
                if torch.is_grad_enabled():
                    requiring.append(settle_gradients(value))
                if self._learning:
                    moved = [name for name, s in self._others.items() if s.has_moved(seed)]
                    draws.update(moved)
                    self._drawn |= draws & self._others.keys()
        if requiring:
            self._requiring = requiring
        return value


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """How often each was written to in place; 0 for inference tensors, which do not count it."""
    return [0 if t.is_inference() else t._version for t in tensors]
