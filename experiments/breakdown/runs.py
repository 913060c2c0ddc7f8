"""The breakdown of a step: section 3.1 and Table 4 of the NeurIPS version of GPipe."""

from repro.harness.about import read_about
from repro.harness.sizes import MODELLED_AMOEBANET
from repro.harness.spec import Experiment, Group, Scale, sweep

NAME = "breakdown"
ABOUT = read_about(__file__)
K = 2
M = 16
OPEN_MS = (M // 2, M, 2 * M)  # as the paper prints none


def experiment(scale: Scale = "laptop") -> Experiment:
    """Computation, recompute, imbalance, bubble, set-up and update of a step at K=2."""
    simulated = sweep(
        model="amoebanet-d",
        model_args=MODELLED_AMOEBANET[scale],
        K=K,
        M=[*OPEN_MS],
        N=128,
        profile="tpu-v2",
        optimizer="rmsprop",
        fidelity="simulated",
    )
    return Experiment(
        **ABOUT.of_experiment,
        neurips="Table 4",
        needs="any machine",
        minutes={"smoke": 0.1, "laptop": 0.1, "node": 0.1, "paper": 0.1},
        version=3,
        rounds=1,
        groups=(Group(name="amoebanet-d-simulated", runs=simulated, first=True),),
    )
