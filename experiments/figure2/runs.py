"""Figure 2 of arXiv:1811.06965v5: the order in which stages run a mini-batch."""

from repro.harness.about import read_about
from repro.harness.spec import Experiment, Group, RunSpec, Scale

NAME = "figure2"
ABOUT = read_about(__file__)
K = M = 4


def experiment(scale: Scale = "laptop") -> Experiment:
    """The same mini-batch on four stages, whole and in four micro-batches."""
    F = 0.002 if scale == "smoke" else 0.02  # seconds of a forward of one of M micro-batches
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 2",
        neurips="Figure 2",
        needs="any machine",
        minutes={"smoke": 0.1, "laptop": 0.2, "node": 0.2, "paper": 0.2},
        rounds=1,
        groups=(Group(name="steps", runs=(_step(F * M, 1), _step(F, M)), first=True),),
    )


def _step(F: float, micro_batches: int) -> RunSpec:
    return RunSpec(
        model="timed",
        model_args={"L": K, "forward_s": F, "backward_s": 2 * F, "elements": 16384},
        K=K,
        M=micro_batches,
        N=M,
        balance="uniform",
        fidelity="emulated",
    )
