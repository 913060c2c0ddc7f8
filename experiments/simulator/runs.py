"""Is the simulator right? Simulated steps against measured and emulated ones."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import AMOEBANET, TRANSFORMER, in_blocks, sets
from repro.harness.spec import Experiment, Group, RunSpec, Scale, sweep

NAME = "simulator"
ABOUT = read_about(__file__)
K = 2
SMALLEST = 3  # examples of the smallest micro-batch that is timed
# M and N of the judged steps, and the largest micro-batch that is timed. None that is timed is as
# large as one that is judged.
SIZES: dict[str, tuple[list[int], int, int]] = {
    "smoke": ([1, 4], 32, 48),
    "laptop": ([1, 4, 8, 32], 128, 192),
    "node": ([1, 4, 8, 32], 128, 192),
}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Simulated against measured steps (K=2, M = 1 to 32) and emulated ones (K=8, M=32).

    The paper has no simulator. A cell's error is the simulated step over the measured one of the
    same round, minus 1; the cut is the measured run's own.
    """
    at = scale if scale in SIZES else "laptop"
    known = (2, 4, 0.002) if scale == "smoke" else (8, 32, 0.02)
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices",
        minutes={"smoke": 0.3, "laptop": 4.7, "node": 5},
        version=2,
        rounds=sets(scale),
        groups=(
            _group("amoebanet-d", AMOEBANET[scale], scale, *SIZES[at]),
            _group("transformer", TRANSFORMER[scale], scale, *SIZES[at]),
            Group(name="known-durations", runs=_known(*known, **in_blocks(scale, 3))),
        ),
    )


def _group(
    model: str, args: dict[str, Any], scale: Scale, Ms: list[int], N: int, most: int
) -> Group:
    """The calibration and what it is judged on, in the same rounds."""
    common: dict[str, Any] = {"model": model, "model_args": args, "K": K}
    layers: dict[str, Any] = {"task": "calibrate", "balance": "uniform", "steps": 1}
    timed = RunSpec(N=most, M=most // SMALLEST, **layers, **common)
    judged = sweep(M=Ms, N=N, **common, **in_blocks(scale, 8))
    return Group(name=model, runs=(timed, *judged))


def _known(K: int, M: int, forward_s: float, **blocks: int) -> tuple[RunSpec, ...]:
    args = {"L": K, "forward_s": forward_s, "backward_s": 2 * forward_s, "elements": 16384}
    common: dict[str, Any] = {"model": "timed", "model_args": args, "K": K, "M": M, "N": M}
    common |= {"balance": "uniform", **blocks}
    return sweep(fidelity=["emulated", "simulated"], **common)
