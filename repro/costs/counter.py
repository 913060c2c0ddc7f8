"""A model on fake tensors: what each distinct layer computes, saves and keeps, traced once.

The bytes of tensors are counted. Workspaces of kernels are not seen.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.costs.fake import FakeLayers, refusal
from repro.costs.trace import Boundary, Op, Pass, Recorder, trace
from repro.gpipe.core.layers import Layer
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import Tree, flatten, map_leaves, unwrapped
from repro.gpipe.exact.batchnorm import BATCH_NORMS, INSTANCE_NORMS, Statistics, owns

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class LayerCost:
    """Costs of one layer in F and B of one micro-batch; R costs what F does.

    Attributes:
        parameters: number of parameters.
        forward: operators of F.
        backward: operators of B.
        saved: bytes that the graph keeps from F or R to B, without the layer's inputs.
        output: bytes that the layer returns.
    """

    parameters: int
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    saved: int
    output: int


@dataclass(frozen=True)
class Resident:
    """Bytes that one layer occupies all the time, and bytes of its update.

    Attributes:
        parameters: of the parameters.
        buffers: of the buffers.
        optimizer: of the optimizer's state.
        update: temporary bytes while the optimizer updates one parameter.
        updated: bytes that the update reads and writes: parameters and state read and written,
            gradients read.
    """

    parameters: int
    buffers: int
    optimizer: int
    update: int
    updated: int


class _Known:
    """What counters on one device share: layers on fake tensors, and all that was found of them."""

    def __init__(self, device: str) -> None:
        self.fakes = FakeLayers(device)
        self.passes: dict[Hashable, Pass] = {}
        self.residents: dict[Hashable, Resident] = {}
        self.states: dict[Hashable, tuple[int, int]] = {}
        self.memos: dict[Hashable, dict[Hashable, Any]] = {}


class Counter:
    """A model on fake tensors, from which the memory of any cut and schedule can be counted.

    Traces of another counter, `like`, are used again if it is on the same device: "cpu", or "cuda"
    if there is a GPU, whose operators are counted then.
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
        again = like is not None and like._fakes.device == device
        self._known = like._known if like and again else _Known(device)
        self._fakes = self._known.fakes
        self._loss_kind, self._optimizer_kind = self._fakes.same(loss), self._fakes.same(optimizer)
        # Results of `stage_memory.peak_memory`.
        self.memo = self._known.memos.setdefault((self._loss_kind, self._optimizer_kind), {})
        self.kinds = tuple(self._fakes.kinds(layers))
        self._chains: dict[Hashable, list[Boundary]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def boundaries(self, part: Tree) -> list[Boundary]:
        """Boundaries of one micro-batch: the input of each layer, and the output of the last."""
        first = Boundary.of(part)
        if first.key not in self._chains:
            chain = [first]
            for index in range(len(self)):
                chain.append(self._pass(index, chain[-1], graph=True, counting=False).result)
            self._chains[first.key] = chain
        return self._chains[first.key]

    def layer(self, index: int, part: Tree, *, graph: bool, counting: bool = False) -> Pass:
        """Trace of one layer on a micro-batch, which is given as the first layer gets it.

        With a graph, B follows F. With `counting`, F leaves the statistics of its micro-batch, as
        it does and R does not.
        """
        return self._pass(index, self.boundaries(part)[index], graph=graph, counting=counting)

    def _pass(self, index: int, inputs: Boundary, *, graph: bool, counting: bool) -> Pass:
        module = self._fakes.modules[self.kinds[index]]
        counting = counting and any(
            isinstance(part, BATCH_NORMS + INSTANCE_NORMS) for part in module.modules()
        )
        return self._traced(
            (self.kinds[index], inputs.key, graph, counting),
            f"layers[{index}]",
            self._layers[index],
            lambda: trace(module, inputs, graph=graph, counting=counting),
        )

    def head(self, part: Tree, targets: Tree, *, graph: bool) -> Pass:
        """Trace of the loss of a micro-batch, as one more layer."""
        outputs = self.boundaries(part)[-1]

        def run() -> Pass:
            fakes = map_leaves(
                Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), unwrapped(targets)
            )
            layer: Any = nn.Module()
            layer.forward = lambda values: self._loss(values, fakes)
            resident = flatten(fakes)[0]
            return trace(layer, outputs, graph=graph, counting=False, resident=resident)

        key = (self._loss_kind, outputs.key, Boundary.of(targets).key, graph)
        return self._traced(key, "loss", self._loss, run)

    def _traced(self, key: Hashable, where: str, layer: object, run: Callable[[], Pass]) -> Pass:
        """A trace, made once for each key."""
        if key not in self._known.passes:
            try:
                with self._fakes.inside():
                    self._known.passes[key] = run()
            except Exception as error:
                raise refusal(where, layer, "cannot be counted", error) from error
        return self._known.passes[key]

    def resident(self, index: int) -> Resident:
        """Bytes that one layer occupies all the time."""
        kind = self.kinds[index]
        key = (kind, self._optimizer_kind)
        if key not in self._known.residents:
            module = self._fakes.modules[kind]
            statistics = Statistics(module.modules())  # allocates buffers that a step uses
            statistics.restore()
            trained: list[nn.Parameter] = []
            if self._optimizer is not None:
                trained = [p for p in module.parameters() if p.requires_grad]
            states = [self._optimizer_state(p) for p in trained]
            state_bytes = sum(state for state, _ in states)
            buffer_bytes = sum(b.nbytes for b in module.buffers())
            self._known.residents[key] = Resident(
                parameters=sum(p.nbytes for p in module.parameters()),
                buffers=buffer_bytes + statistics.nbytes + _kept_copies(module),
                optimizer=state_bytes,
                update=max((temporary for _, temporary in states), default=0),
                updated=3 * sum(p.nbytes for p in trained) + 2 * state_bytes,
            )
        return self._known.residents[key]

    def _optimizer_state(self, parameter: nn.Parameter) -> tuple[int, int]:
        """`_trace_optimizer`, once for each shape."""
        key = (self._optimizer_kind, parameter.shape, parameter.dtype)
        if key not in self._known.states:
            assert self._optimizer is not None
            with self._fakes.inside():
                self._known.states[key] = _trace_optimizer(parameter, self._optimizer)
        return self._known.states[key]

    def cost(self, index: int, part: Tree) -> LayerCost:
        """Costs of one layer on a micro-batch; see `layer`."""
        layer = self.layer(index, part, graph=True)
        module = self._fakes.modules[self.kinds[index]]
        parameters = sum(p.numel() for p in module.parameters())
        return LayerCost(
            parameters, layer.ops, layer.ops_backward, layer.saved, layer.result.nbytes
        )

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole model."""
        sizes = [sum(p.numel() for p in module.parameters()) for module in self._fakes.modules]
        return sum(sizes[kind] for kind in self.kinds)


def _kept_copies(module: nn.Module) -> int:
    """Bytes of the copies of buffers that a stage keeps; see `repro.gpipe.exact.buffers`."""
    total = 0
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if not owns(part, name):
                total += buffer.nbytes
    return total


def _trace_optimizer(parameter: nn.Parameter, make: Optimizer) -> tuple[int, int]:
    """Bytes of an optimizer's state for one parameter, and temporary bytes of its update."""
    copy = nn.Parameter(torch.empty_like(parameter))
    copy.grad = torch.empty_like(copy)
    optimizer = make([copy])
    optimizer.step()  # the first step allocates the state
    state = flatten([*optimizer.state.values()])[0]
    with Recorder([copy, copy.grad, *state]) as recorder:
        before = recorder.now
        optimizer.step()
    return sum(t.nbytes for t in state), recorder.peak - before
