"""Is the simulator right? Simulated steps against measured and emulated ones."""

from typing import Any

from repro.harness.sizes import AMOEBANET, TRANSFORMER
from repro.harness.spec import Experiment, Group, RunSpec, Scale

NAME = "simulator"
K = 2
MS: dict[Scale, tuple[int, ...]] = {"smoke": (1, 4), "laptop": (1, 4, 8, 32), "node": (1, 4, 8, 32)}
N: dict[Scale, int] = {"smoke": 32, "laptop": 128, "node": 128}
# Of the micro-batches that are timed: none is as large as one that is judged.
CALIBRATED_N: dict[Scale, int] = {"smoke": 48, "laptop": 192, "node": 192}
SMALLEST = 3  # examples
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "node": 5}
DEVIATIONS = (
    "No table of the paper: it is what simulated columns elsewhere rest on.",
    "Layers are timed while K processes compute at once, since they share memory bandwidth, and "
    "in turn, since at M=1 the others wait, in micro-batches of 3, 6, 12, ... 192 examples; a "
    "step mixes both by how much its stages compute at the same time. Judged are steps whose "
    "micro-batches have 128, 32, 16 and 4. In between it is interpolated.",
    "Emulated against simulated: eight stages of 20 ms, whose durations are known; what is left "
    "is the runtime.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Simulated against measured steps (K=2, M = 1 to 32) and emulated ones (K=8, M=32).

    The paper has no simulator. A cell's error is the simulated step over the measured one of the
    same round, minus 1; the cut is the measured run's own.
    """
    known = {"smoke": (2, 4, 0.002)}.get(scale, (8, 32, 0.02))
    at = scale if scale in N else "laptop"
    return Experiment(
        name=NAME,
        title="Is the simulator right?",
        question="How far are simulated steps from measured and emulated ones?",
        needs="2 devices",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.3, "laptop": 7, "node": 5},
        version=2,
        rounds=ROUNDS[at],
        groups=(
            _group("amoebanet-d", AMOEBANET[scale], at),
            _group("transformer", TRANSFORMER[scale], at),
            Group(name="known-durations", runs=_known(*known)),
        ),
    )


def _group(model: str, args: dict[str, Any], scale: Scale) -> Group:
    """The calibration and what it is judged on, in the same rounds."""
    common: dict[str, Any] = {"model": model, "model_args": args, "K": K}
    most = CALIBRATED_N[scale]
    timed = RunSpec(
        N=most, M=most // SMALLEST, task="calibrate", balance="uniform", steps=1, **common
    )
    return Group(name=model, runs=(timed, *(RunSpec(M=M, N=N[scale], **common) for M in MS[scale])))


def _known(K: int, M: int, forward_s: float) -> tuple[RunSpec, ...]:
    args = {"L": K, "forward_s": forward_s, "backward_s": 2 * forward_s, "elements": 16384}
    common: dict[str, Any] = {
        "model": "timed",
        "model_args": args,
        "K": K,
        "M": M,
        "N": M,
        "balance": "uniform",
    }
    return (
        RunSpec(fidelity="emulated", steps=1, warmup=2, **common),
        RunSpec(fidelity="simulated", steps=1, warmup=2, **common),
    )
