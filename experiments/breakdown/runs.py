"""The breakdown of a step: section 3.1 and Table 4 of the NeurIPS version of GPipe."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import (
    AMOEBANET,
    MODELLED_AMOEBANET,
    MODELLED_TRANSFORMER,
    TRANSFORMER,
    in_blocks,
    sets,
)
from repro.harness.spec import Experiment, Group, Scale, sweep

NAME = "breakdown"
ABOUT = read_about(__file__)
K = 2
M = 16
MEASURED = {"amoebanet-d": AMOEBANET, "transformer": TRANSFORMER}
MODELLED = {"amoebanet-d": MODELLED_AMOEBANET, "transformer": MODELLED_TRANSFORMER}
# Device, N, and emulated seconds for one of the device's.
DEVICES = {"amoebanet-d": ("tpu-v2", 128, 1.0), "transformer": ("tpu-v3", 32, 0.1)}
MEASURED_N = {"smoke": 32, "laptop": 128, "node": 128, "paper": 128}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Computation, recompute, imbalance, bubble, set-up and update of a step at K=2.

    Paper: NeurIPS 2019, section 3.1 and its Table 4, a pie chart: computation 65.6 %, recompute
    22.5 %, load imbalance 3.2 %, bubble 4.1 %, set-up 2.9 %, weight update 1.7 % by subtraction.
    arXiv v5 has no such table.
    """
    measured, simulated, emulated = [], [], []
    for model, (profile, N, stretch) in DEVICES.items():
        here = {"model_args": MEASURED[model][scale], "N": MEASURED_N[scale]}
        here |= in_blocks(scale, 10)
        measured.append(Group(name=model, runs=sweep(model=model, K=K, M=M, **here)))
        modelled: dict[str, Any] = {"model": model, "model_args": MODELLED[model][scale], "K": K}
        modelled |= {"N": N, "profile": profile, "optimizer": "rmsprop"}
        # M=16, and half and twice as many for comparison.
        runs = sweep(M=[M // 2, M, 2 * M], fidelity="simulated", **modelled)
        simulated.append(Group(name=f"{model}-simulated", runs=runs))
        # Waits hardly differ from round to round.
        runs = sweep(M=M, fidelity="emulated", stretch=stretch, steps=1, **modelled)
        emulated.append(Group(name=f"{model}-emulated", runs=runs, rounds=1))
    return Experiment(
        **ABOUT.of_experiment,
        neurips="Table 4",
        needs="2 devices",
        minutes={"smoke": 0.3, "laptop": 1, "node": 4, "paper": 4},
        version=3,
        rounds=sets(scale),
        # Tiny models' steps are too short to wait.
        groups=(*measured, *simulated, *(emulated if scale != "smoke" else ())),
    )
