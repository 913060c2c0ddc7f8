"""How far the cost model is off: steps that others published, and steps with timed layers."""

from typing import Any

from repro.experiments.published import PUBLISHED
from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, in_blocks, sets
from repro.harness.spec import Experiment, Group, RunSpec, Scale, sweep

NAME = "costs"
ABOUT = read_about(__file__)
SMALLEST = 3  # examples of the smallest micro-batch that is timed
# M and N of steps with timed layers, and the largest micro-batch that is timed. No micro-batch of a
# step has a size that is timed.
SMOKE, LAPTOP = ([1, 4], 32, 48), ([1, 4, 8, 32], 128, 192)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps that the cost model predicts, against published and measured ones."""
    published = {} if scale == "smoke" else PUBLISHED
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine; 2 devices for steps with timed layers",
        minutes={"smoke": 0.2, "laptop": 1.8, "node": 6},
        rounds=sets(scale),
        groups=(
            *(
                Group(name=name, runs=tuple(spec for spec, _ in steps()))
                for name, (_, steps) in published.items()
            ),
            _timed(scale),
        ),
    )


def _timed(scale: Scale) -> Group:
    """Layers that are timed, and the steps that are predicted from them, in the same rounds.

    Those of a Transformer are in `advise`.
    """
    Ms, N, most = SMOKE if scale == "smoke" else LAPTOP
    model = "amoebanet-d"
    common: dict[str, Any] = {"model": model, "model_args": AMOEBANET[scale], "K": 2}
    layers: dict[str, Any] = {"task": "calibrate", "balance": "uniform", "steps": 1}
    timed = RunSpec(N=most, M=most // SMALLEST, **layers, **common)
    return Group(name=model, runs=(timed, *sweep(M=Ms, N=N, **common, **in_blocks(scale, 5))))
