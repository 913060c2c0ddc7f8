"""A backward in two parts (Zero Bubble, arXiv:2401.10241).

I makes the gradients of a stage's inputs, for which the stage before waits. W makes those of its
weights, for which nobody waits, so it can fill a wait.

A product of matrices and a convolution compute both with kernels of their own. So autograd runs for
everything but the weights of these in I, which keeps the gradients that arrive there. W multiplies
as autograd does, and hands the result to the node that adds to a parameter's gradient, with its
hooks. The bits are those of a whole backward. Everything else is done in I: norms, weights that are
used twice, and what a saved tensor with hooks belongs to.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

# Operators that W can do later: the saved tensor that it needs, and the edge that leads to the
# weight.
_OPERATORS = {
    "AddmmBackward0": ("_saved_mat1", 2),
    "MmBackward0": ("_saved_self", 1),
    "ConvolutionBackward0": ("_saved_input", 1),
}
_OF_CONVOLUTION = (
    "bias_sym_sizes_opt",
    "stride",
    "padding",
    "dilation",
    "transposed",
    "output_padding",
    "groups",
)
# What may be between a weight and its operator: nn.Linear transposes it, autocast copies it.
_PASSED_ON = ("TBackward0", "ToCopyBackward0")
AT_ONCE = 2**22  # bytes of gradients that W hands on together, since a call takes long
_REENTRANT = "CheckpointFunctionBackward"  # refuses a backward to some leaves only


class _Weight(NamedTuple):
    """A leaf that one operator alone uses."""

    node: Node  # adds to its gradient
    leaf: Tensor
    transposed: bool = False


class _Part(NamedTuple):
    """The work of one operator that W does."""

    weights: list[_Weight]
    gradients: Callable[[Tensor], Sequence[Tensor]]  # of the weights, from that of the operator


Later = list[tuple[_Part, Tensor]]  # what W does: parts, and the gradients that arrived there


def backward_to_inputs(
    roots: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
) -> Later:
    """I: the backward without what is returned for W; `inputs` are leaves that are no weights."""
    parts, others = _cut(roots, inputs)
    if not parts:
        torch.autograd.backward(roots, gradients)
        return []
    later: Later = []
    arrived = set[int]()
    for n, (node, part) in enumerate(parts):
        node.register_prehook(partial(_keep, later, arrived, n, part))
    # A node that is one of the `inputs` runs, although nothing behind it may be needed.
    edges = [GradientEdge(node, 0) for node, _ in parts]
    torch.autograd.backward(roots, gradients, inputs=[*edges, *others])
    assert len(arrived) == len(parts), "autograd did not run each operator"
    return later


def backward_to_weights(later: Later) -> None:
    """W: add to the gradients of the weights that I has left out."""
    edges, made = list[GradientEdge](), list[Tensor]()
    while later:
        part, gradient = later.pop(0)
        with torch.no_grad():
            made += part.gradients(gradient)
        edges += [GradientEdge(weight.node, 0) for weight in part.weights]
        if not later or sum(each.nbytes for each in made) > AT_ONCE:
            torch.autograd.backward(edges, made)
            edges, made = [], []


def _keep(
    later: Later, arrived: set[int], n: int, part: _Part, gradients: tuple[Tensor | None, ...]
) -> None:
    arrived.add(n)
    if gradients[0] is not None:
        later.append((part, gradients[0]))


def _cut(
    roots: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[tuple[Node, _Part]], list[GradientEdge]]:
    """The operators with a part for W, and the edges to all other leaves."""
    # Edges to each node; no root is a weight.
    uses: dict[Any, int] = dict.fromkeys((get_gradient_edge(root).node for root in roots), 2)
    nodes = [*uses]
    operators: list[tuple[Any, str]] = []
    to_leaves: list[Any] = []
    while nodes:
        node = nodes.pop()
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            to_leaves.append(node)
        elif kind in _OPERATORS or isinstance(node, BackwardCFunction):
            operators.append((node, kind))
        for child, _ in node.next_functions:
            if child in uses:
                uses[child] += 1
            elif child is not None:
                uses[child] = 1
                nodes.append(child)
    given = {id(tensor) for tensor in inputs}
    parts: list[tuple[Node, _Part]] = []
    for node, kind in operators:
        if kind == _REENTRANT or _has_hooks(node, kind):
            return [], []
        edges = enumerate(child for child, _ in node.next_functions)
        found = {n: _weight_behind(child, uses) for n, child in edges}
        own = {n: w for n, w in found.items() if w is not None and id(w.leaf) not in given}
        part = _part(node, kind, own)
        if part is not None:
            parts.append((node, part))
    left = {weight.node for _, part in parts for weight in part.weights}
    return parts, [GradientEdge(node, 0) for node in to_leaves if node not in left]


def _weight_behind(node: Any, uses: Mapping[Any, int]) -> _Weight | None:
    """The leaf at the end of an edge, if nothing else uses it."""
    transposed = False
    while uses.get(node) == 1:
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            leaf = node.variable
            return None if leaf.is_complex() else _Weight(node, leaf, transposed)
        if kind not in _PASSED_ON:
            return None
        transposed ^= kind == "TBackward0"
        ((node, _),) = node.next_functions
    return None


def _has_hooks(node: Node, kind: str) -> bool:
    """Whether reading what an operator has saved calls a hook, which may recompute it."""
    name, _ = _OPERATORS.get(kind, ("", 0))
    return bool(name) and getattr(node, name) is not getattr(node, name)


def _part(node: Any, kind: str, own: dict[int, _Weight]) -> _Part | None:
    """What W does of an operator, of whose edges these lead to weights; None if nothing."""
    leave = getattr(node, "leave_weight", None)  # of a Function that supports a split
    if own and leave is not None:
        return _Part([*own.values()], leave())
    name, n = _OPERATORS.get(kind, ("", -1))
    if n not in own:
        return None
    given, weight = getattr(node, name).detach(), own[n]
    if kind != "ConvolutionBackward0":
        is_scaled = getattr(node, "_saved_alpha", 1) != 1
        return None if is_scaled else _Part([weight], partial(_of_product, given, weight))
    has_other_bias = node.next_functions[2][0] is not None and 2 not in own
    if weight.transposed or has_other_bias:
        return None
    how = [getattr(node, f"_saved_{argument}") for argument in _OF_CONVOLUTION]
    weights = [own[n] for n in sorted(own)]
    return _Part(weights, partial(_of_convolution, given, node._saved_weight, how, weights))


def _of_product(factor: Tensor, weight: _Weight, gradient: Tensor) -> list[Tensor]:
    """The gradient of the second factor; which product torch takes depends on its layout."""
    second = weight.leaf.t() if weight.transposed else weight.leaf
    if second.stride() == (1, len(second)):
        made = gradient.t().mm(factor).t()
    else:
        made = factor.t().mm(gradient)
    return [(made.t() if weight.transposed else made).to(second.dtype)]


def _of_convolution(
    given: Tensor, kernel: Tensor, how: Sequence[Any], weights: list[_Weight], gradient: Tensor
) -> list[Tensor]:
    mask = [False, True, len(weights) == 2]
    _, *made = torch.ops.aten.convolution_backward(gradient, given, kernel, *how, mask)
    return [each.to(weight.leaf.dtype) for each, weight in zip(made, weights, strict=False)]
