"""Table 2 with simulated and emulated runs of known numbers, in a results folder.

A controlled step is the uniform pipeline's, from K=8 on 1.25 times as long (the softmax), so
predictions are known. By memory each N doubles with K and M, and the step has a fixed part, so that
small batches lose.
"""

from pathlib import Path
from typing import Any

from recorded import MACHINE

from experiments.table2.recorded import SIZES
from experiments.table2.report import CAUSES
from experiments.table2.runs import CUTS
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Measured
from repro.harness.journal import Journal, Status
from repro.harness.schema import round_record
from repro.harness.sizes import NARROW
from repro.harness.spec import Experiment, Group, RunSpec
from repro.simulate import StageCosts, simulate

KS, MS = (1, 2, 4, 8), (1, 4, 32)
ENDS = 1.25  # times the step at K=8
FIXED = 0.01  # seconds of each step by memory
OVERHEAD = 1.05  # emulated over simulated
STRETCH = 2.0
MEMORY = 2**30  # bytes of a device
PROFILES = {"amoebanet-d": "tpu-v2", "transformer": "tpu-v3"}
NAMES = {
    "amoebanet-d": ("simulated", "by-memory", "share", "variance", "emulated"),
    "transformer": ("simulated", "by-memory", "narrow-by-memory", "emulated"),
}


def plan() -> Experiment:
    groups = tuple(
        Group(name=f"{model}-{name}", runs=_runs(model, name))
        for model in NAMES
        for name in NAMES[model]
    )
    return Experiment(
        name="table2",
        title="Throughput",
        question="?",
        paper="Table 2",
        neurips="Table 2",
        rounds=5,
        groups=groups,
    )


def _runs(model: str, name: str) -> tuple[RunSpec, ...]:
    args = dict(NARROW["paper"] if name.startswith("narrow") else SIZES[model])
    more: dict[str, Any] = {"model": model, "model_args": args, "N": 32, "profile": PROFILES[model]}
    more |= (
        {"fidelity": "emulated", "stretch": STRETCH}
        if name == "emulated"
        else {"fidelity": "simulated"}
    )
    more |= {"memory": MEMORY} if name.endswith("by-memory") else {}
    if name in CUTS:
        more |= {"balance": "flops", "partitioner": CUTS[name]}
    Ks = KS if name == "simulated" else KS[1:]
    runs = [RunSpec(K=K, M=M, **more) for K in Ks for M in MS]
    if name == "simulated":
        runs += [RunSpec(K=1, M=M, checkpoint="never", **more) for M in MS]
    return tuple(runs)


def costs(K: int, M: int, N: int = 32, slower: float = 1.0) -> StageCosts:
    """Of N examples of 4 ms each."""
    F = slower * N / (K * M) / 1000
    return StageCosts.uniform(K, F, F, 2 * F)


def batch(group: str, K: int, M: int) -> int:
    """N by memory; of the Transformer nothing fits at K=2, M=4."""
    return 0 if (group, K, M) == ("transformer-by-memory", 2, 4) else K * M // 2


def line(group: str, spec: RunSpec) -> tuple[dict[str, Any], Timeline | None]:
    """A line of metrics.jsonl and its spans."""
    K, M, emulated = spec.K, spec.M, spec.fidelity == "emulated"
    N = batch(group, K, M) if spec.memory else spec.N
    slower = ENDS if K == 8 else 1.0
    stages = costs(K, M, N or 1, slower)
    spans = simulate(make_schedule("gpipe", K, M, spec.checkpoint), stages)
    step = OVERHEAD * spans.step_time if emulated else spans.step_time + FIXED * bool(spec.memory)
    plain = simulate(make_schedule("gpipe", K, M, spec.checkpoint), costs(K, M, N or 1)).step_time
    rungs = dict.fromkeys(CAUSES, slower * plain) | {"imbalance": plain}
    # One N of the Transformer does not fit at K=2, M=1, by which every cell is divided.
    too_large = (group, K, M) == ("transformer-simulated", 2, 1)
    metrics = {
        "step_s": [step] if N else [],
        "loss": [1.0] if emulated else [],
        "bubble_idle_over_total": [spans.bubble_over_total if N else None],
        "bubble_idle_over_work": [spans.bubble_over_work if N else None],
        "breakdown": {},
        "peak_bytes": [2 * MEMORY if too_large else MEMORY] * K,
        "balance": [8 // K] * K,
        "setup_s": 0.1,
        "unit": "images/s",
        "labels": {"device": spec.profile},
        "modelled": {
            "batch": N,
            "stages": stages.plain(),
            "rungs": rungs if N else {},
            "bounds": dict.fromkeys(("fused", "fused and folded"), plain) if N else {},
            "memory": MEMORY,
        },
    }
    return metrics, spans if N and (K, M) in ((2, 1), (8, 4)) else None


def fill_modelled(results: Path) -> None:
    """Record one round of everything simulated and five of everything emulated."""
    table2 = plan()
    folder = Journal.of(results, MACHINE, "laptop", table2.name)
    listed = {
        run.run_id(1, MACHINE.identity): (group.name, run)
        for group in table2.groups
        for run in group.runs
    }
    folder.plan(table2, MACHINE, accumulate=True)
    for group in table2.groups:
        runs = {name: run for name, (at, run) in listed.items() if at == group.name}
        rounds = 5 if group.name.endswith("emulated") else 1
        measured = {}
        for name, run in runs.items():
            metrics, spans = line(group.name, run)
            measured[name] = Measured(round_record(metrics), spans)
        for _ in range(rounds):
            folder.commit(
                group.name, measured, MACHINE, ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")
            )
        folder.set_status(dict.fromkeys(runs, Status("done")))
