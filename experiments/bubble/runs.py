"""The bubble (arXiv:1811.06965v5, section 2.3): which share of a pipeline idles, for K and M."""

from typing import Any

from repro.harness.sizes import TRANSFORMER
from repro.harness.spec import Experiment, Fidelity, Group, RunSpec, Scale

NAME = "bubble"
KS = (2, 4, 8, 16)
EMULATED: dict[Scale, tuple[int, ...]] = {
    "smoke": (2,),
    "laptop": (2, 4, 8, 16),
    "node": KS,
    "paper": KS,
}
# B takes twice that
FORWARD_S: dict[Scale, float] = {"smoke": 0.002, "laptop": 0.005, "node": 0.005, "paper": 0.005}
SLOW, SLOW_K, SLOW_M = 1.5, 4, 16  # one stage takes so many times as long
MEASURED_N: dict[Scale, int] = {"smoke": 32, "laptop": 64, "node": 32, "paper": 32}
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "node": 5, "paper": 5}
DEVIATIONS = (
    "Simulated and emulated: one layer of known duration in each stage, F:R:B = 1:1:2, messages "
    "of 64 KiB. The paper shows no such curves; it says (K-1)/(M+K-1), and that this was "
    "negligible from M = 4K on.",
    "With K=16, emulated, only some M: sixteen processes share these cores.",
    "Measured: the Transformer at K=2 and as many K as there are devices, whose stages are not "
    "quite equal.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Idle time for K in {2, 4, 8, 16} and M from 1 to 16K.

    Paper: section 2.3 of v5: the bubble takes O((K-1)/(M+K-1)), negligible when M >= 4K;
    recomputation can be scheduled early, without waiting for the gradient. Section 3 and Figure
    2(b): with M=1 one stage computes at a time.

    Where this departs from it, and why, stands in the report and at the top of
    experiments/bubble/runs.py.
    """
    return Experiment(
        name=NAME,
        title="How much of a pipeline idles",
        question=(
            "How does the bubble shrink with M, is it negligible at M = 4K, and what does one "
            "slow stage cost?"
        ),
        paper="sec. 2.3",
        neurips="sec. 2.3",
        needs="any machine",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.3, "laptop": 2, "node": 5, "paper": 5},
        version=2,
        rounds=ROUNDS[scale],
        groups=(
            Group(
                name="simulated",
                runs=tuple(_known(scale, K, M, "simulated") for K in KS for M in _powers(16 * K)),
            ),
            Group(
                name="late",
                runs=tuple(_known(scale, K, 4 * K, "simulated", schedule="gpipe-late") for K in KS),
            ),
            # a minute; waits hardly differ
            Group(name="emulated", runs=tuple(_emulated(scale)), rounds=1),
            Group(name="slow-simulated", runs=tuple(_slow(scale, "simulated"))),
            Group(name="slow-emulated", runs=tuple(_slow(scale, "emulated")), rounds=1),
            Group(
                name="transformer",
                runs=tuple(_measured(scale)),
                rounds=1 if scale == "laptop" else None,
            ),
        ),
    )


def _powers(last: int) -> list[int]:
    """1, 2, 4, ... up to the last."""
    return [2**n for n in range(last.bit_length()) if 2**n <= last]


def _known(
    scale: Scale, K: int, M: int, fidelity: Fidelity, slow: int | None = None, **changed: Any
) -> RunSpec:
    """K stages of one layer each, of which one may be slower than the others."""
    F = FORWARD_S[scale]
    forward = [F * (SLOW if j == slow else 1) for j in range(K)] if slow is not None else F
    backward = [2 * f for f in forward] if isinstance(forward, list) else 2 * forward
    args = {"L": K, "forward_s": forward, "backward_s": backward, "elements": 16384}
    given: dict[str, Any] = {"steps": 1, "trace": K * M <= 128} | changed
    return RunSpec(
        model="timed", model_args=args, K=K, M=M, N=M, balance="uniform", fidelity=fidelity, **given
    )


def _emulated(scale: Scale) -> list[RunSpec]:
    """All M where that is quick; the bubble is read off the spans, so they are recorded."""
    found = []
    for K in EMULATED[scale]:
        most = 4 * K if scale == "smoke" else 16 * K
        Ms = _powers(most) if K < 16 else [1, 4, 16, 4 * K]
        found += [_known(scale, K, M, "emulated", trace=True) for M in Ms]
    return found


def _slow(scale: Scale, fidelity: Fidelity) -> list[RunSpec]:
    """None of four stages slow, then the first, one in the middle, the last."""
    K = 2 if scale == "smoke" else SLOW_K
    return [
        _known(scale, K, SLOW_M, fidelity, slow, trace=True)
        for slow in (None, *sorted({0, K // 2, K - 1}))
    ]


def _measured(scale: Scale) -> list[RunSpec]:
    N = MEASURED_N[scale]
    Ks = (2,) if scale in ("smoke", "laptop") else (2, 4, 8)
    return [
        RunSpec(model="transformer", model_args=TRANSFORMER[scale], K=K, M=M, N=N)
        for K in Ks
        for M in _powers(min(N, 16 * K))
    ]
