"""Trace of one layer on fake tensors: what its F, R and B do to memory, and what they compute.

The layer is run alone, on new inputs and, for B, new gradients of its outputs, to which nothing
else holds a reference. So the moment at which a storage ends shows how long the layer itself keeps
it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from repro.costs.products import Extents, extents
from repro.gpipe.comm.message import Form, TensorMeta
from repro.gpipe.core.memory import LiveBytes
from repro.gpipe.core.split import Later, backward_to_inputs, backward_to_weights
from repro.gpipe.exact.batchnorm import Statistics
from repro.gpipe.tree import Tree, flatten, unflatten

Event = tuple[int, int]  # (number of a storage, its bytes; negative where it ends)


class Step(NamedTuple):
    """What a pass does to memory: to one storage, or to a sum of inner ones.

    Inner storages are those that only the layer itself holds.
    """

    number: int | None  # of a storage; None for inner ones
    size: int  # bytes; negative where storages end
    kept: int = 0  # bytes of inner storages that stay after the pass, besides `size`


class Product(NamedTuple):
    """What W does to memory for one operator, whose gradient of the weights I has left out."""

    ended: tuple[int, ...]  # storages kept for it since I
    made: int  # bytes of the gradients of its weights, until they are added


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
    """Trace of one layer: of F alone, or of F with a graph and then B. Storages are numbered.

    Where backwards are split, what is said of B here is of I, and W has fields of its own.
    """

    forward: tuple[Step, ...]  # kept are running statistics and the like
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]  # some may be inputs
    ended: frozenset[int]  # storages that end when the caller drops the inputs and outputs
    backward: tuple[Step, ...]
    # The first time there are no gradients of parameters. What is added to them later becomes them
    # then, and is kept.
    first_backward: tuple[Step, ...]
    returned: tuple[int, ...]  # gradients of the outputs, in order, which B receives
    made: tuple[int | None, ...]  # gradients of the inputs, in order; None where there is none
    ops: tuple[Op, ...]  # of F
    ops_backward: tuple[Op, ...]
    result: Form  # behind the layer
    products: tuple[Product, ...] = ()  # of W, in order
    ops_weights: tuple[Op, ...] = ()


def _steps(
    events: Iterable[Event], shared: Collection[int], kept: Collection[int] = ()
) -> tuple[Step, ...]:
    """The events, where those of inner storages between two of `shared` ones become two steps.

    These are up to the greatest sum, and from there to what is left.
    """
    steps: list[Step] = []
    for is_shared, run in groupby(events, lambda event: event[0] in shared):
        if is_shared:
            steps += [Step(number, size) for number, size in run]
            continue
        sums = [(0, 0)]
        for number, size in run:
            passing, staying = sums[-1]
            is_kept = number in kept
            sums.append((passing, staying + size) if is_kept else (passing + size, staying))
        top, net = max(sums, key=sum), sums[-1]
        steps += [Step(None, *top), Step(None, net[0] - top[0], net[1] - top[1])]
    return tuple(steps)


def form_of(tree: Tree) -> Form:
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
        if "rnn_layer" in name or name.endswith("_rnn"):
            # Of oneDNN, cuDNN and MIOpen (torch 2.15).
            raise ValueError(f"{name} on fake tensors leaves out what it keeps for its backward")
        product = extents(name, args, result) if flops else None
        self.ops.append(Op(name, flops, bytes_read, bytes_written, product))


def trace(
    module: nn.Module,
    inputs: Form,
    *,
    graph: bool,
    counting: bool,
    split: bool = False,
    resident: Iterable[Tensor] = (),
) -> Pass:
    """Run a layer once; to be called inside the layer's fake mode.

    With a graph, B follows F, or with `split` I and W. With `counting`, F leaves the statistics of
    its micro-batch, as it does and R does not. Resident tensors lie in memory already.
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
    with ExitStack() as stack:
        stack.callback(statistics.restore)
        added: list[int] = []
        for parameter in parameters:
            if parameter.requires_grad:
                hook = parameter.register_hook(lambda g: added.append(recorder.number(g)))
                stack.callback(hook.remove)
        # Else the backward of a GPU's tensors runs in a thread of the device, which does not know
        # the default device of `FakeLayers.inside`, and may free what it used later.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(recorder)
        stack.enter_context(torch.enable_grad() if graph else torch.no_grad())
        return _traced(module, inputs, recorder, added, graph=graph, split=split)


def _traced(
    module: nn.Module,
    inputs: Form,
    recorder: Recorder,
    added: list[int],
    *,
    graph: bool,
    split: bool,
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
    root, later = None, []
    if graph:  # nothing, whose B gives every output a new gradient that nothing else holds
        trained = [t for t in outputs if t.requires_grad]
        root = _Tail.apply(lambda g: returned.extend(map(recorder.number, g)), *trained)
        del trained
    recorder.take()
    del values, value, outputs
    ended = frozenset(number for number, size in recorder.take()[0] if size < 0)
    if root is not None and root.requires_grad:
        roots, gradients = [root], [torch.ones_like(root)]
        if split:
            later = backward_to_inputs(roots, gradients, [])
        else:
            torch.autograd.backward(roots, gradients)
        del roots, gradients
    del root
    backward, ops_backward = recorder.take()
    products, ops_weights = _products(later, recorder)
    kept_for_W = {number for product in products for number in product.ended}
    given = {*numbers, *output_numbers, *kept_for_W}
    shared = {*given, *returned, *(number for number in made if number is not None)}
    passing = ended | kept_for_W | {number for number, size in forward + backward if size < 0}
    left = {number for number, _ in forward} - passing
    becoming = set(added) - shared
    first_backward = [(n, size) for n, size in backward if n not in becoming or size > 0]
    # A gradient that others hold too, as where a parameter is handed on, is copied: a new storage.
    kept = shared & {*added}
    copied = [(-1, size) for n, size in forward + backward if n in kept and size > 0]
    return Pass(
        forward=_steps(forward, given, left),
        inputs=numbers,
        outputs=output_numbers,
        ended=ended,
        backward=_steps(backward, shared),
        first_backward=_steps([*first_backward, *copied], shared, {*becoming, -1}),
        returned=tuple(returned),
        made=tuple(made),
        ops=ops,
        # The first operator made the root's gradient, which is the trace's and not the layer's.
        ops_backward=ops_backward[1:],
        result=result,
        products=products,
        ops_weights=ops_weights,
    )


def _products(later: Later, recorder: Recorder) -> tuple[tuple[Product, ...], tuple[Op, ...]]:
    """W of one operator after the other."""
    products, all_ops = list[Product](), list[Op]()
    while later:
        backward_to_weights([later.pop(0)])
        events, ops = recorder.take()
        made = {number: size for number, size in events if size > 0}
        ended = tuple(number for number, size in events if size < 0 and number not in made)
        products.append(Product(ended, sum(made.values())))
        all_ops += ops
    return tuple(products), tuple(all_ops)


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
        ctx.metas = [(TensorMeta.of(t), t.device) for t in outputs]
        ctx.took = took
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = [meta.room(device) for meta, device in ctx.metas]
        ctx.took(grads)
        return None, *grads
