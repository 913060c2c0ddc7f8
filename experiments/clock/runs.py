"""The clock alone: published durations on our schedules, against published steps."""

from typing import Any

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, RunSpec, Scale, ScheduleName
from repro.paper.numbers import Peer, zero_bubble

NAME = "clock"
ABOUT = read_about(__file__)
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved-1f1b", "zb-h1")


def experiment(scale: Scale = "laptop") -> Experiment:
    """Bubble rates and throughput of three schedules in Zero Bubble's twelve settings.

    Source: Qi et al., arXiv:2401.10241, whose Table 6 has the times of F, of both parts of B and of
    a message on A100 GPUs. Nothing is fitted.
    """
    rows = zero_bubble()[:1] if scale == "smoke" else zero_bubble()
    specs = tuple(_spec(row, schedule) for row in rows for schedule in SCHEDULES)
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine",
        minutes={"smoke": 0.1, "laptop": 0.5},
        rounds=1,
        groups=(Group(name="zero-bubble", runs=specs),),
    )


def _spec(row: Peer, schedule: ScheduleName) -> RunSpec:
    """A stage is one timed layer; where they interleave, each layer of the source is a stage."""
    K, M, N = (number or 0 for number in (row.K, row.M, row.N))
    ms = {name: value or 0.0 for name, value in row.values.items()}
    stages = round(ms["stages_per_device"]) if schedule == "interleaved-1f1b" else 1
    F, inner, W = (ms[f"{kind}_ms"] / 1e3 / stages for kind in "FIW")
    args: dict[str, Any] = {"L": K * stages, "forward_s": F, "backward_s": inner + W}
    return RunSpec(
        model="timed",
        model_args=args | {"weight_s": W, "elements": 1},
        K=K,
        M=M,
        N=N,
        schedule=schedule,
        stages_per_rank=stages if stages > 1 else None,
        checkpoint="never",
        balance="uniform",
        link=LinkSpeed(latency=ms["link_ms"] / 1e3),
        fidelity="simulated",
    )
