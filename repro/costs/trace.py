"""Trace of one layer on fake tensors: what its F, R and B do to memory, and what they compute.

The layer is run alone, on new inputs and, for B, new gradients of its outputs, to which nothing
else holds a reference. So the moment at which a storage ends shows how long the layer itself keeps
it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from repro.costs.products import Extents, extents
from repro.gpipe.comm.message import Form, TensorMeta
from repro.gpipe.core.memory import LiveBytes
from repro.gpipe.core.microbatch import Tree, flatten, unflatten
from repro.gpipe.exact.batchnorm import Statistics

Event = tuple[int, int]  # (number of a storage, its bytes; negative where it ends)
Sums = tuple[int, int]  # bytes of storages that end during a pass, and of those that are kept


@dataclass(frozen=True)
class InnerStorages:
    """Storages that only the layer itself holds, over a number of events."""

    most: Sums  # at the moment when their sum is greatest
    net: Sums  # after the last event


@dataclass(frozen=True)
class Op:
    """One operator."""

    name: str
    flops: int  # a multiply-add counts as two
    read: int  # bytes of all its inputs, also where it looks only some elements up
    written: int  # bytes of its outputs
    product: Extents | None = None  # of its matrix products, if it multiplies matrices


@dataclass(frozen=True)
class Pass:
    """Trace of one layer: of F alone, or of F with a graph and then B. Storages are numbered."""

    forward: tuple[Event, ...]  # storages that begin and end in F
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]  # some may be inputs
    ended: frozenset[int]  # storages that end when the caller drops the inputs and outputs
    backward: tuple[Event, ...]  # storages that begin and end in B, gradients of inputs included
    returned: tuple[int, ...]  # gradients of the outputs, in order, which B receives
    made: tuple[int | None, ...]  # gradients of the inputs, in order; None where there is none
    # Storages that are added to existing gradients of parameters. The first time there are no
    # gradients, and these storages become them.
    gradients: frozenset[int]
    ops: tuple[Op, ...]  # of F
    ops_backward: tuple[Op, ...]
    result: Form  # behind the layer

    @cached_property
    def forward_steps(self) -> tuple[Event | InnerStorages, ...]:
        """`forward`, with the events of inner storages combined."""
        begun = {number for number, size in self.forward if size > 0}
        left = begun - _ended(self.forward) - self.ended - _ended(self.backward)
        return _condensed(self.forward, {*self.inputs, *self.outputs}, left)

    @cached_property
    def backward_steps(self) -> tuple[Event | InnerStorages, ...]:
        """`backward`, with the events of inner storages combined; gradients are not inner."""
        return _condensed(self.backward, self._shared, set())

    @cached_property
    def first_backward_steps(self) -> tuple[Event | InnerStorages, ...]:
        """`backward_steps` where the parameters have no gradients yet."""
        kept = self.gradients - self._shared
        events = (event for event in self.backward if event[0] not in kept or event[1] > 0)
        return _condensed(events, self._shared, set(kept))

    @cached_property
    def _shared(self) -> set[int]:
        """Storages that the caller may hold too."""
        made = {number for number in self.made if number is not None}
        return {*self.inputs, *self.outputs, *self.returned, *made}


def _ended(events: Iterable[Event]) -> set[int]:
    return {number for number, size in events if size < 0}


def _condensed(
    events: Iterable[Event], shared: set[int], kept: set[int]
) -> tuple[Event | InnerStorages, ...]:
    """Combine the events between two events of shared storages."""
    steps: list[Event | InnerStorages] = []
    none = InnerStorages((0, 0), (0, 0))
    inner = none
    for number, size in events:
        if number in shared:
            if inner != none:
                steps.append(inner)
            steps.append((number, size))
            inner = none
            continue
        passing, staying = inner.net
        net = (passing, staying + size) if number in kept else (passing + size, staying)
        most = net if sum(net) > sum(inner.most) else inner.most
        inner = InnerStorages(most, net)
    if inner != none:
        steps.append(inner)
    return tuple(steps)


def form_of(tree: Tree) -> Form:
    """Description of the tensors that pass from one layer to the next."""
    tensors, skeleton = flatten(tree)
    return Form(tuple(map(TensorMeta.of, tensors)), skeleton)


def gradient_bytes(form: Form) -> int:
    """Bytes of the message that comes back across this boundary."""
    return sum(meta.nbytes for meta in form.tensors if meta.requires_grad)


class Recorder(LiveBytes):
    """Records when storages begin and end, and which operators run."""

    def __init__(self, resident: Iterable[Tensor] = ()) -> None:
        self.events: list[Event] = []
        self.ops: list[Op] = []
        self._numbers: dict[int, int] = {}
        self._count = 0
        super().__init__(resident)

    def number(self, tensor: Tensor) -> int:
        return self._numbers[tensor.untyped_storage()._cdata]

    def take(self) -> tuple[tuple[Event, ...], tuple[Op, ...]]:
        """Events and operators since the last call."""
        taken = tuple(self.events), tuple(self.ops)
        self.events.clear()
        self.ops.clear()
        return taken

    def began(self, key: int, size: int) -> None:
        self._numbers[key] = self._count
        self.events.append((self._count, size))
        self._count += 1

    def ended(self, key: int, size: int) -> None:
        self.events.append((self._numbers.pop(key), -size))

    def ran(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        ins, outs = flatten((args, kwargs))[0], flatten(result)[0]
        read = {t.untyped_storage()._cdata: t for t in ins}
        written = [t for t in outs if t.untyped_storage()._cdata not in read]
        changes = func._schema.is_mutable
        if not changes and not written:
            return  # a view
        flops = 0
        count_flops = flop_registry.get(func._overloadpacket)
        if count_flops is not None:
            flops = int(count_flops(*args, **kwargs, out_val=result))
        bytes_read = sum(t.nbytes for t in ins)
        bytes_written = sum(t.nbytes for t in written or outs)
        if func.name().startswith(("aten::empty", "aten::new_empty")):  # only allocates
            bytes_read = bytes_written = 0
        name = func.name().removeprefix("aten::")
        product = extents(name, args, result) if flops else None
        self.ops.append(Op(name, flops, bytes_read, bytes_written, product))


def trace(
    module: nn.Module,
    inputs: Form,
    *,
    graph: bool,
    counting: bool,
    resident: Iterable[Tensor] = (),
) -> Pass:
    """Run a layer once; to be called inside the layer's fake mode.

    With a graph, B follows F. With `counting`, F leaves the statistics of its micro-batch, as it
    does and R does not. Resident tensors lie in memory already.
    """
    parameters = list(module.parameters())
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    statistics = Statistics(module.modules())
    statistics.counting = counting
    gradients = [p.grad for p in parameters if p.grad is not None]
    recorder = Recorder(
        [*resident, *parameters, *gradients, *module.buffers(), *statistics.tensors]
    )
    del gradients
    added = list[int]()
    hooks = [
        p.register_hook(lambda g: added.append(recorder.number(g)))
        for p in parameters
        if p.requires_grad
    ]
    try:
        with recorder, torch.enable_grad() if graph else torch.no_grad():
            return _traced(module, inputs, recorder, added, graph=graph)
    finally:
        for hook in hooks:
            hook.remove()
        statistics.restore()


def _traced(
    module: Callable[[Any], Any],
    inputs: Form,
    recorder: Recorder,
    added: list[int],
    *,
    graph: bool,
) -> Pass:
    made: list[int | None] = []
    returned: list[int] = []

    def note_made(gradients: Sequence[Tensor | None]) -> None:
        made.extend(None if g is None else recorder.number(g) for g in gradients)

    values = _fresh(inputs, graph, note_made)
    numbers = tuple(recorder.number(t) for t in values)
    recorder.take()
    value = module(unflatten(values, inputs.skeleton))
    outputs = flatten(value)[0]
    forward, ops = recorder.take()
    result = form_of(value)
    output_numbers = tuple(recorder.number(t) for t in outputs)
    root = None
    if graph:  # a scalar whose B gives every output a new gradient that nothing else holds
        trained = [t for t in outputs if t.requires_grad]
        root = _Tail.apply(lambda g: returned.extend(map(recorder.number, g)), *trained)
        del trained
    recorder.take()
    del values, value, outputs
    ended = frozenset(number for number, size in recorder.take()[0] if size < 0)
    if root is not None and root.requires_grad:
        root.backward()
    backward, ops_backward = recorder.take()
    return Pass(
        forward=forward,
        inputs=numbers,
        outputs=output_numbers,
        ended=ended,
        backward=backward,
        returned=tuple(returned),
        made=tuple(made),
        gradients=frozenset(added),
        ops=ops,
        # The first operator made the root's gradient, which is the trace's and not the layer's.
        ops_backward=ops_backward[1:],
        result=result,
    )


def _fresh(inputs: Form, graph: bool, took: Callable[[Any], None]) -> list[Tensor]:
    """New inputs that nothing else holds, not even the graph, which would hold leaves."""

    def make() -> tuple[Tensor, ...]:
        return tuple(torch.empty_strided(m.shape, m.stride, dtype=m.dtype) for m in inputs.tensors)

    trained = [meta.requires_grad for meta in inputs.tensors]
    if not graph or not any(trained):
        return [*make()]
    return [*_Lead.apply(torch.empty(0, requires_grad=True), make, trained, took)]


class _Lead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, make: Any, trained: list[bool], took: Any
    ) -> tuple[Tensor, ...]:
        made = make()
        ctx.mark_non_differentiable(
            *(t for t, wanted in zip(made, trained, strict=True) if not wanted)
        )
        ctx.set_materialize_grads(False)
        ctx.took, ctx.trained = took, trained
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        ctx.took([g for g, wanted in zip(grads, ctx.trained, strict=True) if wanted])
        return None, None, None, None


class _Tail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, took: Any, *outputs: Tensor) -> Tensor:
        ctx.metas = [TensorMeta.of(t) for t in outputs]
        ctx.took = took
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = [torch.empty_strided(m.shape, m.layout, dtype=m.dtype) for m in ctx.metas]
        ctx.took(grads)
        return None, *grads
