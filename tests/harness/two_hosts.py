"""An experiment of real stages on four processes, one run of which fails."""

from repro.harness.spec import Experiment, Group, RunSpec, Scale


def experiment(scale: Scale = "smoke") -> Experiment:
    waits = {"L": 4, "forward_s": 0.01, "backward_s": 0.01}
    fixed = {
        "model": "timed",
        "model_args": waits,
        "fidelity": "emulated",
        "balance": "uniform",
        "N": 4,
        "steps": 1,
    }
    broken = RunSpec(
        model="import:faulty:raises_in_a_worker",
        K=2,
        M=2,
        N=4,
        warmup=0,
        steps=1,
        balance="uniform",
    )
    before, after = RunSpec(**fixed, K=4, M=2, trace=False), RunSpec(**fixed, K=4, M=4)
    return Experiment(
        name="two-hosts",
        title="Four stages on two hosts",
        question="?",
        rounds=1,
        groups=tuple(
            Group(name=n, runs=(r,))
            for n, r in (("before", before), ("broken", broken), ("after", after))
        ),
    )
