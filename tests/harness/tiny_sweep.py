"""The sweep of the campaign: milliseconds a step, two groups, K and M of 1 and 2."""

from repro.harness.spec import Experiment, Group, Scale, sweep

SMALL = {
    "timed": {"L": 2, "forward_s": 0.001, "backward_s": 0.002},
    "transformer": {"L": 2, "d": 32, "H": 64, "heads": 2, "V": 128, "T": 16},
}


def experiment(scale: Scale = "smoke") -> Experiment:
    """Cut evenly, so that the clock decides nothing but times."""
    sizes = {"K": [1, 2], "M": [1, 2], "N": 4, "warmup": 0, "steps": 1, "balance": "uniform"}
    groups = []
    for model, args in SMALL.items():
        fidelity = "emulated" if model == "timed" else "measured"
        runs = sweep(model=model, model_args=args, fidelity=fidelity, **sizes)
        groups.append(Group(name=model, runs=runs))
    return Experiment(
        name="campaign", title="A tiny sweep", question="?", rounds=2, groups=tuple(groups)
    )
