"""How many terms the mean of a loss has, where that can be read off the loss itself.

The losses of torch.nn divide by the class weights of the labels that count, by the elements of a
mask, by the examples; `reduction="sum"` by nothing. A loss that only calls one of them is called
with its targets and with a stand-in for the outputs. Nothing is computed: the stand-in takes part
in any expression, and the other arguments of torch's loss show what it would divide by. A loss may
also ask for the shape of the outputs. That is guessed, so what follows from it must be compared.
"""

import dis
import math
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import Signature, signature
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.core.callables import inside_module, names_in, reachable
from repro.gpipe.tree import Tree, batch_size, flatten, split, unwrapped

_TORCH = "torch."
# Operations on the stand-in that only arrange its elements. An expression that has any other one
# may join examples, as `outputs - outputs.mean(0)` does.
_ARRANGES = {"view", "reshape", "flatten", "transpose", "permute", "mT", "contiguous", "float"}
_WRITES = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE", "IMPORT")
# Calls in which a stand-in may give another answer than the outputs.
_INSPECTIONS = {"isinstance", "hasattr", "getattr", "type"}
# Functions that print, or draw random numbers.
_EFFECTS = re.compile(r"print|open|.*(rand|dropout|gumbel).*|normal|poisson|bernoulli|multinomial")
# Their optional weights are those of elements; a mean divides by their sum.
_WEIGHT_OF_ELEMENTS = ("mse_loss", "l1_loss")


@dataclass(frozen=True)
class Terms:
    """What a loss divides the sum of its terms by.

    Attributes:
        weights: of each micro-batch, the divisor of its mean loss.
        summed: whether the loss is a sum, so that nothing is divided.
        of_examples: whether each term is known to be of one example.
        broadcasts: whether that needs outputs and targets of one shape.
    """

    weights: list[float]
    summed: bool
    of_examples: bool
    broadcasts: bool


class _StandIn:
    """Takes the place of outputs; every operation on it gives another one.

    It is `arranged` if it has the elements of the outputs, at most in another arrangement, and
    `shaped` if it also has their shape.
    """

    def __init__(self, *, arranged: bool, shaped: bool = False) -> None:
        self.arranged, self.shaped = arranged, shaped

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of a function that gets a stand-in."""
        if "reduction" in _parameters(func).parameters:
            return _loss_of(func, args, kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "mul" and isinstance(args[1], _Loss):  # of a tensor
            return args[1] * args[0]
        return _StandIn(arranged=name in _ARRANGES and args[0].arranged)

    def __getattr__(self, name: str) -> "_StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(arranged=self.arranged and name in _ARRANGES)

    def __call__(self, *_: object, **__: object) -> "_StandIn":
        return self

    def __getitem__(self, key: object) -> "_StandIn":
        return self if isinstance(key, str) else _StandIn(arranged=False)

    def _another(self, *_: object) -> "_StandIn":
        return _StandIn(arranged=False)

    __iter__ = None  # else Python would ask for one item after the other, without an end
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _another
    __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __neg__ = _another
    __lt__ = __le__ = __gt__ = __ge__ = _another
    __eq__ = __ne__ = _another  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("which way a loss goes depends on the outputs")


def _guessed(targets: Tensor) -> _StandIn:
    """A stand-in with a shape: that of the targets, and a dimension of two classes behind it."""
    stand_in, shape = _StandIn(arranged=False), (*targets.shape, 2)
    vars(stand_in).update(shape=shape, ndim=len(shape), dim=lambda: len(shape))
    vars(stand_in).update(size=lambda n=None: shape if n is None else shape[n])
    return stand_in


class _Loss(_StandIn):
    """The result of a loss of torch for a stand-in: its divisor, and a factor before it."""

    def __init__(self, divisor: Tensor | float, of: dict[str, Any], *, summed: bool) -> None:
        stand_ins = [value for value in of.values() if isinstance(value, _StandIn)]
        # Each class is a term. Other losses may broadcast, or have rows of targets as terms.
        is_of_classes = "ignore_index" in of and not of["target"].is_floating_point()
        self.broadcasts = not (is_of_classes or "target_lengths" in of)
        fits = not self.broadcasts or all(each.shaped for each in stand_ins)
        super().__init__(arranged=fits and all(each.arranged for each in stand_ins))
        self.divisor, self.factor, self.summed = divisor, 1.0, summed
        self.tensors = [value for value in of.values() if isinstance(value, Tensor)]

    def __mul__(self, factor: Any) -> _StandIn:
        if isinstance(factor, Tensor) and factor.numel() == 1:
            factor = factor.item()
        if not isinstance(factor, int | float):
            return self._another()
        scaled = copy(self)
        scaled.factor *= factor
        return scaled

    def __truediv__(self, divisor: Any) -> _StandIn:
        return self * (1 / divisor)

    def __neg__(self) -> _StandIn:
        return self * -1

    __rmul__ = __mul__


def _loss_of(func: Callable[..., Any], args: Any, kwargs: Any) -> _StandIn:
    """The result of a loss of torch."""
    given = _parameters(func).bind(*args, **kwargs)
    given.apply_defaults()
    of = given.arguments
    target = of.get("target_lengths" if func.__name__ == "ctc_loss" else "target")
    own = target if isinstance(target, Tensor) else None
    is_legacy = of.get("size_average") is not None or of.get("reduce") is not None
    if of["reduction"] == "sum" and not is_legacy:
        return _Loss(1.0, of, summed=True)
    if own is None or is_legacy or of["reduction"] not in ("mean", "batchmean"):
        return _StandIn(arranged=False)
    loss = _Loss(_divisor(func.__name__, of, own), of, summed=False)
    # It divides by the first dimension, which may be that of the examples or not.
    return loss * (own.numel() / len(own)) if of["reduction"] == "batchmean" else loss


def _divisor(name: str, of: dict[str, Any], target: Tensor) -> Tensor | float:
    """What the mean of torch's loss divides by, up to a factor that all micro-batches share."""
    weight = of.get("weight")
    if "ignore_index" in of and not target.is_floating_point():
        ignored = -100 if of["ignore_index"] is None else of["ignore_index"]
        counts = target != ignored
        if weight is None:
            return counts.sum()
        return (weight[target.where(counts, 0)] * counts).sum()
    if name in _WEIGHT_OF_ELEMENTS and isinstance(weight, Tensor):
        return weight.sum()
    return float(target.numel())


def terms_of(loss_fn: Any, targets: Tree, parts: Sequence[Tree]) -> Terms | None:
    """The terms of each micro-batch's loss, or None if they cannot be read off the loss.

    `parts` are the targets of the micro-batches, `targets` those of the mini-batch.
    """
    named = [*reachable(loss_fn, inside_module)]
    if not all(map(_is_readable, named)):
        return None
    guesses = any(map(_inspects, named))
    whole = None if guesses else _called(loss_fn, targets)
    if whole is None:
        guesses, whole = True, _called(loss_fn, targets, guesses=True)
    if whole is None:
        return None
    # What is computed from the targets may join examples: targets, weights of classes.
    constants = [value for value in named if isinstance(value, Tensor)]
    known = {_memory(tensor) for tensor in (*flatten(unwrapped(targets))[0], *constants)}
    of_examples = whole.arranged and all(_memory(tensor) in known for tensor in whole.tensors)
    weights: list[float] = []
    # With one micro-batch its halves show whether the factor depends on the number of examples.
    is_halved = len(parts) == 1 and targets is not None and batch_size(targets) > 1
    for part in split(targets, 2) if is_halved else parts:
        each = _called(loss_fn, part, guesses=guesses)
        if each is None or (each.summed, each.factor) != (whole.summed, whole.factor):
            return None
        weights.append(float(each.divisor))
    # A loss of sums is split as it is. The terms of a mean must be those of the mini-batch.
    if not whole.summed and not math.isclose(sum(weights), float(whole.divisor), rel_tol=1e-4):
        return None
    weights = [sum(weights)] if is_halved else weights
    return Terms(weights, whole.summed, of_examples, whole.broadcasts)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _called(loss_fn: Any, targets: Tree, *, guesses: bool = False) -> _Loss | None:
    """The result of a loss for a stand-in, if it is one of torch's losses."""
    targets = unwrapped(targets)
    try:
        sure = _StandIn(arranged=True, shaped=True)
        found = loss_fn(_guessed(flatten(targets)[0][0]) if guesses else sure, targets)
    except Exception:  # it looks at the outputs, or at what the stand-in does not have
        return None
    if isinstance(found, tuple) and len(found) == 2:  # with metrics
        found = found[0]
    return found if isinstance(found, _Loss) else None


def _is_readable(value: Any) -> bool:
    """Whether calling it changes nothing, and it is a constant, torch's, or a function's code."""
    if value is None or isinstance(value, bool | int | float | str | Tensor | torch.dtype):
        return True
    if isinstance(value, ModuleType):
        return f"{value.__name__}.".startswith(_TORCH)
    if isinstance(value, nn.Module):
        return not (value._forward_hooks or value._forward_pre_hooks)
    if f"{getattr(value, '__module__', None)}.".startswith(_TORCH):
        return not isinstance(value, torch.Generator)
    if isinstance(value, FunctionType):
        return not _has_effects(value.__code__)
    return isinstance(value, MethodType | partial)


def _inspects(value: Any) -> bool:
    """Whether it is a function, and none of torch's, that looks at types."""
    is_own = isinstance(value, FunctionType) and not f"{value.__module__}.".startswith(_TORCH)
    return is_own and not names_in(value.__code__).isdisjoint(_INSPECTIONS)


@lru_cache(maxsize=256)
def _has_effects(code: CodeType) -> bool:
    """Whether code writes to anything but its own variables, draws, or prints."""
    names = names_in(code)
    in_place = any(name.endswith("_") and not name.endswith("__") for name in names)
    if in_place or any(map(_EFFECTS.fullmatch, names)):
        return True
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return any(map(_has_effects, inner)) or any(
        each.opname.startswith(_WRITES) or (each.opname == "BINARY_OP" and "=" in each.argrepr)
        for each in dis.get_instructions(code)
    )


@lru_cache(maxsize=256)
def _parameters(func: Callable[..., Any]) -> Signature:
    """The signature of a function; empty for a builtin without one."""
    try:
        return signature(func)
    except (TypeError, ValueError):
        return Signature()
