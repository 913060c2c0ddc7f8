"""How the layers of a run are cut into stages, decided here for every kind of run.

A spec has the rule. `repro.gpipe.partition.balance.choose` applies it, in a Pipeline, for a peer
and for a prediction alike; here it gets what it makes even.
"""

from collections.abc import Callable, Sequence

from repro.costs.counter import Counter
from repro.gpipe.core.layers import Layer
from repro.gpipe.partition.balance import choose
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost, additive
from repro.gpipe.tree import Tree
from repro.harness.job import Job
from repro.harness.spec import RunSpec, canonical
from repro.models import Model

Balance = str | Sequence[int] | Cost  # as `Pipeline` takes it
_OF_CUT = {
    "model", "model_args", "K", "M", "N", "D", "checkpoint", "balance", "partitioner",
    "stages_per_rank",
}  # fmt: skip


def balance_of(job: Job, model: Model, sample: Tree) -> Balance:
    """What cuts the layers of a job; `sample` are the inputs of one micro-batch."""
    if job.simulated is not None:  # its stand-in has one layer for each stage
        return "uniform"

    def flops() -> list[int]:
        return forward_flops(Counter(model.layers, model.loss, device=job.device), sample)

    return job.balance or _balance(job.spec, flops)


def counts_of(
    spec: RunSpec,
    layers: Sequence[Layer],
    flops: Callable[[], Sequence[int]],
    by_time: Callable[[], Cost],
) -> tuple[int, ...]:
    """Layers of each stage of a run that is not executed, as `Pipeline` cuts them."""
    spec.check_depth(len(layers))
    balance, partitioner = _balance(spec, flops), partitioner_of(spec)
    return choose(layers, spec.total_stages, balance, partitioner, by_time).counts


def partitioner_of(spec: RunSpec) -> str:
    return spec.partitioner or SMALLEST_LARGEST


def _balance(spec: RunSpec, flops: Callable[[], Sequence[int]]) -> Balance:
    return additive(flops()) if spec.balance == "flops" else spec.balance


def forward_flops(counter: Counter, inputs: Tree) -> list[int]:
    """FLOPs of each layer's forward."""
    return [sum(op.flops for op in counter.layer(n, inputs).ops) for n in range(len(counter))]


class TimedCuts:
    """Cuts by measured time: the first run of a cut measures it, and later ones share it."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, ...]] = {}

    def of(self, spec: RunSpec) -> tuple[int, ...] | None:
        return self._counts.get(_key(spec)) if spec.balance == "time" else None

    def add(self, spec: RunSpec, counts: Sequence[int]) -> None:
        self._counts[_key(spec)] = tuple(counts)


def _key(spec: RunSpec) -> str:
    return canonical(spec.model_dump(mode="json", include=_OF_CUT))
