"""Messages between stages: tensors with their form, and the memory layout that tensors have there.

A stage hands on a `Message` from the end of its F to the first layer of the next stage. Its form
travels with it, see `link`. The layout matters because a neighbour must compute the same bits as
the sender would: the last bits of a product depend on the strides and the alignment of its
operands.
"""

import ctypes
import io
import pickle
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.gpipe.tree import Tree, flatten, unflatten

_ALIGNED = 64  # bytes; torch aligns every storage that it allocates to so many


class TensorMeta(NamedTuple):
    """Description of one tensor of a message.

    A tensor is sent without gaps, with the strides `layout`, and received in aligned memory. Where
    the sender has other strides, or begins `offset` bytes behind an aligned address, the receiver
    copies the tensor into the sender's layout.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool  # whether a gradient comes back for it
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorMeta":
        shape, offset = tuple(tensor.shape), offset_of(tensor)
        return cls(shape, tensor.stride(), tensor.dtype, tensor.requires_grad, offset)

    @property
    def layout(self) -> tuple[int, ...]:
        """Strides in a message."""
        return layout(self.shape, self.stride)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def room(self, device: torch.device) -> Tensor:
        """An empty tensor to receive into."""
        return torch.empty_strided(self.shape, self.layout, dtype=self.dtype, device=device)

    def restored(self, arrived: Tensor) -> Tensor:
        """A received tensor in the sender's layout: its gaps, expanded dimensions and alignment."""
        if self.stride == arrived.stride() and not self.offset:
            return arrived
        # Of a dimension that the sender had expanded, one slice is laid out and expanded again.
        for d, (size, stride) in enumerate(zip(self.shape, self.stride, strict=True)):
            if stride == 0 and size > 1:
                arrived = arrived.narrow(d, 0, 1)
        return _placed(arrived, self.stride, self.offset).expand(self.shape)


@dataclass(frozen=True)
class Form:
    """Description of a message without the elements of its tensors, for the receiver.

    `skeleton` is the structure that holds the tensors, see `flatten`. `sharing` are the indices of
    the tensors that share their memory with another one at the sender.
    """

    tensors: tuple[TensorMeta, ...]
    skeleton: Tree
    sharing: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensors: Sequence[Tensor], skeleton: Tree) -> "Form":
        return cls(tuple(map(TensorMeta.of, tensors)), skeleton, _sharing(tensors))

    @cached_property
    def key(self) -> Hashable:
        """All of it, to be compared; of what is no tensor its text, since 1 and True are equal."""
        return self.tensors, self.sharing, repr(self.skeleton)

    @cached_property
    def packed(self) -> bytes:
        """The form as bytes, for `unpacked`."""
        stream = io.BytesIO()
        _Pickler(stream).dump((self.tensors, self.skeleton, self.sharing))
        return stream.getvalue()

    @classmethod
    def unpacked(cls, data: bytes) -> "Form":
        """The inverse of `packed`; trusts the peer, a process of the same program."""
        return cls(*pickle.loads(data))

    @cached_property
    def offsets(self) -> list[int]:
        """Where each tensor begins among the bytes of a message, and where the last one ends."""
        offsets, end = [], 0
        for meta in self.tensors:
            offsets.append(aligned(end))
            end = offsets[-1] + meta.nbytes
        return [*offsets, end]

    @property
    def nbytes(self) -> int:
        """Bytes of a message of this form, with the gaps between its tensors."""
        return self.offsets[-1]

    @cached_property
    def content(self) -> int:
        """Bytes of its tensors alone."""
        return sum(meta.nbytes for meta in self.tensors)


@dataclass(slots=True)
class Message:
    """The tensors that cross a boundary, and their form."""

    tensors: list[Tensor]
    form: Form

    @classmethod
    def of(cls, tensors: list[Tensor], skeleton: Tree) -> "Message":
        """A message of a flattened tree."""
        return cls(tensors, Form.of(tensors, skeleton))

    @property
    def tree(self) -> Tree:
        """The tensors in their structure."""
        return unflatten(self.tensors, self.form.skeleton)

    def copy_to(self, address: int) -> None:
        """Write the bytes of the tensors, which are in host memory, to an address there."""
        for tensor, offset in zip(self.tensors, self.form.offsets, strict=False):
            source = dense(tensor.detach())
            ctypes.memmove(address + offset, source.data_ptr(), source.nbytes)


def received(form: Form, tensors: Sequence[Tensor]) -> Message:
    """A message of tensors that have arrived, as autograd leaves in the sender's layout."""
    leaves = [
        meta.restored(tensor).requires_grad_(meta.requires_grad)
        for meta, tensor in zip(form.tensors, tensors, strict=True)
    ]
    return Message(leaves, form)


def tensors_in(storage: torch.UntypedStorage, start: int, form: Form) -> list[Tensor]:
    """Views of the tensors of a message whose bytes begin at `start`, a multiple of 64."""
    return [
        torch.empty(0, dtype=meta.dtype, device="cpu").set_(
            storage, (start + offset) // meta.dtype.itemsize, meta.shape, meta.layout
        )
        for meta, offset in zip(form.tensors, form.offsets, strict=False)
    ]


class _Pickler(pickle.Pickler):
    """Leaves out constructors of named tuples, which may look at their members."""

    def reducer_override(self, obj: Any) -> Any:
        """Called for what is no builtin."""
        is_named = isinstance(obj, tuple) and hasattr(obj, "_make")
        kind: Any = type(obj)
        return (kind._make, (tuple(obj),)) if is_named else NotImplemented


def _sharing(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which of these tensors share their memory with another one of them."""
    if len(tensors) < 2:
        return ()
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    return tuple(n for n, storage in enumerate(storages) if storages.count(storage) > 1)


def aligned(size: int) -> int:
    """The next multiple of 64 bytes."""
    return -(-size // _ALIGNED) * _ALIGNED


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in any order of dimensions."""
    return tensor.is_contiguous() or layout(tensor.shape, tensor.stride()) == tensor.stride()


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


@lru_cache(2**12)
def layout(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in a message: a tensor's own, or contiguous ones where it has gaps or overlaps."""
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step != expected:
            return torch.empty(shape, device="meta").stride()
        expected *= size
    return stride


def offset_of(tensor: Tensor) -> int:
    """Bytes from the last aligned address to the tensor's first element."""
    return int(tensor.storage_offset()) * tensor.element_size() % _ALIGNED


def _placed(tensor: Tensor, stride: Sequence[int], offset: int) -> Tensor:
    """A copy with these strides that begins `offset` bytes behind an aligned address."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, stride, strict=True))
    first = offset // tensor.element_size()
    room = tensor.new_empty(first + max(extent, 0))
    return room.set_(room.untyped_storage(), first, tensor.shape, tuple(stride)).copy_(tensor)


def settle_gradients(tree: Tree) -> None:
    """Give the gradients of these tensors the layout that they have after a stage boundary.

    autograd may pass a layer a gradient with gaps, expanded dimensions or other strides, for
    example where the next layer is a mean or a slice. A stage boundary removes these, and the last
    bits of a result may depend on them. So they are removed behind every layer, with or without a
    boundary.
    """
    tensors = [tree] if isinstance(tree, Tensor) else flatten(tree)[0]
    for tensor in tensors:
        has_strides = tensor.layout == torch.strided and not tensor.is_nested
        if has_strides and tensor.grad_fn is not None:
            # Quicker than `Tensor.register_hook`, which matters between two layers: there the code
            # of either is in no cache.
            tensor.grad_fn.register_prehook(
                partial(_settled_gradients, tensor.output_nr, layout(tensor.shape, tensor.stride()))
            )


def _settled_gradients(
    n: int, layout: tuple[int, ...], gradients: tuple[Tensor, ...]
) -> tuple[Tensor, ...] | None:
    """The gradients of an operator's outputs, output n's in this layout; None if it has it."""
    gradient: Tensor | None = gradients[n]
    if gradient is None:
        return None
    # Such strides leave no gaps.
    is_settled = gradient.stride() == layout and gradient.data_ptr() % _ALIGNED == 0
    is_settled = is_settled and not (gradient.is_conj() or gradient.is_neg())
    if is_settled:
        return None
    shape, dtype, device = gradient.shape, gradient.dtype, gradient.device
    new = torch.empty_strided(shape, layout, dtype=dtype, device=device).copy_(gradient)
    return (*gradients[:n], new, *gradients[n + 1 :])


def elements(tensor: Tensor) -> Tensor:
    """A flat view of a dense tensor's bytes, since not every backend knows every dtype."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
