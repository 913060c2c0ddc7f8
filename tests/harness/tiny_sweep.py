"""The sweep of the campaign: milliseconds a step, two groups, K and M of 1 and 2."""

from repro.harness.spec import Experiment, Group, RunSpec, Scale

SMALL = {
    "timed": {"L": 2, "forward_s": 0.001, "backward_s": 0.002},
    "transformer": {"L": 2, "d": 32, "H": 64, "heads": 2, "V": 128, "T": 16},
}


def experiment(scale: Scale = "smoke") -> Experiment:
    """Cut evenly, so that the clock decides nothing but times."""
    groups = []
    for model, args in SMALL.items():
        fidelity = "emulated" if model == "timed" else "measured"
        common = {
            "model": model,
            "model_args": args,
            "N": 4,
            "warmup": 0,
            "steps": 1,
            "balance": "uniform",
        }
        runs = tuple(RunSpec(K=K, M=M, fidelity=fidelity, **common) for K in (1, 2) for M in (1, 2))
        groups.append(Group(name=model, runs=runs))
    return Experiment(
        name="campaign", title="A tiny sweep", question="?", rounds=2, groups=tuple(groups)
    )
