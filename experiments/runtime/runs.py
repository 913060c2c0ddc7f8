"""What the runtime costs: stages of known duration, and message sizes."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import in_blocks, sets
from repro.harness.spec import Experiment, Group, RunSpec, Scale, sweep

NAME = "runtime"
ABOUT = read_about(__file__)
KNOWN_DURATIONS, MESSAGE_SIZE = "known-durations", "message-size"  # its groups
KIB, MIB = 2**10, 2**20
# Seconds of F (B takes twice as long), K, M. A step of K=8, M=32 at 20 ms takes 3 s: one is enough.
KNOWN = [*((0.01, K, M) for K in (2, 8) for M in (4, 32)), (0.02, 8, 32)]
BARE_AT = ((0.01, 2, 32), (0.01, 8, 32))  # where the bare loop runs too
BARE: dict[str, Any] = {"library": "bare", "trace": False}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps of known duration against arithmetic, and overhead by message size."""
    small = scale == "smoke"
    K, M, F = (2, 4, 0.002) if small else (8, 8, 0.01)
    known, bare = ([(0.002, 2, 4)],) * 2 if small else (KNOWN, BARE_AT)
    waits = in_blocks(scale, 4)
    durations = [run for f, k, m in known for run in _runs(k, m, f, 64 * KIB, **waits)]
    durations += [run for f, k, m in bare for run in _runs(k, m, f, 64 * KIB, **waits, **BARE)]
    sent = (64 * KIB, MIB) if small else (64 * KIB, MIB, 8 * MIB)
    both: dict[str, Any] = {"transport": ["shm", "gloo"], **waits}
    sizes = [run for size in sent for run in _runs(K, M, F, size, **both)]
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine; stages wait, so K=8 needs no 8 devices",
        minutes={"smoke": 0.1, "laptop": 2.5},
        rounds=sets(scale),
        groups=(
            Group(name=KNOWN_DURATIONS, runs=tuple(durations)),
            Group(name=MESSAGE_SIZE, runs=tuple(sizes)),
        ),
    )


def _runs(K: int, M: int, F: float, message: int, **other: Any) -> tuple[RunSpec, ...]:
    """K timed layers, one a stage; a message has this many bytes for each example."""
    args = {"L": K, "forward_s": F, "backward_s": 2 * F, "elements": message // 4}
    given: dict[str, Any] = {"K": K, "M": M, "N": M, "balance": "uniform"} | other
    return sweep(model="timed", model_args=args, fidelity="emulated", **given)
