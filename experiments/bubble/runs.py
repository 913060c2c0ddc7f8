"""The bubble (arXiv:1811.06965v5, section 2.3): which share of a pipeline idles, for K and M."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import TRANSFORMER, in_blocks, sets
from repro.harness.spec import ON_CPU, Experiment, Group, RunSpec, Scale, sweep

NAME = "bubble"
ABOUT = read_about(__file__)
KS = (2, 4, 8, 16)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Idle time for K in {2, 4, 8, 16} and M from 1 to 4K."""
    F = 0.002 if scale == "smoke" else 0.005  # seconds; B takes twice that
    # Up to the M of the claim.
    emulated = [
        _stages(F, K, M) for K in (KS[:1] if scale == "smoke" else KS) for M in _powers(4 * K)
    ]
    real: dict[str, Any] = {"model": "transformer", "model_args": TRANSFORMER[scale], "N": 32}
    transformers = [
        run
        for K in ((2,) if scale in ON_CPU else (2, 4, 8))
        for run in sweep(**real, K=K, M=_powers(32), **in_blocks(scale))
    ]
    return Experiment(
        **ABOUT.of_experiment,
        paper="sec. 2.3",
        neurips="sec. 2.3",
        needs="any machine",
        minutes={"smoke": 0.1, "laptop": 0.9, "node": 5, "paper": 5},
        version=2,
        rounds=sets(scale),
        groups=(
            # Waits hardly differ from round to round.
            Group(name="emulated", runs=tuple(emulated), rounds=1, first=True),
            Group(name="transformer", runs=tuple(transformers), first=True),
        ),
    )


def _powers(last: int) -> list[int]:
    return [2**n for n in range(last.bit_length())]


def _stages(F: float, K: int, M: int) -> RunSpec:
    args = {"L": K, "forward_s": F, "backward_s": 2 * F, "elements": 16384}
    given: dict[str, Any] = {"fidelity": "emulated", "balance": "uniform", "steps": 1}
    return RunSpec(model="timed", model_args=args, K=K, M=M, N=M, **given)
