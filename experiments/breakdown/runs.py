"""The breakdown of a step: section 3.1 and Table 4 of the NeurIPS version of GPipe."""

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, MODELLED_AMOEBANET, TRANSFORMER, in_blocks, sets
from repro.harness.spec import Experiment, Group, Scale, sweep

NAME = "breakdown"
ABOUT = read_about(__file__)
K = 2
M = 16
OPEN_MS = (M // 2, M, 2 * M)  # of simulated steps, as the paper prints none
MEASURED = {"amoebanet-d": AMOEBANET, "transformer": TRANSFORMER}
MEASURED_N = {"smoke": 32, "laptop": 128, "node": 128, "paper": 128}
MODELLED = "amoebanet-d"


def experiment(scale: Scale = "laptop") -> Experiment:
    """Computation, recompute, imbalance, bubble, set-up and update of a step at K=2."""
    here = {"N": MEASURED_N[scale], **in_blocks(scale, 5)}
    measured = [
        Group(name=model, runs=sweep(model=model, K=K, M=M, model_args=sizes[scale], **here))
        for model, sizes in MEASURED.items()
    ]
    simulated = sweep(
        model=MODELLED,
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
        needs="2 devices",
        minutes={"smoke": 0.1, "laptop": 0.5, "node": 4, "paper": 4},
        version=3,
        rounds=sets(scale),
        groups=(*measured, Group(name=f"{MODELLED}-simulated", runs=simulated)),
    )
