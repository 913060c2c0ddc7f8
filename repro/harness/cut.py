"""How the layers of a run are cut into stages: decided here for workers, peers and predictions."""

from collections.abc import Callable, Sequence

from repro.costs.counter import Counter
from repro.gpipe import PipelineConfig
from repro.gpipe.core.layers import Layer
from repro.gpipe.partition.balance import choose
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost, additive
from repro.gpipe.tree import Tree
from repro.harness.request import Request
from repro.harness.spec import RunSpec, canonical
from repro.models import Model

_OF_CUT = {
    "model", "model_args", "K", "M", "N", "D", "recompute", "balance", "partitioner",
    "stages_per_rank",
}  # fmt: skip


def config_of(request: Request, model: Model, sample: Tree) -> PipelineConfig:
    """The pipeline of a request; `sample` are the inputs of one micro-batch."""

    def flops() -> list[int]:
        return forward_flops(Counter(model.layers, model.loss, device=request.device), sample)

    return config_with(request.spec, request.balance or _balance(request.spec, flops))


def counts_of(
    spec: RunSpec,
    layers: Sequence[Layer],
    flops: Callable[[], Sequence[int]],
    by_time: Callable[[], Cost],
) -> tuple[int, ...]:
    """Layers of each stage of a run that is predicted; it is cut as `Pipeline` cuts."""
    spec.check_depth(len(layers))
    return choose(layers, config_with(spec, _balance(spec, flops)), by_time).counts


def config_with(spec: RunSpec, balance: str | Sequence[int] | Cost) -> PipelineConfig:
    return PipelineConfig(
        stages=spec.K,
        micro_batches=spec.M,
        replicas=spec.D,
        balance=balance,
        partitioner=spec.partitioner or SMALLEST_LARGEST,
        recompute=spec.recompute,
        schedule=spec.schedule,
        transport=spec.transport,
        throttle=spec.link,
        stages_per_rank=spec.stages_per_rank or 1,
    )


def _balance(spec: RunSpec, flops: Callable[[], Sequence[int]]) -> str | Sequence[int] | Cost:
    return additive(flops()) if spec.balance == "flops" else spec.balance


def forward_flops(counter: Counter, inputs: Tree) -> list[int]:
    """FLOPs of each layer's forward."""
    return [sum(op.flops for op in counter.layer(n, inputs).ops) for n in range(len(counter))]


def cut_key(spec: RunSpec) -> str:
    """Equal for runs that are cut alike. By measured time, the first one is cut for all of them."""
    return canonical(spec.model_dump(mode="json", include=_OF_CUT))
