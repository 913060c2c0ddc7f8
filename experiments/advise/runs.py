"""Is the advised plan fast? Plans on two devices: their predicted and their measured steps."""

from typing import Any

from repro.harness.sizes import TRANSFORMER
from repro.harness.spec import Checkpoint, Experiment, Group, RunSpec, Scale, ScheduleName

NAME = "advise"
DEVICES = 2
N: dict[Scale, int] = {"smoke": 16, "laptop": 64, "node": 64}
SMALLEST: dict[Scale, int] = {"smoke": 2, "laptop": 4, "node": 4}  # examples that are timed
ROUNDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "node": 5}
# Schedule, K, D, M, checkpoint mode. The order of a single stage is 1F1B, as `repro advise` has it.
PLANS: tuple[tuple[ScheduleName, int, int, int, Checkpoint], ...] = (
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
STAGES_PER_RANK = 2  # of the interleaved schedule
DEVIATIONS = (
    "No table of the paper: it tests `repro advise`.",
    "Predictions come from layers that were timed in the round of the steps that they predict, on "
    "two processes at once and in turn. Each plan is cut by its own run, and predicted with that "
    "cut.",
    "At this size every plan fits, so memory decides nothing here.",
)


def experiment(scale: Scale = "laptop") -> Experiment:
    """Sixteen plans for two devices, predicted and measured in the same rounds.

    The paper gives no advice. The plan with the shortest predicted step is the advised one; it is
    held against the plan with the shortest measured step.
    """
    at = scale if scale in N else "laptop"
    common: dict[str, Any] = {
        "model": "transformer",
        "model_args": TRANSFORMER[scale],
        "N": N[at],
        "steps": 1,
    }
    timed = RunSpec(
        K=DEVICES, M=N[at] // SMALLEST[at], task="calibrate", balance="uniform", **common
    )
    plans = [
        RunSpec(
            schedule=schedule,
            K=K,
            D=D,
            M=M,
            checkpoint=checkpoint,
            stages_per_rank=STAGES_PER_RANK if schedule == "interleaved-1f1b" else None,
            trace=False,
            **common,
        )
        for schedule, K, D, M, checkpoint in PLANS
    ]
    return Experiment(
        name=NAME,
        title="Is the advised plan fast?",
        question="Is the plan with the shortest predicted step within 5 % of the fastest measured?",
        needs="2 devices",
        deviations=DEVIATIONS,
        minutes={"smoke": 0.3, "laptop": 3, "node": 3},
        rounds=ROUNDS[at],
        groups=(Group(name="transformer", runs=(timed, *plans)),),
    )
