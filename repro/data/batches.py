"""Mini-batches in an order that a seed fixes, for one replica, resumable at any batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Read = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]
"""Gives (inputs, targets) of examples; arguments are their numbers and epochs, both int64 [n]."""


class Batches(Protocol):
    """Mini-batches of one replica in an order that a seed fixes. They never end."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Facts that every result must state, such as {"data": "scikit-learn digits"}."""
        ...

    def next(self) -> tuple[Any, Any]:
        """Inputs and targets of this replica's part of the next mini-batch: N / D examples."""
        ...

    def state(self) -> dict[str, Any]:
        """Where the order stands, as plain JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; a ValueError if it belongs to another order."""
        ...


class Order:
    """An endless order of `count` examples: epoch after epoch, each shuffled by (seed, epoch)."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._epoch = -1
        self._permutation = np.empty(0, np.int64)

    def take(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Examples and their epochs at the positions from `start` to `stop` - 1, int64 both."""
        epochs, places = np.divmod(np.arange(start, stop), self.count)
        examples = np.empty_like(epochs)
        for epoch in np.unique(epochs):
            if epoch != self._epoch:
                rng = np.random.default_rng((self.seed, int(epoch)))
                self._epoch, self._permutation = int(epoch), rng.permutation(self.count)
            chosen = epochs == epoch
            examples[chosen] = self._permutation[places[chosen]]
        return examples, epochs


class Table:
    """Batches of examples that can be read in any order.

    What an epoch leaves over begins the first batch of the next one, so that all batches have N
    examples. The parts of all replicas, put one after the other, are the batch of one replica.
    """

    def __init__(
        self,
        count: int,
        read: Read,
        N: int,
        seed: int,
        labels: Mapping[str, str],
        replica: int = 0,
        replicas: int = 1,
    ) -> None:
        self.part = part_of(N, replica, replicas)
        self.N, self.labels = N, dict(labels)
        self._order, self._read = Order(count, seed), read
        self._batches = 0

    def next(self) -> tuple[Any, Any]:
        start = self._batches * self.N
        self._batches += 1
        return self._read(*self._order.take(start + self.part.start, start + self.part.stop))

    def state(self) -> dict[str, Any]:
        return {**self._identity(), "batches": self._batches}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state(state, self._identity())
        self._batches = state["batches"]

    def _identity(self) -> dict[str, int]:
        return {"N": self.N, "seed": self._order.seed, "examples": self._order.count}


class Mixture:
    """Batches of several tables, each example's table drawn with a probability.

    Args:
        counts: examples of each table.
        probabilities: of each table; they add up to 1.
        read: gives (inputs, targets) of [(table, example), ...].
        N: examples of a mini-batch over all replicas.
        seed: fixes the tables drawn, and the order within each.
        labels: facts that every result must state.
        replica: number of this replica.
        replicas: D.
    """

    def __init__(
        self,
        counts: Sequence[int],
        probabilities: Sequence[float],
        read: Callable[[list[tuple[int, int]]], tuple[Any, Any]],
        N: int,
        seed: int,
        labels: Mapping[str, str],
        replica: int = 0,
        replicas: int = 1,
    ) -> None:
        self.part = part_of(N, replica, replicas)
        self.N, self.seed, self.labels = N, seed, dict(labels)
        self._orders = [Order(count, seed) for count in counts]
        self._probabilities, self._read = list(probabilities), read
        self._batches = 0
        self._positions = [0] * len(self._orders)

    def next(self) -> tuple[Any, Any]:
        rng = np.random.default_rng((self.seed, self._batches))
        tables = rng.choice(len(self._orders), self.N, p=self._probabilities)
        examples = np.empty(self.N, np.int64)
        # All replicas draw the whole mini-batch, so that they agree on the positions.
        for table, order in enumerate(self._orders):
            places = np.flatnonzero(tables == table)
            start = self._positions[table]
            examples[places], _ = order.take(start, start + len(places))
            self._positions[table] += len(places)
        self._batches += 1
        chosen = slice(self.part.start, self.part.stop)
        pairs = zip(tables[chosen].tolist(), examples[chosen].tolist(), strict=True)
        return self._read(list(pairs))

    def state(self) -> dict[str, Any]:
        return {**self._identity(), "batches": self._batches, "positions": list(self._positions)}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_state(state, self._identity())
        self._batches, self._positions = state["batches"], list(state["positions"])

    def _identity(self) -> dict[str, Any]:
        counts = [order.count for order in self._orders]
        return {"N": self.N, "seed": self.seed, "examples": counts, "p": self._probabilities}


class Evaluation(Sequence[tuple[Any, Any]]):
    """All examples once, in their own order, read when asked for; the last batch may be shorter."""

    def __init__(self, count: int, read: Read, N: int, labels: Mapping[str, str]) -> None:
        self.examples, self.N, self.labels = count, len(part_of(N)), dict(labels)
        self._read = read

    def __len__(self) -> int:
        return -(-self.examples // self.N)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        start = range(0, self.examples, self.N)[index]
        examples = np.arange(start, min(start + self.N, self.examples))
        return self._read(examples, np.zeros_like(examples))


def part_of(N: int, replica: int = 0, replicas: int = 1) -> range:
    """Places of a mini-batch that belong to a replica, N / D of them."""
    if replicas < 1 or not 0 <= replica < replicas:
        raise ValueError(
            f"replica={replica}: allowed are 0 to {replicas - 1} of {replicas} replicas"
        )
    if N < 1 or N % replicas:
        raise ValueError(
            f"N={N}: must be a positive multiple of the number of replicas, {replicas}; try "
            f"N={max(N - N % replicas, replicas)}"
        )
    size = N // replicas
    return range(replica * size, (replica + 1) * size)


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    for name, value in identity.items():
        if state.get(name) != value:
            raise ValueError(
                f"{name}={value!r}: the checkpoint's data order was made with "
                f"{name}={state.get(name)!r}, so training cannot continue with the same examples; "
                f"use {name}={state.get(name)!r} or start anew"
            )
