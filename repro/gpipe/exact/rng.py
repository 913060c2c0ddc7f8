"""Random state that belongs to (seed, step, micro-batch, layer) and never to a process.

So dropout draws the same mask in F and in R, and for every K. The user's own generators are left as
they were.

torch's generators are seeded for every layer: `default_generator.manual_seed` takes about a
microsecond, `torch.manual_seed` a hundred times as much. Seeding Python's and NumPy's generators
takes longer. It is done on ranks where a layer was seen to draw from them, and in evaluations.
"""

import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from numbers import Integral
from typing import Any

import torch

INITIALISATION = -1  # the "step" under which layers are initialised
EVALUATION = -1  # the "micro-batch" from which the seed of an evaluation comes


def hashed(seed: int, step: int, micro_batch: int, layer: int) -> int:
    """A hash of 32 bits of all four numbers, the same on every machine."""
    digest = blake2b(struct.pack("<4q", seed, step, micro_batch, layer), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def check_seed(seed: object) -> None:
    """Raise a ValueError unless it is a whole number of 64 bits."""
    if not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**63:
        raise ValueError(f"seed={seed!r}: must be a whole number of 64 bits; try 0")


@dataclass(frozen=True)
class Source:
    """A generator of random numbers: how to seed it, and how to put its state back."""

    seed: Callable[[int], Any]
    state: Callable[[], Any]
    restore: Callable[[Any], Any]


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal; one of NumPy holds an array, which has no plain equality."""
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else pickle.dumps(a) == pickle.dumps(b)


def reseed(value: int, device: torch.device, others: Iterable[Source] = ()) -> None:
    """Seed the generators that a layer on this device draws from."""
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[_index(device)].manual_seed(value)
    for source in others:
        source.seed(value)


def torch_sources(device: torch.device) -> list[Source]:
    """Torch's generators that a layer on this device draws from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[_index(device)])
    return [Source(g.manual_seed, g.get_state, g.set_state) for g in generators]


def other_sources() -> dict[str, Source]:
    """Python's generator, and NumPy's if the program has imported NumPy."""
    sources = {"python": Source(random.seed, random.getstate, random.setstate)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        sources["numpy"] = Source(numpy.random.seed, numpy.random.get_state, numpy.random.set_state)
    return sources


@contextmanager
def preserved(
    device: torch.device, others: Mapping[str, Source] | None = None
) -> Iterator[set[str]]:
    """Put the generators back at the end; the set then has the names of others that have moved."""
    before = [(source, source.state()) for source in torch_sources(device)]
    others = others or {}
    states = {name: source.state() for name, source in others.items()}
    moved: set[str] = set()
    try:
        yield moved
    finally:
        for source, state in before:
            source.restore(state)
        for name, source in others.items():
            if not same(states[name], source.state()):
                source.restore(states[name])
                moved.add(name)


@contextmanager
def trial(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Wrap a run that leaves the generators as they were; the function tells whether it drew."""
    others = other_sources()
    sources = [*torch_sources(device), *others.values()]
    with preserved(device, others):
        reseed(0, device, others.values())
        seeded = [source.state() for source in sources]
        yield lambda: not all(map(same, seeded, [source.state() for source in sources]))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
