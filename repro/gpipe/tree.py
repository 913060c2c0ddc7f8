"""Cut a mini-batch into M micro-batches, and join results, in nested tuples, lists and dicts.

Sizes are those of `torch.tensor_split`: they differ by at most one, the larger ones first.
"""

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn

# Containers that are made again as what they are; named tuples are, too.
_CONTAINERS = (tuple, list, dict, OrderedDict, torch.Size)
# What can cross a stage boundary beside tensors.
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_TAKEN_AS_DICTS = {"BatchEncoding", "ModelOutput"}  # of transformers, and what is derived from them

Tree = Any  # a tensor, a constant, or tuples, lists and dicts of these


@dataclass(frozen=True)
class Whole:
    """Marks a member of the inputs that every micro-batch gets uncut, such as a mask."""

    value: Tree


@dataclass(frozen=True)
class Slot:
    """Stands for tensor number `index` in the skeleton of a tree."""

    index: int


def map_leaves(leaf: type, fn: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply `fn` to every leaf of the given type and leave everything else as it is."""
    if isinstance(tree, leaf):
        return fn(tree)
    if isinstance(tree, tuple | list):
        mapped = (map_leaves(leaf, fn, member) for member in tree)
        # A named tuple may have a constructor of its own, as torch's PackedSequence has.
        return getattr(type(tree), "_make", type(tree))(mapped)
    if _is_dict(tree):
        kind = OrderedDict if type(tree) is OrderedDict else dict
        return kind((key, map_leaves(leaf, fn, member)) for key, member in tree.items())
    return tree


def _is_dict(tree: Tree) -> bool:
    return isinstance(tree, dict) or _is_taken_as_dict(tree)


def _is_taken_as_dict(tree: Tree) -> bool:
    is_mapping = isinstance(tree, UserDict | OrderedDict)
    return is_mapping and not _TAKEN_AS_DICTS.isdisjoint(c.__name__ for c in type(tree).__mro__)


def _members(tree: Tree) -> Iterable[Any] | None:
    """The members of a tuple, list or dict; None of a leaf."""
    if _is_dict(tree):
        return tree.values()
    return tree if isinstance(tree, tuple | list) else None


def leaves(tree: Tree) -> list[Any]:
    """Everything in a tree that is no tuple, list or dict."""
    members = _members(tree)
    return [tree] if members is None else [leaf for each in members for leaf in leaves(each)]


def flatten(tree: Tree) -> tuple[list[Tensor], Tree]:
    """The tensors of a tree in order, and its skeleton, which has a `Slot` for each of them.

    A tensor that occurs twice is listed once, so that it crosses once and stays one tensor.
    The skeleton can be pickled.
    """
    if isinstance(tree, Tensor):
        return [tree], Slot(0)
    found: dict[int, tuple[Slot, Tensor]] = {}

    def slot(tensor: Tensor) -> Slot:
        return found.setdefault(id(tensor), (Slot(len(found)), tensor))[0]

    skeleton = map_leaves(Tensor, slot, tree)
    return [tensor for _, tensor in found.values()], skeleton


def unflatten(tensors: list[Any], skeleton: Tree) -> Tree:
    """The inverse of `flatten`."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    return map_leaves(Slot, lambda slot: tensors[slot.index], skeleton)


def sizes(examples: int, micro_batches: int) -> list[int]:
    """Sizes of the M micro-batches of a mini-batch of N examples."""
    if examples < micro_batches:
        raise ValueError(
            f"micro_batches={micro_batches}: the mini-batch has only {examples} examples; "
            f"choose M between 1 and {examples}, or a larger batch"
        )
    base, extra = divmod(examples, micro_batches)
    return [base + 1] * extra + [base] * (micro_batches - extra)


def unwrapped(tree: Tree) -> Tree:
    """The tree with the contents of `Whole` members in their place."""
    return map_leaves(Whole, lambda whole: whole.value, tree)


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Inputs or targets on a device."""
    moved = map_leaves(Tensor, lambda t: t.to(device), tree)
    return map_leaves(Whole, lambda whole: Whole(to_device(whole.value, device)), moved)


def refuse_unplain(
    tree: Tree,
    what: str,
    tensor_types: tuple[type, ...] = (Tensor,),
    constants: tuple[type, ...] = _CONSTANTS,
) -> None:
    """Raise a ValueError if a tree holds what cannot be cut and sent so that it stays the same.

    A stage boundary keeps a tensor's values, shape and strides. The class and the attributes of a
    tensor or a container would be lost there, so only plain ones are accepted.
    """
    if isinstance(tree, Whole) and Whole in constants:
        tree = (tree.value,)
    kind, problem = type(tree).__name__, ""
    if isinstance(tree, Tensor):
        dense = tree.layout == torch.strided and not (tree.is_nested or tree.is_quantized)
        if not dense or tree.is_meta:
            problem = "a sparse, nested, quantized or meta tensor cannot be cut or sent"
        elif type(tree) not in tensor_types:
            problem = (
                f"holds a {kind}, which would become a plain tensor; give "
                "x.as_subclass(torch.Tensor), of a parameter p give p.view_as(p)"
            )
        elif vars(tree):
            attribute = next(iter(vars(tree)))
            problem = f"holds a tensor with an attribute {attribute!r}, which would be lost"
    else:
        members = _members(tree)
        known = type(tree) in _CONTAINERS or hasattr(type(tree), "_make") or _is_taken_as_dict(tree)
        if members is not None and not known:
            problem = f"holds a {kind}, which would become another type; use plain containers"
        elif members is None and not isinstance(tree, constants):
            problem = f"holds a {kind}; only tensors, numbers, strings and None can cross"
        for member in members or ():
            refuse_unplain(member, what, tensor_types, constants)
    if problem:
        raise ValueError(f"{what}: {problem}")


def _refuse_uncut(tree: Tree, name: str, examples: int) -> None:
    """Raise a ValueError for values of the N examples that are no tensor, so cannot be cut.

    Every micro-batch would get all of them, and use the first ones.
    """
    if isinstance(tree, str | bytes) or any(isinstance(t, Tensor | Whole) for t in leaves(tree)):
        length = 0
    else:
        length = length_hint(tree)  # 0 of what has none, such as a number
    if length == examples and not _is_dict(tree) and not hasattr(tree, "_fields"):
        raise ValueError(
            f"{name}: a {type(tree).__name__} of length {examples}, the mini-batch, is not cut "
            "into micro-batches; make it a tensor, or wrap it in repro.gpipe.Whole(...)"
        )
    for member in _members(tree) or ():
        _refuse_uncut(member, name, examples)


def check(tree: Tree, micro_batches: int, name: str) -> int:
    """Check that a user's mini-batch can be cut into M micro-batches; return N."""
    # A micro-batch's part of a parameter is a plain tensor anyway; what else there is stays here.
    refuse_unplain(tree, name, (Tensor, nn.Parameter), (Whole, object))
    examples = batch_size(tree, name)
    if not examples:
        raise ValueError(f"{name}: the mini-batch has no examples; leave it out")
    if micro_batches > 1:
        _refuse_uncut(tree, name, examples)
    return examples


def batch_size(tree: Tree, name: str = "inputs") -> int:
    """N: the first dimension that all tensors of the tree share, `Whole` members aside."""
    tensors, _ = flatten(tree)
    if not tensors:
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves(tree)})) or "nothing"
        raise ValueError(
            f"{name}: holds no tensor that can be cut, but {kinds}; make it a tensor, such as "
            "torch.from_numpy(array) or torch.as_tensor(values)"
        )
    first_dimensions = {t.shape[0] if t.ndim else None for t in tensors}
    if len(first_dimensions) != 1 or None in first_dimensions:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(
            f"{name}: all tensors must share their first dimension, the mini-batch N, got "
            f"{shapes}; wrap what belongs to the whole mini-batch in repro.gpipe.Whole(...)"
        )
    return tensors[0].shape[0]


def split(tree: Tree, micro_batches: int) -> list[Tree]:
    """Cut every tensor along its first dimension into M views."""
    cuts = sizes(batch_size(tree), micro_batches)
    tensors, skeleton = flatten(tree)  # what is inside a `Whole` stays there, and is not cut
    pieces = [torch.split(t, cuts) for t in tensors]  # by tensor, then by micro-batch
    return [unwrapped(unflatten([p[i] for p in pieces], skeleton)) for i in range(micro_batches)]


def gather(parts: list[Tree]) -> Tree:
    """Join the outputs of all micro-batches along their first dimension."""
    of_tensors = zip(*(flatten(part)[0] for part in parts), strict=True)
    joined = [torch.cat(ts) if ts[0].ndim else torch.stack(ts) for ts in of_tensors]
    return unflatten(joined, flatten(parts[0])[1])
