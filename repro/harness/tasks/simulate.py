"""Simulated runs: a schedule on a virtual clock, with durations from a cost model.

Layer times come from a device's profile, or from layers that wait for known times. Of a profile it
is recorded too what each cause adds to the step, and how the step depends on each figure.
"""

import time
from typing import Any

from repro.harness.job import Job, Measured
from repro.harness.predict import Included, Roofline, predict, source_of
from repro.harness.schema import Dependence, Modelled, TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.setup import facts_of

_LAYERS_ALONE = Included(link=False, setup=False, update=False)
# Causes of a step's time in the order in which they are added, with all that counts up to each.
CAUSES = {
    "imbalance": _LAYERS_ALONE._replace(terms=("matmul",), ends=False),
    "ends": _LAYERS_ALONE._replace(terms=("matmul",)),
    "tile padding": _LAYERS_ALONE._replace(terms=("matmul", "padding")),
    "memory-bound": _LAYERS_ALONE._replace(terms=("matmul", "padding", "memory")),
    "launch": _LAYERS_ALONE,
    "transfer": Included(setup=False, update=False),
    "set-up": Included(update=False),
}
# Bounds of a step's time. Fused: a compiler makes every other operator a part of a matrix product,
# which then takes no time of its own.
BOUNDS = {
    "fused": Included(terms=("matmul", "padding")),
    "fused and folded": Included(terms=("matmul", "padding"), folded=True),
}
# Figures of a device that are scaled, one at a time, by each of the factors.
FIGURES = (
    "matmul_flops",
    "other_flops",
    "bytes_per_second",
    "launch_s",
    "tile",
    "setup_s",
    "link_bytes_per_second",
    "link_latency_s",
)
FACTORS = {"halved": 0.5, "doubled": 2.0}


def run(job: Job, _rank: int, _groups: list[Any]) -> Measured:
    return simulated(job.spec, job.device)


def simulated(spec: RunSpec, device: str) -> Measured:
    """One simulated run; `device` says whose operators are counted.

    Where not even micro-batches of one example stay within the memory, the record has no steps.
    """
    began = time.perf_counter()
    source = source_of(spec, device)
    found = predict(spec, source)
    n, timeline, model = found.examples, found.timeline, source.model
    assert model is not None
    explained: dict[str, Any] = {"rungs": {}}
    if n and isinstance(source, Roofline):
        at_n = spec.model_copy(update={"N": n * spec.M, "memory": None})
        explained = _explained(at_n, source)
    parameters = source.parameter_bytes(spec, found.counts) if spec.profile else None
    facts = facts_of(model, began)
    if spec.profile:
        facts["labels"]["device"] = spec.profile
    record = TrainRound(
        step_s=[found.step_s] if n else [],
        loss=[],
        bubble_idle_over_total=[timeline.idle_over_total if n else None],
        bubble_idle_over_work=[timeline.idle_over_work if n else None],
        breakdown=dict(found.shares) if n else {},
        peak_bytes=found.peaks,
        balance=list(found.counts),
        parameter_bytes=parameters,
        modelled=Modelled(batch=n * spec.M, stages=found.costs, memory=source.memory, **explained),
        **facts,
    )
    return Measured(record, timeline if n and spec.trace else None)


def _explained(spec: RunSpec, source: Roofline) -> dict[str, Any]:
    """Causes, bounds and sensitivity of a step, each time with its best cut.

    A link that the spec gives is no figure of the device.
    """

    def step_s(other: Roofline) -> float:
        return predict(spec, other).step_s

    figures = [name for name in FIGURES if spec.link is None or not name.startswith("link")]
    sensitivity = {}
    for name in figures:
        scaled = {
            word: step_s(source.changed(source.device.with_scaled(name, factor)))
            for word, factor in FACTORS.items()
        }
        sensitivity[name] = Dependence(basis=getattr(source.device, name).basis, **scaled)
    return {
        "rungs": {cause: step_s(source.changed(None, each)) for cause, each in CAUSES.items()},
        "bounds": {name: step_s(source.changed(None, each)) for name, each in BOUNDS.items()},
        "sensitivity": sensitivity,
    }
