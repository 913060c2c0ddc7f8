"""What the experiments that train models share."""

from collections.abc import Iterable
from typing import Any, Literal

from repro.harness.spec import ON_CPU, Group, RunSpec, Scale

LEARN: dict[str, Any] = {"task": "learn", "balance": "parameters", "trace": False}


def recompute(scale: Scale) -> Literal["always", "never"]:
    """Small models keep their activations: the same bits of the weights, in less time."""
    return "never" if scale in ON_CPU else "always"


def groups_of(scale: Scale, name: str, runs: Iterable[RunSpec]) -> tuple[Group, ...]:
    """The runs in groups, each of which is recorded as a whole.

    On a CPU these are the runs of one seed, which are compared with each other. Elsewhere a run may
    take days, so each is a group of its own.
    """
    parts: dict[int, list[RunSpec]] = {}
    for number, run in enumerate(runs):
        parts.setdefault(run.seed if scale in ON_CPU else number, []).append(run)
    return tuple(Group(name=f"{name}-{part}", runs=tuple(of)) for part, of in parts.items())
