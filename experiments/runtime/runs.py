"""What the runtime costs: stages of known duration, message sizes, layers that do nothing."""

from typing import Any

from repro.harness.spec import Experiment, Group, RunSpec, Scale, Transport

NAME = "runtime"
KNOWN_DURATIONS, MESSAGE_SIZE, NO_OP = "known-durations", "message-size", "no-op"  # its groups
KIB, MIB = 2**10, 2**20
SMALL = 64 * KIB
# (seconds of F, K, M); B takes twice as long as F. A step of K=8, M=32 at 20 ms takes 3 s, so there
# is one of these.
KNOWN = [(0.01, K, M) for K in (2, 4, 8) for M in (4, 32)] + [(0.02, 8, 32)]
# The same -> the overhead in percent that the median is to stay below.
GOALS: dict[tuple[float, int, int], float] = {(0.01, 8, 32): 4.0, (0.02, 8, 32): 1.5}
SPAN_GOAL = 5  # microseconds that recording a span may take
KNOWN_SMOKE = [(0.002, 2, 4)]
SIZES = (SMALL, 256 * KIB, MIB, 4 * MIB, 8 * MIB)
SIZES_SMOKE = (SMALL, MIB)
DEVIATIONS = (
    "No table of the paper: its runtime is not described. Layers wait instead of computing, so "
    "numbers of stages that this machine has no devices for can be run; what they cost besides "
    "waiting is the runtime's own cost.",
    "Layers pass their messages on untouched. What is left of a large one is to copy it, to "
    "accumulate its gradient and, on the last stage, the loss; with fewer cores than stages all "
    "of that counts as overhead of the runtime.",
    "Message sizes are compared at M=8, not 32: each of the 8 stages keeps M messages and its "
    "process makes as many, which at 8 MiB would fill a laptop's memory.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps of known duration against arithmetic, overhead by message size, cost of an action.

    Paper: the step of a pipeline of K equal stages that recomputes early (section 2.3 of
    arXiv:1811.06965v5), (M+K-1)F + M(R+B) + (K-1)B with F:R:B = 1:1:2. Every stage is one layer of
    known duration.
    """
    small = scale == "smoke"
    K, M, forward_s = (2, 4, 0.002) if small else (8, 8, 0.01)
    transports: tuple[Transport, ...] = ("shm", "gloo")
    known = [_run(k, m, f, SMALL, warmup=2) for f, k, m in (KNOWN_SMOKE if small else KNOWN)]
    # Memory that messages are put in is made in the first steps.
    sizes = [
        _run(K, M, forward_s, size, transport=t, warmup=3)
        for size in (SIZES_SMOKE if small else SIZES)
        for t in transports
    ]
    no_op = [
        _run(k, 4 if small else 32, 0.0, 4, trace=trace, steps=5)
        for k in (1, 2)
        for trace in (True, False)
    ]
    return Experiment(
        name=NAME,
        title="What the runtime costs",
        question=(
            "How far from arithmetic is a step of stages of known duration, and where does the "
            "difference go?"
        ),
        needs="any machine; stages wait, so K=8 needs no 8 devices",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.3, "laptop": 5},
        rounds=2 if small else 5,
        groups=(
            Group(name=KNOWN_DURATIONS, runs=tuple(known)),
            Group(name=MESSAGE_SIZE, runs=tuple(sizes)),
            Group(name=NO_OP, runs=tuple(no_op)),
        ),
    )


def _run(K: int, M: int, forward_s: float, message: int, steps: int = 1, **changed: Any) -> RunSpec:
    """K timed layers, one a stage; a message has this many bytes for each example."""
    return RunSpec(
        model="timed",
        model_args={
            "L": K,
            "forward_s": forward_s,
            "backward_s": 2 * forward_s,
            "elements": message // 4,
        },
        K=K,
        M=M,
        N=M,
        balance="uniform",
        steps=steps,
        fidelity="emulated",
        **changed,
    )
