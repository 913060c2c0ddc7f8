"""What a message between stages holds: its description, which is learnt once, and how tensors must lie in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from repro.gpipe.core.microbatch import Slot, Tree, flatten, leaves
from repro.gpipe.errors import shown

_ALIGNED = 64  # bytes, torch's own for what it allocates
CONSTANTS = (Slot, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Everything a receiver must know to make room for a tensor.

    It crosses without gaps, with the strides `layout`, to memory that is aligned. Where the
    sender's `stride` is another one, or its memory begins `offset` bytes behind an aligned address,
    the receiver lays the tensor out anew, since a neighbour must compute the same bits as the
    sender would.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    layout: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    offset: int = field(default=0, repr=False)

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorMeta":
        """Describe a tensor."""
        shape, offset = tuple(tensor.shape), offset_of(tensor)
        return cls(
            shape, tensor.stride(), layout_of(tensor), tensor.dtype, tensor.requires_grad, offset
        )

    @property
    def nbytes(self) -> int:
        """Bytes that cross."""
        return prod(self.shape) * self.dtype.itemsize

    def room(self, device: torch.device, *, pinned: bool = False) -> Tensor:
        """An empty tensor to receive into."""
        return torch.empty_strided(
            self.shape, self.layout, dtype=self.dtype, device=device, pin_memory=pinned
        )

    def restored(self, arrived: Tensor) -> Tensor:
        """The tensor as the sender had it: with its gaps, its repeats where it was expanded, and its alignment."""
        if self.stride == self.layout and not self.offset:
            return arrived
        repeated = [d for d, stride in enumerate(self.stride) if stride == 0 and self.shape[d] > 1]
        for d in repeated:
            arrived = arrived.narrow(d, 0, 1)
        return _placed(arrived, self.stride, self.offset).expand(self.shape)


@dataclass(frozen=True)
class MessageMeta:
    """The tensors of one message and the structure they stand in.

    `overlapping` numbers the tensors that share memory with others of the message.
    """

    tensors: tuple[TensorMeta, ...]
    skeleton: Tree
    overlapping: tuple[int, ...] = ()

    @classmethod
    def of(cls, tree: Tree) -> "MessageMeta":
        """Describe what will be sent.

        Raises:
            ValueError: if the structure holds no tensor, or an object that is neither a tensor nor
                a plain constant.
        """
        tensors, skeleton = flatten(tree)
        if not tensors:
            raise ValueError(
                f"a layer returned {shown(tree)} at a stage boundary, which holds no tensor for "
                "the next stage to compute on; check that the last layer of this stage has a "
                "return statement"
            )
        for leaf in leaves(skeleton):
            if not isinstance(leaf, CONSTANTS):
                raise ValueError(
                    f"a layer returned a {type(leaf).__name__} at a stage boundary: only tensors, "
                    "numbers, strings and None, in tuples, lists or dicts, can cross; unpack it, "
                    "or choose a balance that keeps it inside"
                )
        return cls(tuple(TensorMeta.of(t) for t in tensors), skeleton, overlapping(tensors))

    def describes(self, tensors: Sequence[Tensor], skeleton: Tree) -> bool:
        """Whether shapes, strides, types and constants are those of these tensors."""
        return (
            len(tensors) == len(self.tensors)
            and skeleton == self.skeleton
            and all(map(_fits, self.tensors, tensors))
        )

    def gradients(self, *, flags: bool = False) -> "MessageMeta":
        """The message that comes back: a gradient for each tensor that requires one; with flags, one byte for each.

        A gradient has no gaps and repeats nothing, also where the tensor does.
        """
        tensors = tuple(
            replace(m, stride=m.layout, offset=0) for m in self.tensors if m.requires_grad
        )
        if flags and tensors:
            tensors += (TensorMeta((len(tensors),), (1,), (1,), torch.uint8, requires_grad=False),)
        return MessageMeta(tensors, None)


def overlapping(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Numbers of the tensors of which some memory is that of another one, too."""
    spans = [(t.untyped_storage().data_ptr(), *_extent(t)) for t in tensors]
    found: set[int] = set()
    for b, (storage, first, end) in enumerate(spans):
        for a in range(b):
            other, other_first, other_end = spans[a]
            if (
                storage == other
                and first < other_end
                and other_first < end
                and _share_bytes(tensors[a], tensors[b])
            ):
                found |= {a, b}
    return tuple(sorted(found))


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first byte of its storage that a tensor uses, and the one behind its last."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return first, first
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


def _share_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common: parts of a split tensor lie between each other."""
    begin = min(_extent(a)[0], _extent(b)[0])
    numbers = torch.arange(max(_extent(a)[1], _extent(b)[1]) - begin)

    def bytes_of(t: Tensor) -> Tensor:
        size = t.element_size()
        strides = [stride * size for stride in t.stride()]
        return numbers.as_strided(
            (*t.shape, size), (*strides, 1), t.storage_offset() * size - begin
        )

    used = torch.zeros(len(numbers), dtype=torch.bool)
    used[bytes_of(a)] = True
    return bool(used[bytes_of(b)].any())


def _fits(meta: TensorMeta, tensor: Tensor) -> bool:
    return (
        tensor.shape == meta.shape and tensor.stride() == meta.stride and tensor.dtype == meta.dtype
    )


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(
        (s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it has gaps or overlaps, or where its memory holds the conjugate or the negative."""
    return (tensor if is_dense(tensor) else tensor.contiguous()).resolve_conj().resolve_neg()


def settled(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it does not lie in memory as a fresh one would.

    The last bits of a product depend on how its operands are aligned, and a slice of a mini-batch
    begins anywhere.
    """
    return dense(tensor) if tensor.data_ptr() % _ALIGNED == 0 else dense(tensor).clone()


def copied(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as the tensor does; a repeated one itself, since nothing can write to it."""
    if tensor.is_sparse or (is_dense(tensor) and not offset_of(tensor)):
        return tensor.clone()
    if any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return tensor
    return _placed(tensor, tensor.stride(), offset_of(tensor))


def layout_of(tensor: Tensor) -> tuple[int, ...]:
    """The strides of the tensor's gradient: its own, or those of a contiguous tensor where it has gaps or overlaps."""
    return (
        tensor.stride() if is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
    )


def offset_of(tensor: Tensor) -> int:
    """Bytes from the last aligned address to the tensor's first element; torch aligns every storage."""
    return int(tensor.storage_offset()) * tensor.element_size() % _ALIGNED


def _placed(tensor: Tensor, stride: Sequence[int], offset: int) -> Tensor:
    """A copy with these strides that begins `offset` bytes behind an aligned address."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, stride, strict=True))
    first = offset // tensor.element_size()
    room = tensor.new_empty(first + max(extent, 0))
    return room.set_(room.untyped_storage(), first, tensor.shape, tuple(stride)).copy_(tensor)


def settle_gradients(tree: Tree) -> list[bool]:
    """Let the gradients of these tensors lie in memory as those that come back across a stage boundary.

    Returns which of them require a gradient.

    autograd may hand a layer a gradient with gaps, repeats or other strides, for example where the
    next layer is a mean or a slice. A boundary removes these, and the last bits of what is computed
    from a gradient may depend on them. So they are removed behind every layer, whether a boundary
    is there or not.
    """
    tensors, _ = flatten(tree)
    for tensor in tensors:
        if tensor.grad_fn is not None and tensor.layout == torch.strided and not tensor.is_nested:
            tensor.register_hook(partial(_settled_gradient, layout_of(tensor)))
    return [tensor.requires_grad for tensor in tensors]


def _settled_gradient(layout: tuple[int, ...], gradient: Tensor) -> Tensor:
    if gradient.stride() == layout and settled(gradient) is gradient:
        return gradient
    return torch.empty_strided(
        gradient.shape, layout, dtype=gradient.dtype, device=gradient.device
    ).copy_(gradient)


def elements(tensor: Tensor) -> Tensor:
    """A dense tensor's bytes as they lie in memory: a flat view. Not every backend knows every number format."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
