"""Run layers one after the other, so that they compute the same bits on however many stages.

Three things are done for every layer, whatever the stage, and so are no guards:

- its random state, seeded from (seed, step, micro-batch, layer): dropout draws the same mask in F
  and in R and for every K;
- the memory layout of the gradients that it gets, which is that behind a stage boundary;
- the user's autocast region, which is left for everything but layers and loss.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from repro.gpipe.comm.message import settle_gradients
from repro.gpipe.errors import is_refusal
from repro.gpipe.exact import rng
from repro.gpipe.tree import Tree

Calls = Sequence[tuple[int, Callable[[Tree], Tree]]]  # index and layer


class LayerRunner:
    """Runs layers on one device.

    Attributes:
        first: number of this replica's first micro-batch, counted over all replicas.
        draws: names of the generators, other than torch's, from which a layer draws.
        autocast: the lower precision of the user's region, or None.
    """

    def __init__(self, device: torch.device, seed: int, first: int) -> None:
        self.device, self.seed, self.first = device, seed, first
        self.draws: set[str] = set()
        self.autocast: torch.dtype | None = None
        self._others: list[rng.Source] = []
        self._step, self._evaluation, self._step_seed = 0, 0, seed

    def begin_step(self, step: int, *, evaluate: bool) -> None:
        """Before the first action of a step, or of an evaluation between two steps."""
        # Evaluations between two steps draw different numbers, for Monte-Carlo dropout for example.
        self._evaluation = self._evaluation + 1 if evaluate and step == self._step else 0
        again = rng.hashed(self.seed, step, rng.EVALUATION, self._evaluation)
        self._step, self._step_seed = step, again if evaluate else self.seed

    def seeds(self, i: int, layers: Sequence[int]) -> list[int]:
        """Seeds of a micro-batch for each of these layers.

        They are hashed together, since between two layers this code is in no cache.
        """
        return [rng.hashed(self._step_seed, self._step, self.first + i, n) for n in layers]

    def run(self, value: Tree, calls: Calls, seeds: Sequence[int]) -> Tree:
        """Return the result of the last call."""
        with self.region:
            for (index, call), seed in zip(calls, seeds, strict=False):
                rng.reseed(seed, self.device, self._others)
                try:
                    value = call(value)
                except Exception as error:
                    if not is_refusal(error) and isinstance(call, nn.Module):
                        error.add_note(f"(in layers[{index}], a {type(call).__name__})")
                    raise
                if torch.is_grad_enabled():
                    settle_gradients(value)
        return value

    @property
    def region(self) -> AbstractContextManager[object]:
        """The autocast region of layers and loss."""
        dtype = self.autocast
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    @contextmanager
    def generators_preserved(self, *, evaluate: bool) -> Iterator[set[str]]:
        """Wrap a step: put the user's generators of random numbers back at its end.

        The set then has the names of those that something drew from and that were not seeded for
        it. An evaluation, which is not taken again, seeds all of them, which takes longer.
        """
        sources = rng.other_sources()
        seeded = sources.keys() if evaluate else sources.keys() & self.draws
        self._others = [sources[name] for name in seeded]
        unseen: set[str] = set()
        with rng.preserved(self.device, sources) as moved:
            yield unseen
        unseen |= moved - seeded

    @contextmanager
    def autocast_left(self) -> Iterator[None]:
        """Leave the user's torch.autocast region for a step: only layers and loss run inside it.

        Inside it, the gradients of operators that ran in float32 would be computed in the lower
        precision, and so would an optimizer that multiplies matrices.
        """
        kind = self.device.type
        if not torch.is_autocast_enabled(kind):
            yield
            return
        self.autocast = torch.get_autocast_dtype(kind)
        # The region caches weights in the lower precision until its end, for many steps perhaps.
        torch.clear_autocast_cache()
        try:
            with torch.autocast(kind, enabled=False):
                yield
        finally:
            self.autocast = None
            torch.clear_autocast_cache()
