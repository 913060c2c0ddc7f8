"""Is the advised plan fast? Plans on two devices: their predicted and their measured steps."""

from typing import Any

from repro.harness.about import read_about
from repro.harness.sizes import TRANSFORMER, in_blocks, sets
from repro.harness.spec import Experiment, Group, Recompute, RunSpec, Scale, ScheduleName

NAME = "advise"
ABOUT = read_about(__file__)
SIZES = {"smoke": (16, 2), "laptop": (32, 4), "node": (64, 4)}  # N, least examples that are timed
# Schedule, K, D, M, recompute mode. A single stage has the order 1F1B, as in `repro predict`.
PLANS: tuple[tuple[ScheduleName, int, int, int, Recompute], ...] = (
    ("1f1b", 1, 1, 1, "never"),
    ("1f1b", 1, 1, 4, "never"),
    ("1f1b", 1, 1, 4, "always"),
    ("1f1b", 1, 2, 1, "never"),
    ("1f1b", 1, 2, 4, "never"),
    ("1f1b", 1, 2, 4, "always"),
    ("naive", 2, 1, 1, "never"),
    ("gpipe", 2, 1, 4, "never"),
    ("gpipe", 2, 1, 4, "always"),
    ("gpipe", 2, 1, 8, "never"),
    ("gpipe", 2, 1, 8, "always"),
    ("1f1b", 2, 1, 4, "never"),
    ("1f1b", 2, 1, 8, "never"),
    ("1f1b", 2, 1, 8, "always"),
    ("1f1b", 2, 1, 8, "except_last"),
    ("interleaved-1f1b", 2, 1, 8, "never"),
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Sixteen plans for two devices, predicted and measured in the same rounds."""
    N, smallest = SIZES.get(scale, SIZES["laptop"])
    common: dict[str, Any] = {"model": "transformer", "model_args": TRANSFORMER[scale], "N": N}
    timed = RunSpec(K=2, M=N // smallest, task="calibrate", balance="uniform", steps=1, **common)
    common |= {"trace": False, **in_blocks(scale)}
    names = ("schedule", "K", "D", "M", "recompute")
    plans: list[dict[str, Any]] = [dict(zip(names, plan, strict=True)) for plan in PLANS]
    for plan in plans:
        plan["stages_per_rank"] = 2 if plan["schedule"] == "interleaved-1f1b" else None
    runs = [RunSpec(**plan, **common) for plan in plans]
    return Experiment(
        **ABOUT.of_experiment,
        needs="2 devices",
        minutes={"smoke": 0.1, "laptop": 0.9, "node": 3},
        rounds=sets(scale),
        groups=(Group(name="transformer", runs=(timed, *runs)),),
    )
