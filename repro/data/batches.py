"""Mini-batches of one replica in an order that a seed fixes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Read = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Any, Any]]
"""Returns (inputs, targets) of examples, given their tables, numbers and epochs, all int64 [n]."""


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
    """Mini-batches of one replica, without end; the table of each example is drawn at random.

    The examples that are left at the end of an epoch begin the first batch of the next one, so that
    every batch has N examples. The parts of all replicas, concatenated, are the batch of a single
    pipeline.
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
        self._N, self._seed, self._probabilities = N, seed, probabilities
        self._part = slice(replica * size, (replica + 1) * size)
        self._orders = [Order(count, seed) for count in counts]
        self._read = read
        self._batches = 0
        self._positions = [0] * len(counts)

    def next(self) -> tuple[Any, Any]:
        """Inputs and targets of this replica's part of the next mini-batch: N / D examples."""
        tables, examples, epochs = np.zeros((3, self._N), np.int64)
        if len(self._orders) > 1:
            rng = np.random.default_rng((self._seed, self._batches))
            tables = rng.choice(len(self._orders), self._N, p=self._probabilities)
        # All replicas draw the whole mini-batch, so that they agree on the positions.
        for table, order in enumerate(self._orders):
            places = np.flatnonzero(tables == table)
            start = self._positions[table]
            examples[places], epochs[places] = order.take(start, start + len(places))
            self._positions[table] += len(places)
        self._batches += 1
        return self._read(tables[self._part], examples[self._part], epochs[self._part])


class Evaluation(Sequence[tuple[Any, Any]]):
    """All examples once, in their own order; a batch is read when it is indexed.

    The last batch may be smaller.
    """

    def __init__(self, count: int, read: Callable[[np.ndarray], tuple[Any, Any]], N: int) -> None:
        self._places, self._read = np.split(np.arange(count), range(N, count, N)), read

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        return self._read(self._places[index])
