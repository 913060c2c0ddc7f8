"""What the runtime costs: stages of known duration."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import in_blocks
from repro.harness.spec import Experiment, Group, RunSpec, Scale

NAME = "runtime"
ABOUT = read_about(__file__)
MESSAGE = 64 * 2**10  # bytes of a micro-batch between two stages
# Seconds of F (B takes twice as long), K, M. A step of K=8, M=32 at 20 ms takes 3 s: one is enough.
KNOWN = [*((0.01, K, M) for K in (2, 8) for M in (4, 32)), (0.02, 8, 32)]
BARE_AT = ((0.01, 2, 32), (0.01, 8, 32))  # where the bare loop runs too
BARE: dict[str, Any] = {"library": "bare", "trace": False}


def experiment(scale: Scale = "laptop") -> Experiment:
    """Steps of known duration against arithmetic."""
    known, bare = ([(0.002, 2, 4)],) * 2 if scale == "smoke" else (KNOWN, BARE_AT)
    waits = in_blocks(scale, 5)
    runs = [_run(*point, **waits) for point in known]
    runs += [_run(*point, **waits, **BARE) for point in bare]
    return Experiment(
        **ABOUT.of_experiment,
        needs="any machine; stages wait, so K=8 needs no 8 devices",
        minutes={"smoke": 0.1, "laptop": 1.1},
        rounds=1,  # waits hardly differ from round to round
        groups=(Group(name="known-durations", runs=tuple(runs)),),
    )


def _run(F: float, K: int, M: int, **other: Any) -> RunSpec:
    """K timed layers, one a stage."""
    args = {"L": K, "forward_s": F, "backward_s": 2 * F, "elements": MESSAGE // 4}
    given: dict[str, Any] = {"K": K, "M": M, "N": M, "balance": "uniform"} | other
    return RunSpec(model="timed", model_args=args, fidelity="emulated", **given)
