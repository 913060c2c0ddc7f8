"""F, R and B of one micro-batch on one stage of a rank, and what is kept between them.

With re-materialization F keeps only the boundary inputs, R runs the layers again with a graph, and
B differentiates (section 2.3 of arXiv:1811.06965v5).
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

from repro.gpipe.comm.message import copied, settle_gradients
from repro.gpipe.core.layers import modules_of, more_than_a_sequence, parameters_of
from repro.gpipe.core.microbatch import Tree, flatten, refuse_unplain, unflatten
from repro.gpipe.core.ownership import refuse_foreign_leaves
from repro.gpipe.exact import rng
from repro.gpipe.exact.attributes import LeftBehind, digest
from repro.gpipe.exact.batchnorm import Statistics
from repro.gpipe.exact.buffers import Changing, Snapshot, as_before
from repro.gpipe.exact.grad_mode import OperatorLog
from repro.gpipe.schedule.actions import Cell

_log = logging.getLogger(__name__)

Head = Callable[[int, Tree], Tensor]  # (micro-batch, outputs) -> its share of the mini-batch loss
# Layer index, layer, and the generators besides torch's that it draws from; see `rng`.
_Call = tuple[int, Callable[[Tree], Tree], set[str]]
# For each layer, which tensors of its output require a gradient.
_Requiring = list[list[bool]]

# Part of torch's message about a layer that writes to the stage's inputs.
_WRITES_TO_LEAF = "leaf Variable that requires grad"
# How many forms of inputs are remembered; a sequence's length may differ in every step.
_MOST_TRIALS = 2**10


@dataclass
class _Kept:
    """What a stage keeps of a micro-batch between F and B.

    Attributes:
        inputs: tensors of the boundary inputs.
        skeleton: of the inputs, see `flatten`.
        overlapping: numbers of the inputs that shared memory with others where they were made.
        leaves: the inputs as the last pass had them, where the graph of the outputs ends.
        outputs: with their graph, once F or R has built one.
        buffers: copies from before F, of the buffers that F changes.
        trial: what allowed F to go without a graph; None if it built one.
        made: while probing, digests of the outputs of F, which R must make again.
        left: while probing, what F left in its layers, which R must leave again.
    """

    inputs: list[Tensor]
    skeleton: Tree
    overlapping: Sequence[int]
    leaves: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] | None = None
    buffers: Snapshot = field(default_factory=list)
    trial: "_Trial | None" = None
    made: list[bytes] = field(default_factory=list)
    left: LeftBehind | None = None


@dataclass(frozen=True)
class _Trial:
    """Whether F gives the same bits without a graph, for inputs of one form.

    Which kernels torch chooses depends on what requires a gradient inside. So the answer holds for
    as long as that is the same.

    Attributes:
        needs_no_graph: the answer.
        requiring: what required a gradient inside when that was tried.
    """

    needs_no_graph: bool
    requiring: _Requiring


class HeldStages:
    """The stages that one rank holds, on one device: usually one.

    A stage is a run of consecutive layers. What belongs to a stage and a micro-batch has the key
    `Cell`. What belongs to a whole step, such as random generators and buffers, is shared.

    Args:
        layers: stage -> layer index in the whole model -> module, in order.
        names: keys of all these layers in the unsplit model's state dict.
        device: where they run.
        seed: of the random state, see `rng`.

    While `probing`, F builds a graph even if none is kept. It is then learnt which outputs require
    a gradient, whether the layers overwrite their stage's inputs, which buffers change and which
    generators the layers draw from.

    Attributes:
        module: all these layers; users may put another layer in the place of one.
        head: the loss, which follows the last of these stages if it is the model's last.
        unexpected: what was not as learnt in a step without probing. Such a step must be undone,
            and done again while probing. Empty if all was as learnt.
        refused: why a step must be undone for good, or empty.
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
        self.first = 0  # number of this replica's first micro-batch, counted over all replicas
        self.probing = False
        self.unexpected = ""
        self.refused = ""
        self.head: Head | None = None
        self.loss_module: nn.Module | None = None  # the loss, if it is one; its buffers may change
        self.statistics: Statistics | None = None  # while a training step runs
        self.autocast: torch.dtype | None = None  # in which layers and loss run; see `autocast`
        self.kept: dict[Cell, _Kept] = {}
        self._overwriting: set[int] = set()  # stages whose layers write to the stage's inputs
        self._modes: object = None  # at the start of this step
        self._trials: dict[tuple[int, str], _Trial] = {}  # by stage and form of the inputs
        self._requiring: _Requiring = []  # of the last pass with a graph
        self.head_index = max(self.indices, default=-1) + 1
        self._head_draws: set[str] = set()
        self._layers: dict[int, list[_Call]] = {stage: [] for stage in layers}
        self._tree: object = None  # names, layers and all their submodules, as of the last step
        self._replaced = False  # whether layers were replaced since a step has learnt
        self._seen_parameters = False  # whether F was seen to leave the parameters' values
        self.modules = modules_of(self.module)  # as of the last step's start
        self.parameters = parameters_of(self.modules)
        self._follow(self.modules)
        self._replaced = False
        # Generators of random numbers besides torch's, by name: which there are, which layers draw
        # from, which moved in a step that was not as learnt, and which something else than a layer
        # draws from, such as another thread.
        self._others: dict[str, rng.Source] = {}
        self._drawn: set[str] = set()
        self._suspected: set[str] = set()
        self._drawn_elsewhere: set[str] = set()

    def begin_step(self, step: int) -> None:
        """Before the first action of a step; `step` is its number."""
        self.modules = modules_of(self.module)
        self.parameters = parameters_of(self.modules)
        self._follow(self.modules)
        modes = self._get_modes()
        if modes != self._modes or self.unexpected or len(self._trials) > _MOST_TRIALS:
            self._modes = modes
            self._trials.clear()
        self.step = step
        self.unexpected = ""
        self.refused = self.misfit
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
        """After the last action of a training step: note it if layers or their modes changed."""
        if self._trials and self._get_modes() != self._modes:
            self._note_other_requiring()
        if self.probing:
            self._replaced = False
        elif self._replaced:
            self.unexpected = self.unexpected or "layers were replaced"

    def _get_modes(self) -> object:
        """Which modules are in training mode, and which parameters are trained."""
        return [m.training for m in self.modules], [p.requires_grad for p in self.parameters]

    def _follow(self, modules: list[nn.Module]) -> None:
        """From now on run the layers that `module` holds; the user may have replaced some."""
        of_loss = [] if self.loss_module is None else modules_of(self.loss_module)
        tree = [*self.module._modules], [*self.module], modules, of_loss
        if tree == self._tree:  # a module only equals itself
            return
        self._tree = tree
        self._replaced = True
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
        self.changing = Changing(dict.fromkeys(modules + of_loss))  # also the buffers of new layers
        self._trials.clear()

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

    def _note_other_requiring(self) -> None:
        self.unexpected = self.unexpected or "what requires a gradient inside a layer has changed"

    def forward(
        self, cell: Cell, inputs: Tree, *, keep: bool, overlapping: Sequence[int] = ()
    ) -> Tree:
        """F of a micro-batch on a stage.

        Args:
            cell: stage and micro-batch.
            inputs: on this device; floating-point tensors that arrived from a neighbour require a
                gradient.
            keep: keep the graph, so that B can follow without R.
            overlapping: numbers of the input tensors that shared memory with others where they were
                made.

        Returns:
            The outputs without a graph, or on the stage with the head the micro-batch's share of
                the loss. With `keep` or `probing` their `requires_grad` tells what had a graph.
        """
        tensors, skeleton = flatten(inputs)
        kept = self.kept[cell] = _Kept(tensors, skeleton, overlapping)
        if not keep and not self.probing:
            kept.buffers = self.changing.snapshot()

        # If R will follow, F needs no graph, once a trial has shown that it is the same without.
        form, trial, log = (0, ""), None, None
        if not keep:
            form = cell[0], self._form(tensors)
            trial = self._trials.get(form)
            if trial is None:
                log = OperatorLog()
                if self.statistics is not None:
                    self.statistics.settle()  # its operators are not the layers'
        if trial is not None and trial.needs_no_graph and not self.probing:
            kept.trial = trial

        if self.probing and not keep:
            kept.left = LeftBehind(self.module, values=not self._seen_parameters)
            self._seen_parameters = True
        with torch.set_grad_enabled(kept.trial is None):
            self._count(True)
            if self.probing:
                with self.changing.learning() as kept.buffers:
                    outputs, structure = self._outputs(cell, kept, log)
            else:
                outputs, structure = self._outputs(cell, kept, log)
            self._count(False)
        if kept.left is not None:
            kept.left.after_forward()
            kept.made = [digest(t) for t in outputs]
            kept.leaves = []
        if keep:
            kept.outputs = outputs
        detached = [t.detach().requires_grad_(t.requires_grad) for t in outputs]
        if log is not None:
            del outputs  # and with them the graph, unless it is kept
            requiring = self._requiring
            same = self._same_without_graph(cell, kept, log, detached)
            self._trials[form] = _Trial(same, requiring)
        return unflatten(detached, structure)

    def _outputs(
        self, cell: Cell, kept: _Kept, log: OperatorLog | None = None
    ) -> tuple[list[Tensor], Tree]:
        """Run the layers; the outputs, flattened, which the next stage must get as they are."""
        made = self._run(cell, kept, log)
        self._refuse_unplain(cell, made)
        tensors, structure = flatten(made)
        if self.probing:
            own = [*kept.leaves, *self.parameters_of(cell[0])]
            refuse_foreign_leaves(tensors, own)
        return tensors, structure

    def _refuse_unplain(self, cell: Cell, outputs: Tree) -> None:
        """Raise a ValueError if what goes to the next stage would not arrive as it is."""
        if not self._last(cell):
            refuse_unplain(outputs, f"stage {cell[0]}: what its last layer returns")

    def _form(self, tensors: Sequence[Tensor]) -> str:
        """What torch's choice of kernels may depend on, besides the layers."""
        described = [(t.shape, t.stride(), t.dtype, t.requires_grad) for t in tensors]
        return repr((self.autocast, described))

    def _same_without_graph(
        self, cell: Cell, kept: _Kept, log: OperatorLog, expected: list[Tensor]
    ) -> bool:
        """Whether F without a graph calls the same operators and gives the same bits.

        Values alone would not do: those of a small layer may be equal by chance.
        """
        without = OperatorLog()
        # The trial leaves buffers and statistics as F has left them.
        buffers = [
            (module, name, copy.clone() if isinstance(copy, Tensor) else copy)
            for module, name, copy in kept.buffers
        ]
        if self.statistics is not None:
            self.statistics.settle()
        leaves = kept.leaves
        try:
            with torch.no_grad(), as_before(buffers):
                outputs, _ = flatten(self._run(cell, kept, without))
        except RuntimeError:  # torch.autograd.grad in a forward, say
            return False
        finally:
            kept.leaves = leaves
        return log.calls == without.calls and all(map(torch.equal, outputs, expected))

    def recompute(self, cell: Cell) -> None:
        """R: the same values as F, with a graph; it needs no gradient."""
        kept = self.kept[cell]
        with torch.enable_grad(), as_before(kept.buffers) if kept.buffers else nullcontext():
            kept.outputs, _ = flatten(self._run(cell, kept))
        if kept.left is not None:
            self._hold_against_forward(cell, kept.outputs, kept.made, kept.left)
        if kept.trial is not None and kept.trial.requiring != self._requiring:
            self._note_other_requiring()

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

    def requiring_gradient(self, cell: Cell) -> list[bool]:
        """Which outputs require a gradient; known once F or R has kept a graph."""
        outputs = self.kept[cell].outputs
        assert outputs is not None, f"asked before F or R of {cell}"
        return [t.requires_grad for t in outputs]

    def backward(self, cell: Cell, gradients: list[Tensor | None] | None) -> list[Tensor | None]:
        """B: add to the parameters' gradients and free what was kept.

        Args:
            cell: stage and micro-batch.
            gradients: one for each output tensor, None for an output without one. On the last
                stage, whose output is the loss, None instead of the list.

        Returns:
            One gradient for each input tensor that requires one, None if the loss does not depend
                on it.
        """
        kept = self.kept.pop(cell)
        assert kept.outputs is not None, f"B before F or R of {cell}"
        given = gradients if gradients is not None else [torch.ones_like(t) for t in kept.outputs]
        pairs = [
            (t, g)
            for t, g in zip(kept.outputs, given, strict=True)
            if t.requires_grad and g is not None
        ]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        for given, leaf in zip(kept.inputs, kept.leaves, strict=True):
            given.grad = leaf.grad
        return [t.grad for t in kept.inputs if t.requires_grad]

    def evaluate(self, cell: Cell, inputs: Tree, *, overlapping: Sequence[int] = ()) -> Tree:
        """Outputs without gradients; keeps nothing and applies no head."""
        tensors, skeleton = flatten(inputs)
        copies = [copied(t) for t in tensors]
        versions = _versions(copies)
        with torch.no_grad():
            outputs = self._through(cell[1], unflatten(copies, skeleton), self._layers[cell[0]])
        self._refuse_unplain(cell, outputs)
        self._refuse_overlapping_writes(cell[0], copies, versions, overlapping)
        return outputs

    def score(self, cell: Cell, outputs: Tree) -> Tensor:
        """The micro-batch's share of an evaluation's loss."""
        with torch.no_grad():
            return self._through(cell[1], outputs, self._last(cell))

    def _count(self, on: bool) -> None:
        if self.statistics is not None:
            self.statistics.counting = on

    def _run(self, cell: Cell, kept: _Kept, log: OperatorLog | None = None) -> Tree:
        """Run a stage's layers and head on the kept inputs, which stay as they are.

        Layers that work in place on the stage's inputs (timm's ResNet does) would spoil what R
        needs, so they get copies. On the first stage layers always get copies, because its inputs
        are the user's own. F and R treat the inputs alike, since a matrix product's last bits may
        depend on how its operands are aligned.
        """
        stage, i = cell
        layers = self._layers[stage]
        copy = self.probing or stage == 0 or stage in self._overwriting
        # Other leaves in each pass: a hook that a layer sets on its input would stay on it.
        kept.leaves = [t.detach().requires_grad_(t.requires_grad) for t in kept.inputs]
        tensors = [copied(t) for t in kept.leaves] if copy else kept.leaves
        versions = _versions(tensors)
        value = unflatten(tensors, kept.skeleton)
        try:
            with log or nullcontext():
                outputs = self._through(i, value, [*layers, *self._last(cell)])
        except RuntimeError as error:
            if copy or _WRITES_TO_LEAF not in str(error):
                raise
            # The step will be done again, but first its messages must be complete.
            self._note_overwriting(stage)
            return self._run(cell, kept)
        self._refuse_overlapping_writes(stage, tensors, versions, kept.overlapping)
        overwritten = _versions(tensors) != versions
        if self.probing and not overwritten:
            # A write through `.data` is not counted.
            overwritten = not all(map(torch.equal, tensors, kept.inputs))
        if overwritten:
            if copy:
                self._overwriting.add(stage)
            else:
                self._note_overwriting(stage)
        return outputs

    def _note_overwriting(self, stage: int) -> None:
        self._overwriting.add(stage)
        self.unexpected = "a layer wrote to the stage's inputs in place, which none did before"

    def _refuse_overlapping_writes(
        self,
        stage: int,
        tensors: Sequence[Tensor],
        versions: Sequence[int],
        overlapping: Sequence[int],
    ) -> None:
        """Raise a ValueError if layers wrote in place to an input that shares memory with another.

        Without a boundary both would have changed. Behind it they are two tensors, and only one has
        changed.
        """
        now = _versions(tensors)
        for n in overlapping:
            if now[n] != versions[n]:
                first = self.names[self.indices.index(self._layers[stage][0][0])]
                raise ValueError(
                    f"layer {first} or one behind it writes in place to tensor {n} of what "
                    "enters this stage, which shares memory with another tensor there (one is a "
                    "view of the other): across a stage boundary they are separate; clone() one "
                    "of them, or choose a balance that keeps these layers together"
                )

    def _last(self, cell: Cell) -> list[_Call]:
        """The head, if the stage has it, as a call; to random state it is one more layer."""
        stage, i = cell
        if self.head is None or stage != self._last_stage:
            return []
        return [(self.head_index, partial(self.head, i), self._head_draws)]

    @contextmanager
    def generators_preserved(self, *, watch: bool) -> Iterator[None]:
        """Around a step: put the user's generators of random numbers back at its end.

        Args:
            watch: note it if a layer draws from a generator that it was not known to draw from.
        """
        if self.probing:
            self._others = rng.other_sources()
        seeded = self._others.keys() if self.probing else self._drawn
        # F and R would draw different numbers from a generator that is not seeded for both.
        watched = self._others.keys() - seeded - self._drawn_elsewhere if watch else set[str]()
        preserved = rng.preserved(self.device, [self._others[name] for name in seeded])
        unmoved = rng.unmoved({name: self._others[name] for name in watched})
        with preserved, unmoved as moved:
            yield
        if moved:
            self._suspected = set(moved)
            self.unexpected = (
                f"a layer drew from {moved[0]}'s random numbers, which none did before"
            )
        elif self.probing:
            self._drawn_elsewhere |= self._suspected - self._drawn
            self._suspected = set()

    def _through(self, i: int, value: Tree, calls: Sequence[_Call]) -> Tree:
        """Run layers one after the other, each with the random state of (step, i, layer)."""
        kind, dtype = self.device.type, self.autocast
        requiring: _Requiring = []
        with nullcontext() if dtype is None else torch.autocast(kind, dtype):
            for index, call, draws in calls:
                seed = rng.hashed(self.seed, self.step, self.first + i, index)
                names = self._others if self.probing else draws & self._drawn
                rng.reseed(seed, self.device, [self._others[name] for name in names])
                value = call(value)
                if torch.is_grad_enabled():
                    requiring.append(settle_gradients(value))
                if self.probing:
                    moved = [name for name, s in self._others.items() if s.has_moved(seed)]
                    draws.update(moved)
                    self._drawn |= draws & self._others.keys()
        if requiring:
            self._requiring = requiring
        return value


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """How often each was written to in place; 0 for inference tensors, which do not count it."""
    return [0 if t.is_inference() else t._version for t in tensors]
