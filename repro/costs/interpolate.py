"""A size between sizes that were traced: every number of a trace as a polynomial of the argument that grows.

Bytes of tensors are products of what a model is built with, so along one argument, such as the
filters D of AmoebaNet, each is a polynomial; three traces fix one of the second degree. Exact where
that holds, and only used to look for a size: what is told of the size that was found is traced.
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


class Unlike(Exception):
    """The traces differ in more than their sizes, or the sizes follow no polynomial."""


class Between:
    """What `Counter` tells, of a size that is not traced.

    Args:
        counters: of three sizes, made of the same layers.
        at: the three sizes.
        size: the one wanted.

    Raises:
        Unlike: as do all methods.
    """

    def __init__(self, counters: Sequence[Counter], at: Sequence[int], size: int) -> None:
        self._counters = counters
        weights = [
            prod((Fraction(size - b, a - b) for b in at if b != a), start=Fraction(1)) for a in at
        ]
        self._over = lcm(*(weight.denominator for weight in weights))
        self._weights = [int(weight * self._over) for weight in weights]
        self._known: dict[Hashable, Any] = {}
        self.memo: dict[Hashable, Any] = {}
        patterns = {tuple(map(one.kinds.index, one.kinds)) for one in counters}
        if len(patterns) > 1:
            raise Unlike
        self.kinds = counters[0].kinds

    def __len__(self) -> int:
        return len(self.kinds)

    def boundaries(self, part: Tree) -> list[Boundary]:
        """As `Counter.boundaries`."""
        return self._alike([one.boundaries(part) for one in self._counters])

    def layer(self, index: int, part: Tree, *, graph: bool, counting: bool = False) -> Pass:
        """As `Counter.layer`."""
        return self._alike(
            [one.layer(index, part, graph=graph, counting=counting) for one in self._counters]
        )

    def head(self, part: Tree, targets: Tree, *, graph: bool) -> Pass:
        """As `Counter.head`."""
        return self._alike([one.head(part, targets, graph=graph) for one in self._counters])

    def resident(self, index: int) -> Resident:
        """As `Counter.resident`."""
        return self._alike([one.resident(index) for one in self._counters])

    @property
    def parameters(self) -> int:
        """As `Counter.parameters`."""
        return self._at([one.parameters for one in self._counters])

    def _alike(self, values: Sequence[Value]) -> Value:
        """`_at`, once for the same values."""
        key = tuple(map(id, values))
        if key not in self._known:
            self._known[key] = values, self._at(values)  # the values too, lest an id be used again
        return self._known[key][1]

    def _at(self, values: Sequence[Any]) -> Any:
        """The value at the size that is wanted."""
        first = values[0]
        if all(first == other for other in values[1:]):
            return first
        if len(set(map(type, values))) > 1:
            raise Unlike
        if type(first) is int:
            total, rest = divmod(
                sum(w * v for w, v in zip(self._weights, values, strict=True)), self._over
            )
            if rest:
                raise Unlike
            return total
        if isinstance(first, tuple | list) and len(set(map(len, values))) == 1:
            inner = self._alike if isinstance(first, list) else self._at
            return type(first)(map(inner, zip(*values, strict=True)))
        if dataclasses.is_dataclass(first):
            fields = [field.name for field in dataclasses.fields(first)]
            return type(first)(
                **{name: self._at([getattr(value, name) for value in values]) for name in fields}
            )
        raise Unlike
