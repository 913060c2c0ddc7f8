"""A model on fake tensors: what each distinct layer computes, saves and keeps, traced once.

Counted are the bytes of tensors; what kernels take for themselves is not seen.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repro.costs.fake import Zoo, refusal
from repro.costs.trace import Boundary, Op, Pass, Recorder, trace
from repro.gpipe.core.layers import Layer
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import Tree, flatten, map_leaves, unwrapped
from repro.gpipe.exact.batchnorm import BATCH_NORMS, INSTANCE_NORMS, Statistics, owns

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class LayerCost:
    """One layer's parameters, and what F and B of one micro-batch compute; R computes what F does.

    Attributes:
        parameters: how many.
        forward: operators of F.
        backward: operators of B.
        saved: bytes that the graph keeps between F or R and B, the layer's inputs left out.
        output: bytes of what the layer returns.
    """

    parameters: int
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    saved: int
    output: int


@dataclass(frozen=True)
class Resident:
    """Bytes of one layer.

    Attributes:
        parameters: stay.
        buffers: stay.
        optimizer: its state, stays.
        update: what the optimizer takes besides while it updates one of the parameters.
        updated: what it moves for all of them: parameters and its state read and written, gradients
            read.
    """

    parameters: int
    buffers: int
    optimizer: int
    update: int
    updated: int


class Counter:
    """A model on fake tensors, of which any cut and any schedule can be counted.

    Args:
        layers: as `Pipeline` takes them.
        loss: (outputs, targets) of a micro-batch -> its mean loss.
        optimizer: makes one from parameters; None: no update.
        like: another counter on the same device, whose traces of layers that both have are used.
        device: whose operators are counted: "cpu", or "cuda" where there is a GPU.

    Raises:
        ValueError: one line, naming a layer that cannot be built without memory.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        optimizer: Optimizer | None = None,
        like: "Counter | None" = None,
        device: str = "cpu",
    ) -> None:
        self._layers = layers
        self._loss = loss
        self._optimizer = optimizer
        like = like if like and like._zoo.device == device else None
        self._zoo = like._zoo if like else Zoo(device)
        self._passes: dict[Hashable, Pass] = like._passes if like else {}
        self._residents: dict[Hashable, Resident] = like._residents if like else {}
        self._states: dict[Hashable, tuple[int, int]] = like._states if like else {}
        self._memos: dict[Hashable, dict[Hashable, Any]] = like._memos if like else {}
        self._loss_kind, self._optimizer_kind = self._zoo.same(loss), self._zoo.same(optimizer)
        # see `stage_memory.walk`
        self.memo = self._memos.setdefault((self._loss_kind, self._optimizer_kind), {})
        self.kinds = tuple(self._zoo.kinds(layers))
        self._chains: dict[Hashable, list[Boundary]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def boundaries(self, part: Tree) -> list[Boundary]:
        """What goes into each layer for one micro-batch, and, last, what comes out."""
        first = Boundary.of(part)
        if first.key not in self._chains:
            chain = [first]
            for index in range(len(self)):
                chain.append(self._pass(index, chain[-1], graph=True, counting=False).result)
            self._chains[first.key] = chain
        return self._chains[first.key]

    def layer(self, index: int, part: Tree, *, graph: bool, counting: bool = False) -> Pass:
        """How one layer passes a micro-batch, of which `part` is what the first layer gets.

        Raises:
            ValueError: one line, naming a layer that does not work on fake tensors.
        """
        return self._pass(index, self.boundaries(part)[index], graph=graph, counting=counting)

    def _pass(self, index: int, inputs: Boundary, *, graph: bool, counting: bool) -> Pass:
        kind = self.kinds[index]
        counting = counting and self._counts(kind)
        key = (kind, inputs.key, graph, counting)
        if key not in self._passes:
            try:
                with self._zoo.inside():
                    module = self._zoo.modules[kind]
                    self._passes[key] = trace(module, inputs, graph=graph, counting=counting)
            except Exception as error:
                raise refusal(
                    f"layers[{index}]", self._layers[index], "cannot be counted", error
                ) from error
        return self._passes[key]

    def _counts(self, kind: int) -> bool:
        """Whether a kind of layer has running statistics."""
        return any(
            isinstance(part, BATCH_NORMS + INSTANCE_NORMS)
            for part in self._zoo.modules[kind].modules()
        )

    def head(self, part: Tree, targets: Tree, *, graph: bool) -> Pass:
        """The loss of a micro-batch as one more layer."""
        outputs, wanted = self.boundaries(part)[-1], Boundary.of(targets)
        key = (self._loss_kind, outputs.key, wanted.key, graph)
        if key not in self._passes:
            try:
                with self._zoo.inside():
                    fakes = map_leaves(
                        Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), unwrapped(targets)
                    )
                    call = partial(_called, self._loss, fakes)
                    resident = flatten(fakes)[0]
                    self._passes[key] = trace(
                        call, outputs, graph=graph, counting=False, resident=resident
                    )
            except Exception as error:
                raise refusal("loss", self._loss, "cannot be counted", error) from error
        return self._passes[key]

    def resident(self, index: int) -> Resident:
        """What one layer keeps all the time."""
        kind = self.kinds[index]
        key = (kind, self._optimizer_kind)
        if key not in self._residents:
            module = self._zoo.modules[kind]
            statistics = Statistics(module)  # which has buffers of its own during a step
            statistics.restore()
            trained = [
                p for p in module.parameters() if p.requires_grad and self._optimizer is not None
            ]
            states = [self._state(p) for p in trained]
            state = sum(held for held, _ in states)
            self._residents[key] = Resident(
                sum(p.nbytes for p in module.parameters()),
                sum(b.nbytes for b in module.buffers()) + statistics.nbytes + _kept_copies(module),
                state,
                max((update for _, update in states), default=0),
                3 * sum(p.nbytes for p in trained) + 2 * state,
            )
        return self._residents[key]

    def _state(self, parameter: nn.Parameter) -> tuple[int, int]:
        """As `_state`, once for each shape."""
        key = (self._optimizer_kind, parameter.shape, parameter.dtype)
        if key not in self._states:
            assert self._optimizer is not None
            with self._zoo.inside():
                self._states[key] = _state(parameter, self._optimizer)
        return self._states[key]

    def cost(self, index: int, part: Tree) -> LayerCost:
        """One layer's costs on a micro-batch."""
        found = self.layer(index, part, graph=True)
        module = self._zoo.modules[self.kinds[index]]
        parameters = sum(p.numel() for p in module.parameters())
        return LayerCost(
            parameters, found.ops, found.ops_backward, found.saved, found.result.nbytes
        )

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        sizes = [sum(p.numel() for p in module.parameters()) for module in self._zoo.modules]
        return sum(sizes[kind] for kind in self.kinds)


def _kept_copies(module: nn.Module) -> int:
    """Bytes of the copies that a stage keeps of buffers that no forward changes; see `repro.gpipe.exact.buffers`."""
    named = (
        (part, name, b)
        for part in module.modules()
        for name, b in part.named_buffers(recurse=False)
    )
    return sum(b.nbytes for part, name, b in named if not owns(part, name))


def _called(loss: Loss, targets: Tree, outputs: Tree) -> Tensor:
    return loss(outputs, targets)


def _state(parameter: nn.Parameter, optimizer: Optimizer) -> tuple[int, int]:
    """Bytes of an optimizer's state for one parameter, and what its update takes besides."""
    alone = nn.Parameter(torch.empty_like(parameter))
    alone.grad = torch.empty_like(alone)
    made = optimizer([alone])
    made.step()  # which begins its state
    held = flatten([*made.state.values()])[0]
    with Recorder([alone, alone.grad, *held]) as recorder:
        before = recorder.now
        made.step()
    return sum(t.nbytes for t in held), recorder.peak - before
