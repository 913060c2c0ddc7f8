"""Mini-batches in an order that a seed fixes, for one replica, resumable at any batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Read = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Any, Any]]
"""Gives (inputs, targets) of examples: their tables, numbers and epochs, all int64 [n]."""


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


class Batches:
    """Mini-batches of one replica, without end, each example's table drawn with a probability.

    What an epoch leaves over begins the first batch of the next one, so that all batches have N
    examples. The parts of all replicas, put one after the other, are the batch of one replica.
    """

    def __init__(
        self,
        counts: Sequence[int],  # examples of each table
        read: Read,
        N: int,  # examples of a mini-batch over all replicas
        seed: int,  # fixes the tables drawn, and the order within each
        labels: Mapping[str, str],  # facts that every result must state
        replica: int = 0,
        replicas: int = 1,
        probabilities: Sequence[float] = (1.0,),  # of each table
    ) -> None:
        assert N % replicas == 0
        size = N // replicas
        self.labels = dict(labels)
        self._part = slice(replica * size, (replica + 1) * size)
        self._orders = [Order(count, seed) for count in counts]
        self._read = read
        self._batches = 0
        self._positions = [0] * len(counts)
        self._identity = {"N": N, "seed": seed, "examples": [*counts], "p": [*probabilities]}

    def next(self) -> tuple[Any, Any]:
        """Inputs and targets of this replica's part of the next mini-batch: N / D examples."""
        N, seed, p = (self._identity[name] for name in ("N", "seed", "p"))
        tables, examples, epochs = np.zeros((3, N), np.int64)
        if len(p) > 1:
            tables = np.random.default_rng((seed, self._batches)).choice(len(p), N, p=p)
        # All replicas draw the whole mini-batch, so that they agree on the positions.
        for table, order in enumerate(self._orders):
            places = np.flatnonzero(tables == table)
            start = self._positions[table]
            examples[places], epochs[places] = order.take(start, start + len(places))
            self._positions[table] += len(places)
        self._batches += 1
        return self._read(tables[self._part], examples[self._part], epochs[self._part])

    def state(self) -> dict[str, Any]:
        positions = list(self._positions)
        return {**self._identity, "batches": self._batches, "positions": positions}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; raises a ValueError if it belongs to another order."""
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise ValueError(
                    f"{name}={value!r}: the checkpoint's data order was made with "
                    f"{name}={state.get(name)!r}; use that, or start anew"
                )
        self._batches, self._positions = state["batches"], list(state["positions"])


class Evaluation(Sequence[tuple[Any, Any]]):
    """All examples once, in their own order, read when asked for; the last batch may be shorter."""

    def __init__(self, count: int, read: Callable[[np.ndarray], tuple[Any, Any]], N: int) -> None:
        self._places, self._read = np.split(np.arange(count), range(N, count, N)), read

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        return self._read(self._places[index])
