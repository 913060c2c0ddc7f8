"""Cut a mini-batch into M micro-batches, and join results, in nested tuples, lists and dicts.

Sizes are those of `torch.tensor_split`: they differ by at most one, the larger ones first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(leaf, fn, member) for member in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(leaf, fn, member) for member in tree)
    if isinstance(tree, dict):
        return {key: map_leaves(leaf, fn, member) for key, member in tree.items()}
    return tree


def leaves(tree: Tree) -> Iterator[Any]:
    """Everything in a tree that is no tuple, list or dict."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list):
        for member in tree:
            yield from leaves(member)
    else:
        yield tree


def flatten(tree: Tree) -> tuple[list[Tensor], Tree]:
    """The tensors of a tree in order, and its skeleton, which has a `Slot` for each of them.

    A tensor that stands in two places is listed once, so that it crosses once and stays one tensor.
    The skeleton can be pickled.
    """
    if isinstance(tree, Tensor):
        return [tree], Slot(0)
    slots: dict[int, Slot] = {}
    tensors: list[Tensor] = []

    def slot(tensor: Tensor) -> Slot:
        if id(tensor) not in slots:
            slots[id(tensor)] = Slot(len(tensors))
            tensors.append(tensor)
        return slots[id(tensor)]

    return tensors, map_leaves(Tensor, slot, tree)


def unflatten(tensors: list[Any], skeleton: Tree) -> Tree:
    """The inverse of `flatten`."""
    if isinstance(skeleton, Slot):
        return tensors[skeleton.index]
    return map_leaves(Slot, lambda slot: tensors[slot.index], skeleton)


def sizes(examples: int, micro_batches: int) -> list[int]:
    """Sizes of the M micro-batches of a mini-batch of N examples.

    Raises:
        ValueError: if N < M, since a micro-batch would be empty.
    """
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


def refuse_uncuttable(tree: Tree, name: str) -> None:
    """Raise a ValueError if a tensor has no plain rows that could be cut and sent."""
    for tensor in flatten(tree)[0]:
        if tensor.is_nested:
            raise ValueError(
                f"{name}: a nested tensor cannot be cut into micro-batches; pad it, by "
                "to_padded_tensor()"
            )
        if tensor.layout != torch.strided:
            raise ValueError(
                f"{name}: a tensor of layout {tensor.layout} cannot be cut into micro-batches; "
                "give to_dense() of it"
            )
        if tensor.is_meta:
            raise ValueError(
                f"{name}: a tensor on the meta device has no values; give one on the CPU or a GPU"
            )


def batch_size(tree: Tree, name: str = "inputs") -> int:
    """N: the first dimension that all tensors of the tree share, `Whole` members aside.

    Raises:
        ValueError: if there is no tensor, or two tensors disagree.
    """
    if tree is None:
        raise ValueError(
            f"{name}: None, but this stage reads the mini-batch; only the other stages may pass "
            "None"
        )
    tensors, _ = flatten(map_leaves(Whole, lambda _whole: None, tree))
    first_dimensions = {t.shape[0] if t.ndim else None for t in tensors}
    if len(first_dimensions) != 1 or None in first_dimensions:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "no tensor"
        raise ValueError(
            f"{name}: all tensors must share their first dimension, the mini-batch N, got "
            f"{shapes}; wrap what belongs to the whole mini-batch in repro.gpipe.Whole(...)"
        )
    return tensors[0].shape[0]


def split(tree: Tree, micro_batches: int, name: str = "inputs") -> list[Tree]:
    """Cut every tensor along its first dimension into M views.

    Raises:
        ValueError: if tensors disagree about N, or N < M.
    """
    cuts = sizes(batch_size(tree, name), micro_batches)
    # What is inside a `Whole` is not cut, so it is put aside and its number left in its place.
    wholes: list[Tree] = []

    def put_aside(whole: Whole) -> Whole:
        wholes.append(whole.value)
        return Whole(len(wholes) - 1)

    tensors, skeleton = flatten(map_leaves(Whole, put_aside, tree))
    pieces = [torch.split(t, cuts) for t in tensors]  # by tensor, then by micro-batch
    micro = [unflatten([p[i] for p in pieces], skeleton) for i in range(micro_batches)]
    return [map_leaves(Whole, lambda number: wholes[number.value], part) for part in micro]


def gather(parts: list[Tree]) -> Tree:
    """Join the outputs of all micro-batches along their first dimension."""
    tensors_of_parts = [flatten(part)[0] for part in parts]
    _, skeleton = flatten(parts[0])
    joined = [
        torch.cat(tensors) if tensors[0].ndim else torch.stack(tensors)
        for tensors in zip(*tensors_of_parts, strict=True)
    ]
    return unflatten(joined, skeleton)
