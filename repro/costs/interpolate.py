"""Counts of a model size that is interpolated between three traced sizes.

Bytes of tensors are products of the arguments of a model. So along one argument, such as the
filters D of AmoebaNet, each number of a trace is a polynomial, and three traces fix one of the
second degree. Interpolated counts serve only to search for a size: the chosen size is traced again.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from fractions import Fraction
from math import lcm, prod
from typing import Any, TypeVar

from repro.costs.counter import Counter, Resident
from repro.costs.trace import Boundary, Pass
from repro.gpipe.core.microbatch import Tree

Value = TypeVar("Value")


class NotPolynomialError(Exception):
    """The traces differ in more than their sizes, or the sizes follow no polynomial."""


class InterpolatedCounter:
    """A `Counter` of a model size that is not traced.

    Args:
        counters: of three sizes, made of the same layers.
        at: the three sizes.
        size: the size to interpolate.

    Raises:
        NotPolynomialError: here and in all methods, if the counts cannot be interpolated.
    """

    def __init__(self, counters: Sequence[Counter], at: Sequence[int], size: int) -> None:
        self._counters = counters
        # Lagrange's weights of the three sizes, over their common denominator.
        weights = [
            prod((Fraction(size - b, a - b) for b in at if b != a), start=Fraction(1)) for a in at
        ]
        self._denominator = lcm(*(weight.denominator for weight in weights))
        self._weights = [int(weight * self._denominator) for weight in weights]
        self._known: dict[Hashable, Any] = {}
        self.memo: dict[Hashable, Any] = {}
        # At each size, the same layers must be alike.
        patterns = {tuple(map(counter.kinds.index, counter.kinds)) for counter in counters}
        if len(patterns) > 1:
            raise NotPolynomialError
        self.kinds = counters[0].kinds

    def __len__(self) -> int:
        return len(self.kinds)

    def boundaries(self, part: Tree) -> list[Boundary]:
        """As `Counter.boundaries`."""
        return self._interpolate_once([counter.boundaries(part) for counter in self._counters])

    def layer(self, index: int, part: Tree, *, graph: bool, counting: bool = False) -> Pass:
        """As `Counter.layer`."""
        return self._interpolate_once(
            [
                counter.layer(index, part, graph=graph, counting=counting)
                for counter in self._counters
            ]
        )

    def head(self, part: Tree, targets: Tree, *, graph: bool) -> Pass:
        """As `Counter.head`."""
        return self._interpolate_once(
            [counter.head(part, targets, graph=graph) for counter in self._counters]
        )

    def resident(self, index: int) -> Resident:
        """As `Counter.resident`."""
        return self._interpolate_once([counter.resident(index) for counter in self._counters])

    @property
    def parameters(self) -> int:
        """As `Counter.parameters`."""
        return self._interpolate([counter.parameters for counter in self._counters])

    def _interpolate_once(self, values: Sequence[Value]) -> Value:
        """`_interpolate`, once for the same objects."""
        key = tuple(map(id, values))
        if key not in self._known:
            self._known[key] = (
                values,
                self._interpolate(values),
            )  # keeps the objects, and so their ids
        return self._known[key][1]

    def _interpolate(self, values: Sequence[Any]) -> Any:
        """The value at the interpolated size, from its values at the three traced sizes."""
        first = values[0]
        if all(first == other for other in values[1:]):
            return first
        if len(set(map(type, values))) > 1:
            raise NotPolynomialError
        if type(first) is int:
            weighted = sum(w * v for w, v in zip(self._weights, values, strict=True))
            number, rest = divmod(weighted, self._denominator)
            if rest:
                raise NotPolynomialError
            return number
        if isinstance(first, tuple | list) and len(set(map(len, values))) == 1:
            inner = self._interpolate_once if isinstance(first, list) else self._interpolate
            make = getattr(first, "_make", type(first))  # the former of a NamedTuple
            return make(map(inner, zip(*values, strict=True)))
        if dataclasses.is_dataclass(first):
            fields = {
                field.name: self._interpolate([getattr(value, field.name) for value in values])
                for field in dataclasses.fields(first)
            }
            return type(first)(**fields)
        raise NotPolynomialError
