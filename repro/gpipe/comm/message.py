"""Descriptions of the messages between stages, and the memory layout that tensors have in them.

A stage learns the description of a message once. The layout matters because a neighbour must
compute the same bits as the sender would: the last bits of a product depend on the strides and the
alignment of its operands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from repro.gpipe.core.microbatch import Slot, Tree, flatten, leaves
from repro.io.untrusted import short

_ALIGNED = 64  # bytes; torch aligns every storage that it allocates to so many
CONSTANTS = (Slot, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Description of one tensor of a message, from which a receiver allocates memory for it.

    A tensor is sent without gaps, with the strides `layout`, and received in aligned memory. Where
    the sender's strides or alignment are different, the receiver copies the tensor into the
    sender's layout.

    Attributes:
        shape: sizes of the dimensions.
        stride: strides that the tensor has at the sender.
        layout: strides that the tensor has in the message.
        dtype: type of its elements.
        requires_grad: whether a gradient comes back for it.
        offset: bytes from an aligned address to the first element at the sender.
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
        return cls(
            tuple(tensor.shape),
            tensor.stride(),
            layout_of(tensor),
            tensor.dtype,
            tensor.requires_grad,
            offset_of(tensor),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in a message."""
        return prod(self.shape) * self.dtype.itemsize

    def room(self, device: torch.device, *, pinned: bool = False) -> Tensor:
        """An empty tensor to receive into."""
        return torch.empty_strided(
            self.shape, self.layout, dtype=self.dtype, device=device, pin_memory=pinned
        )

    def restored(self, arrived: Tensor) -> Tensor:
        """A received tensor in the sender's layout: its gaps, expanded dimensions and alignment."""
        if self.stride == self.layout and not self.offset:
            return arrived
        # Of a dimension that the sender had expanded, one slice is laid out and expanded again.
        for d, (size, stride) in enumerate(zip(self.shape, self.stride, strict=True)):
            if stride == 0 and size > 1:
                arrived = arrived.narrow(d, 0, 1)
        return _placed(arrived, self.stride, self.offset).expand(self.shape)


@dataclass(frozen=True)
class MessageMeta:
    """Description of one message.

    Attributes:
        tensors: its tensors, in order.
        skeleton: the structure that holds them.
        overlapping: indices of the tensors that share memory with another tensor of the message.
    """

    tensors: tuple[TensorMeta, ...]
    skeleton: Tree
    overlapping: tuple[int, ...] = ()

    @classmethod
    def of(cls, tree: Tree) -> "MessageMeta":
        """Describe what will be sent.

        Raises:
            ValueError: one line, if the structure holds no tensor, or an object that is neither a
                tensor nor a plain constant.
        """
        tensors, skeleton = flatten(tree)
        if not tensors:
            raise ValueError(
                f"a layer returned {short(tree)} at a stage boundary, which holds no tensor for "
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
        """Whether these tensors have the shapes, strides, types and constants of this message."""
        return (
            len(tensors) == len(self.tensors)
            and skeleton == self.skeleton
            and all(map(_fits, self.tensors, tensors))
        )

    def gradients(self, *, flags: bool = False) -> "MessageMeta":
        """Description of the message that comes back: a gradient for each tensor that requires one.

        A gradient has no gaps and no expanded dimensions, also where its tensor has.

        Args:
            flags: whether one byte for each gradient follows them, in one more tensor.
        """
        tensors = tuple(
            replace(m, stride=m.layout, offset=0) for m in self.tensors if m.requires_grad
        )
        if flags and tensors:
            tensors += (TensorMeta((len(tensors),), (1,), (1,), torch.uint8, requires_grad=False),)
        return MessageMeta(tensors, None)


def overlapping(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Indices of the tensors that share memory with another one of them."""
    spans = [(t.untyped_storage().data_ptr(), *_extent(t)) for t in tensors]
    sharing: set[int] = set()
    for b, (storage, first, end) in enumerate(spans):
        for a in range(b):
            other_storage, other_first, other_end = spans[a]
            if storage != other_storage or first >= other_end or other_first >= end:
                continue
            if _share_bytes(tensors[a], tensors[b]):
                sharing |= {a, b}
    return tuple(sorted(sharing))


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Range of bytes that a tensor uses in its storage: the first, and the one behind the last."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return first, first
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


def _share_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common.

    Ranges that intersect do not suffice: the parts of a split tensor may be interleaved.
    """
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
    """Whether the tensor fills its memory without gaps or overlaps, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it has gaps, overlaps, or a pending conjugation or negation."""
    return (tensor if is_dense(tensor) else tensor.contiguous()).resolve_conj().resolve_neg()


def settled(tensor: Tensor) -> Tensor:
    """The tensor, or a dense and aligned copy: a slice of a mini-batch may begin at any address."""
    return dense(tensor) if tensor.data_ptr() % _ALIGNED == 0 else dense(tensor).clone()


def copied(tensor: Tensor) -> Tensor:
    """A copy with the same layout; an expanded tensor itself, since nothing can write to it."""
    if tensor.is_sparse or (is_dense(tensor) and not offset_of(tensor)):
        return tensor.clone()
    dimensions = zip(tensor.shape, tensor.stride(), strict=True)
    if any(stride == 0 and size > 1 for size, stride in dimensions):
        return tensor
    return _placed(tensor, tensor.stride(), offset_of(tensor))


def layout_of(tensor: Tensor) -> tuple[int, ...]:
    """Strides in a message: the tensor's own, or contiguous ones where it has gaps or overlaps."""
    if is_dense(tensor):
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


def offset_of(tensor: Tensor) -> int:
    """Bytes from the last aligned address to the tensor's first element."""
    return int(tensor.storage_offset()) * tensor.element_size() % _ALIGNED


def _placed(tensor: Tensor, stride: Sequence[int], offset: int) -> Tensor:
    """A copy with these strides that begins `offset` bytes behind an aligned address."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, stride, strict=True))
    first = offset // tensor.element_size()
    room = tensor.new_empty(first + max(extent, 0))
    return room.set_(room.untyped_storage(), first, tensor.shape, tuple(stride)).copy_(tensor)


def settle_gradients(tree: Tree) -> list[bool]:
    """Give the gradients of these tensors the layout that they have after a stage boundary.

    autograd may pass a layer a gradient with gaps, expanded dimensions or other strides, for
    example where the next layer is a mean or a slice. A stage boundary removes these, and the last
    bits of a result may depend on them. So they are removed behind every layer, with or without a
    boundary.

    Returns:
        For each tensor, whether it requires a gradient.
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
    """A flat view of a dense tensor's bytes, since not every backend knows every dtype."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
