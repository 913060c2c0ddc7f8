"""The bubble (arXiv:1811.06965v5, section 2.3): which share of a pipeline idles, for K and M."""

from functools import partial
from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import TRANSFORMER, in_blocks, sets
from repro.harness.spec import ON_CPU, Experiment, Group, RunSpec, Scale, sweep

NAME = "bubble"
ABOUT = read_about(__file__)
KS = (2, 4, 8, 16)
SLOW, SLOW_M = 1.5, 16  # one stage takes so many times as long
# Seconds of F (B takes twice that), most M over K in emulated steps, K with one slow stage.
KNOWN = {"smoke": (0.002, 4, 2), "laptop": (0.005, 16, 4), "node": (0.005, 16, 4)}
N = 32  # of measured steps


def experiment(scale: Scale = "laptop") -> Experiment:
    """Idle time for K in {2, 4, 8, 16} and M from 1 to 16K.

    Paper: section 2.3 of v5: the bubble takes O((K-1)/(M+K-1)), negligible when M >= 4K;
    recomputation can be scheduled early, without waiting for the gradient. Section 3 and Figure
    2(b): with M=1 one stage computes at a time.
    """
    at = "node" if scale == "paper" else scale
    F, most, slow_K = KNOWN[at]
    stages = partial(_stages, F=F)
    simulated = [stages(K, M) for K in KS for M in _powers(16 * K)]
    late = [stages(K, 4 * K, schedule="gpipe-late") for K in KS]
    # All M where that is quick; the bubble is read off the spans, so they are recorded.
    emulated = [
        stages(K, M, fidelity="emulated", trace=True)
        for K in (KS[:1] if scale == "smoke" else KS)
        for M in (_powers(most * K) if K < 16 else (1, 4, 16, 64))
    ]
    # None of the stages is slow, then the first, one in the middle, the last.
    slow = [
        stages(slow_K, SLOW_M, slow, trace=True)
        for slow in (None, *sorted({0, slow_K // 2, slow_K - 1}))
    ]
    slow_emulated = [run.model_copy(update={"fidelity": "emulated"}) for run in slow]
    real: dict[str, Any] = {"model": "transformer", "model_args": TRANSFORMER[scale], "N": N}
    transformers = [
        run
        for K in ((2,) if scale in ON_CPU else (2, 4, 8))
        for run in sweep(**real, K=K, M=_powers(min(N, 16 * K)), **in_blocks(scale, 10))
    ]
    return Experiment(
        **ABOUT.of_experiment,
        paper="sec. 2.3",
        neurips="sec. 2.3",
        needs="any machine",
        minutes={"smoke": 0.3, "laptop": 2, "node": 5, "paper": 5},
        version=2,
        rounds=sets(scale),
        groups=(
            Group(name="simulated", runs=tuple(simulated)),
            Group(name="late", runs=tuple(late)),
            # Waits hardly differ from round to round.
            Group(name="emulated", runs=tuple(emulated), rounds=1),
            Group(name="slow-simulated", runs=tuple(slow)),
            Group(name="slow-emulated", runs=tuple(slow_emulated), rounds=1),
            Group(name="transformer", runs=tuple(transformers)),
        ),
    )


def _powers(last: int) -> list[int]:
    return [2**n for n in range(last.bit_length())]


def _stages(K: int, M: int, slow: int | None = None, *, F: float, **changed: Any) -> RunSpec:
    forward = F if slow is None else [F * (SLOW if j == slow else 1) for j in range(K)]
    backward = [2 * f for f in forward] if isinstance(forward, list) else 2 * forward
    args = {"L": K, "forward_s": forward, "backward_s": backward, "elements": 16384}
    given: dict[str, Any] = {"fidelity": "simulated", "steps": 1, "trace": K * M <= 128} | changed
    return RunSpec(model="timed", model_args=args, K=K, M=M, N=M, balance="uniform", **given)
