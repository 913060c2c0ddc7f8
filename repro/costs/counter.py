"""A model on fake tensors: what each distinct layer computes, saves and keeps, traced once.

The bytes of tensors are counted. Workspaces of kernels are not seen.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repro.costs.fake import fake_layers, refusing
from repro.costs.trace import Pass, Recorder, form_of, trace
from repro.gpipe.comm.message import Form
from repro.gpipe.core.layers import Layer
from repro.gpipe.core.loss import Loss
from repro.gpipe.exact.batchnorm import BATCH_NORMS, Statistics
from repro.gpipe.tree import Tree, flatten, map_leaves, unwrapped

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Resident:
    """Bytes that one layer occupies all the time, and bytes of its update."""

    count: int  # number of its parameters
    parameters: int
    buffers: int
    optimizer: int  # its state
    update: int  # temporary bytes while the optimizer updates one parameter
    updated: int  # that the update reads and writes: gradients once, parameters and state twice


class Counter:
    """A model on fake tensors, from which the memory of any cut and schedule can be counted.

    The device is "cpu", or "cuda" if there is a GPU, whose operators are counted then. What a
    counter has found of a layer serves all later ones of this process.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        optimizer: Optimizer | None = None,
        device: str = "cpu",
    ) -> None:
        self._layers = layers
        self._loss = loss
        self._optimizer = optimizer
        self._fakes = fake_layers(device)
        self._loss_kind, self._optimizer_kind = self._fakes.same(loss), self._fakes.same(optimizer)
        self.kinds = tuple(self._fakes.kinds(layers))
        self._chains: dict[Hashable, list[Form]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def memory(self, key: Hashable, count: Callable[[], Any]) -> Any:
        """What is counted of stages with this loss and optimizer, counted once for each key."""
        return self._fakes.once(("memory", self._loss_kind, self._optimizer_kind, key), count)

    def boundaries(self, part: Tree) -> list[Form]:
        """Boundaries of one micro-batch: the input of each layer, and the output of the last."""
        first = form_of(part)
        if first.key not in self._chains:
            chain = [first]
            for index in range(len(self)):
                chain.append(self._pass(index, chain[-1], graph=True, counting=False).result)
            self._chains[first.key] = chain
        return self._chains[first.key]

    def layer(
        self,
        index: int,
        part: Tree,
        *,
        graph: bool = True,
        counting: bool = False,
        split: bool = False,
    ) -> Pass:
        """Trace of one layer on a micro-batch, which is given as the first layer gets it.

        With a graph, B follows F, or with `split` I and W. With `counting`, F leaves the statistics
        of its micro-batch, as it does and R does not.
        """
        inputs = self.boundaries(part)[index]
        return self._pass(index, inputs, graph=graph, counting=counting, split=split)

    def shares_of_W(self, part: Tree) -> list[float]:
        """W's part of the FLOPs of each layer's backward, which is that of I and W."""
        shares = list[float]()
        for index in range(len(self)):
            traced = self.layer(index, part, split=True)
            of_W = sum(op.flops for op in traced.ops_weights)
            whole = of_W + sum(op.flops for op in traced.ops_backward)
            shares.append(of_W / whole if of_W else 0.0)
        return shares

    def _pass(
        self, index: int, inputs: Form, *, graph: bool, counting: bool, split: bool = False
    ) -> Pass:
        module = self._fakes.modules[self.kinds[index]]
        counting = counting and any(isinstance(part, BATCH_NORMS) for part in module.modules())
        return self._traced(
            (self.kinds[index], inputs.key, graph, counting, split),
            f"layers[{index}]",
            self._layers[index],
            lambda: trace(module, inputs, graph=graph, counting=counting, split=split),
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

        key = (self._loss_kind, outputs.key, form_of(targets).key, graph)
        return self._traced(key, "loss", self._loss, run)

    def _traced(self, key: Hashable, where: str, layer: object, run: Callable[[], Pass]) -> Pass:
        def traced() -> Pass:
            with refusing(where, layer, "cannot be counted"), self._fakes.inside():
                return run()

        return self._fakes.once(("pass", key), traced)

    def resident(self, index: int) -> Resident:
        """Bytes that one layer occupies all the time."""
        kind = self.kinds[index]
        key = "resident", kind, self._optimizer_kind
        return self._fakes.once(key, lambda: self._count_resident(self._fakes.modules[kind]))

    def _count_resident(self, module: nn.Module) -> Resident:
        with self._fakes.inside():
            statistics = Statistics(module.modules())  # allocates buffers that a step uses
            kept = statistics.tensors
            statistics.restore()
        trained: list[nn.Parameter] = []
        if self._optimizer is not None:
            trained = [p for p in module.parameters() if p.requires_grad]
        states = [
            self._fakes.once(
                ("state", self._optimizer_kind, p.shape, p.dtype), partial(self._trace_optimizer, p)
            )
            for p in trained
        ]
        state_bytes = sum(state for state, _ in states)
        # A stage keeps a copy of each buffer, see `repro.gpipe.exact.state`.
        buffer_bytes = sum(t.nbytes for t in [*module.buffers(), *module.buffers(), *kept])
        return Resident(
            count=sum(p.numel() for p in module.parameters()),
            parameters=sum(p.nbytes for p in module.parameters()),
            buffers=buffer_bytes,
            optimizer=state_bytes,
            update=max((temporary for _, temporary in states), default=0),
            updated=3 * sum(p.nbytes for p in trained) + 2 * state_bytes,
        )

    def _trace_optimizer(self, parameter: nn.Parameter) -> tuple[int, int]:
        """Bytes of the optimizer's state for one parameter, and temporary bytes of its update."""
        assert self._optimizer is not None
        with self._fakes.inside():
            copy = nn.Parameter(torch.empty_like(parameter))
            copy.grad = torch.empty_like(copy)
            optimizer = self._optimizer([copy])
            optimizer.step()  # the first step allocates the state
            state = flatten([*optimizer.state.values()])[0]
            with Recorder([copy, copy.grad, *state]) as recorder:
                before = recorder.now
                optimizer.step()
        return sum(t.nbytes for t in state), recorder.peak - before

    @property
    def parameters(self) -> int:
        return sum(self.resident(index).count for index in range(len(self)))
