"""An experiment of real stages on four processes, one run of which fails; for test_hosts.py."""

from repro.harness.spec import Experiment, Group, RunSpec, Scale


def experiment(scale: Scale = "smoke") -> Experiment:
    waits = {"L": 4, "forward_s": 0.01, "backward_s": 0.01}
    fixed = {"balance": "uniform", "N": 4, "steps": 1}
    timed = fixed | {"model": "timed", "model_args": waits, "fidelity": "emulated", "K": 4}
    runs = {
        "before": RunSpec(**timed, M=2, trace=False),
        "broken": RunSpec(**fixed, model="import:faulty:raises_in_a_worker", K=2, M=2, warmup=0),
        "after": RunSpec(**timed, M=4),
    }
    return Experiment(
        name="two-hosts",
        title="Four stages on two hosts",
        question="?",
        rounds=1,
        groups=tuple(Group(name=name, runs=(run,)) for name, run in runs.items()),
    )
