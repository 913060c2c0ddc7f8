"""How many terms the mean of a loss has, where that can be read off the loss itself.

The losses of torch.nn divide by the class weights of the labels that count, by the elements of a
mask, by the examples; `reduction="sum"` by nothing. A loss that does nothing but call one of them
is called once with its targets and with a stand-in for the outputs. Nothing is computed: the
stand-in takes part in any expression, and what torch's loss gets in its place tells what it would
divide by.
"""

import dis
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import Signature, signature
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.core.microbatch import Tree, flatten

_TORCH = "torch."
# Operations on the stand-in that only arrange its elements. An expression that has any other one
# may join examples, as `outputs - outputs.mean(0)` does.
_ARRANGES = {"view", "reshape", "flatten", "transpose", "permute", "mT", "contiguous", "float"}
_WRITES = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE", "IMPORT")
# Calls in which a stand-in would give another answer than the outputs, or that print.
_INSPECTIONS = {"isinstance", "hasattr", "getattr", "type", "print", "open", "compile"}
# What functions of torch are named that draw random numbers.
_RANDOM = re.compile(r".*(rand|dropout|gumbel).*|normal|poisson|bernoulli|multinomial")
# Their optional weights are those of elements; a mean divides by their sum.
_WEIGHT_OF_ELEMENTS = ("mse_loss", "l1_loss")


@dataclass(frozen=True)
class Terms:
    """What a loss divides the sum of its terms by.

    Attributes:
        weights: of each micro-batch, the divisor of its mean loss.
        summed: whether the loss is a sum, so that nothing is divided.
        of_examples: whether each term is known to be of one example.
    """

    weights: list[float]
    summed: bool
    of_examples: bool


class _StandIn:
    """Takes the place of outputs; every operation on it gives another one."""

    def __init__(self, *, of_examples: bool = True) -> None:
        self.of_examples = of_examples

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of a function that gets a stand-in."""
        if "reduction" in _parameters(func).parameters:
            return _Loss.of(func, args, kwargs or {})
        of_examples = getattr(func, "__name__", "") in _ARRANGES
        given = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, _StandIn)]
        return _StandIn(of_examples=of_examples and all(each.of_examples for each in given))

    def __getattr__(self, name: str) -> "_StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(of_examples=self.of_examples and name in _ARRANGES)

    def __call__(self, *args: Any, **kwargs: Any) -> "_StandIn":
        return self

    def __getitem__(self, key: object) -> "_StandIn":
        return _StandIn(of_examples=self.of_examples and not isinstance(key, _StandIn))

    __iter__ = None  # else Python would ask for one item after the other, without an end

    def _combined(self, *_: object) -> "_StandIn":
        return _StandIn(of_examples=False)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _combined
    __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __neg__ = _combined
    __lt__ = __le__ = __gt__ = __ge__ = _combined
    __eq__ = __ne__ = _combined  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("which way a loss goes depends on the outputs")


class _Loss(_StandIn):
    """The result of a loss of torch for a stand-in: its divisor, and a factor before it."""

    def __init__(
        self,
        divisor: Tensor | float,
        target: Tensor | None,
        *,
        summed: bool,
        of_examples: bool,
        weighted: bool = False,
        factor: float = 1.0,
    ) -> None:
        super().__init__(of_examples=of_examples)
        self.divisor, self.target, self.summed = divisor, target, summed
        self.weighted, self.factor = weighted, factor

    @classmethod
    def of(cls, func: Callable[..., Any], args: Any, kwargs: Any) -> _StandIn:
        given = _parameters(func).bind(*args, **kwargs)
        given.apply_defaults()
        of = given.arguments
        summed = of["reduction"] == "sum"
        legacy = of.get("size_average") is not None or of.get("reduce") is not None
        target = of.get("target_lengths" if func.__name__ == "ctc_loss" else "target")
        if legacy or not (summed or of["reduction"] in ("mean", "batchmean")):
            return _StandIn(of_examples=False)
        of_examples = all(value.of_examples for value in of.values() if isinstance(value, _StandIn))
        if summed:
            own = target if isinstance(target, Tensor) else None
            return cls(1.0, own, summed=True, of_examples=of_examples)
        if not isinstance(target, Tensor):
            return _StandIn(of_examples=False)
        divisor, weighted = _divisor(func.__name__, of, target), of.get("weight") is not None
        return cls(divisor, target, summed=False, of_examples=of_examples, weighted=weighted)

    def _times(self, factor: object) -> _StandIn:
        if not isinstance(factor, int | float):
            return self._combined()
        kept = {"summed": self.summed, "of_examples": self.of_examples, "weighted": self.weighted}
        return _Loss(self.divisor, self.target, factor=self.factor * factor, **kept)

    def __truediv__(self, divisor: Any) -> _StandIn:
        return self._times(1 / divisor) if isinstance(divisor, int | float) else self._combined()

    __mul__ = __rmul__ = _times


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
    loss_fn = getattr(loss_fn, "_orig_mod", loss_fn)  # of a compiled module
    if not _is_readable(loss_fn, set()):
        return None
    whole = _called_with_stand_in(loss_fn, targets)
    if whole is None:
        return None
    given = flatten(targets)[0]
    # A target that is computed from the targets may join examples.
    memory = {tensor.untyped_storage().data_ptr() for tensor in given}
    if whole.target is None or whole.target.untyped_storage().data_ptr() not in memory:
        whole.of_examples = False
    is_plain = not (whole.summed or whole.weighted) and whole.factor == 1 and len(given) == 1
    if is_plain and float(whole.divisor) == given[0].numel():
        # Each element of the targets is a term, as nearly always: micro-batches need no look.
        sizes = [float(part.numel()) for of_part in parts for part in flatten(of_part)[0]]
        return Terms(sizes, summed=False, of_examples=whole.of_examples)
    found = [_called_with_stand_in(loss_fn, part) for part in parts]
    weights: list[float] = []
    for each in found:
        if each is None or (each.summed, each.factor) != (whole.summed, whole.factor):
            return None
        weights.append(float(each.divisor))
    # A loss of sums is split as it is. The terms of a mean must be those of the mini-batch.
    if not whole.summed and not math.isclose(sum(weights), float(whole.divisor), rel_tol=1e-4):
        return None
    return Terms(weights, whole.summed, whole.of_examples)


def _called_with_stand_in(loss_fn: Any, targets: Tree) -> _Loss | None:
    try:
        found = loss_fn(_StandIn(), targets)
    except Exception:  # it looks at the outputs, or at what the stand-in does not have
        return None
    if isinstance(found, tuple) and len(found) == 2:  # with metrics
        found = found[0]
    return found if isinstance(found, _Loss) else None


def _is_readable(value: Any, seen: set[int]) -> bool:
    """Whether calling it changes nothing, and it names nothing but torch's and constants."""
    if id(value) in seen:
        return True
    seen.add(id(value))
    if value is None or isinstance(value, bool | int | float | str | Tensor | torch.dtype):
        return True
    if isinstance(value, ModuleType):
        return f"{value.__name__}.".startswith(_TORCH)
    if isinstance(value, nn.Module):
        # A class of torch's, or of the user's with attributes that are pure.
        if vars(value)["_forward_hooks"] or vars(value)["_forward_pre_hooks"]:
            return False
        if type(value).__module__ == "torch.nn.modules.loss":
            return True
        forward = type(value).forward
        named = _effects(forward.__code__)[1] if isinstance(forward, FunctionType) else ()
        parts = [getattr(value, name) for name in named if hasattr(value, name)]
        return isinstance(forward, FunctionType) and all(
            _is_readable(part, seen) for part in [forward, *parts]
        )
    if isinstance(value, partial):
        parts = [value.func, *value.args, *value.keywords.values()]
        return all(_is_readable(part, seen) for part in parts)
    if not isinstance(value, FunctionType):
        of_torch = f"{getattr(value, '__module__', None)}.".startswith(_TORCH)
        return of_torch and not isinstance(value, torch.Generator)
    if value.__module__ == "torch.nn.functional":
        return True
    writes, names = _effects(value.__code__)
    if writes:
        return False
    parts = [value.__globals__[n] for n in names if n in value.__globals__]
    parts += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    try:
        parts += [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # a name that is not set yet
        return False
    return all(_is_readable(part, seen) for part in parts)


@lru_cache(maxsize=256)
def _effects(code: CodeType) -> tuple[bool, tuple[str, ...]]:
    """Whether code writes to anything but its own variables, and the names that it uses."""
    inner = [_effects(each) for each in code.co_consts if isinstance(each, CodeType)]
    names = {*code.co_names}.union(*(of for _, of in inner))
    writes = any(
        each.opname.startswith(_WRITES) or (each.opname == "BINARY_OP" and "=" in each.argrepr)
        for each in dis.get_instructions(code)
    )
    in_place = any(name.endswith("_") and not name.endswith("__") for name in names)
    draws = any(map(_RANDOM.fullmatch, names))
    writes |= in_place or draws or any(of for of, _ in inner) or bool(names & _INSPECTIONS)
    return writes, tuple(sorted(names))


@lru_cache(maxsize=256)
def _parameters(func: Callable[..., Any]) -> Signature:
    """The signature of a function; empty for a builtin without one."""
    try:
        return signature(func)
    except (TypeError, ValueError):
        return Signature()
