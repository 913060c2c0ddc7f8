"""What recorded files must hold: read once, so that a damaged file is left out and not met later as a crash."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Numbers = Annotated[list[float | None], Field(min_length=1)]  # null: not finite when it was measured


class _Recorded(BaseModel):
    model_config = ConfigDict(extra="allow")


class Finding(_Recorded):
    """What one check of a library found, see `repro.methods.checks.Check`."""

    verdict: str
    value: float | None
    evidence: str


class Line(_Recorded):
    """One line of metrics.jsonl: a run in a round; one of checks has no steps."""

    round: str
    checks: dict[str, Finding] = {}
    step_s: list[Seconds]
    loss: list[float | None]
    bubble_idle_over_total: Numbers
    bubble_idle_over_work: Numbers
    breakdown: dict[str, float | None]
    peak_bytes: list[FiniteFloat] | None
    balance: Annotated[list[int], Field(min_length=1)]
    setup_s: float | None
    unit: str
    labels: dict[str, Any]

    @model_validator(mode="after")
    def _steps(self) -> "Line":
        if not self.checks and not (self.step_s and self.loss):
            raise ValueError("step_s or loss is empty")
        return self


class Marker(_Recorded):
    """rounds/<round>.json."""

    group: str
    runs: list[str]
    commit: str
    started: AwareDatetime
    ended: AwareDatetime


class Listing(_Recorded):
    """experiment.json: which runs are an experiment's own (run -> group) and what a user types to measure them."""

    runs: dict[str, str]
    commands: list[str] = []


class Status(_Recorded):
    """status.json."""

    status: str
    reason: str
    rounds: int


def damage(kind: type[BaseModel], value: Mapping[str, Any]) -> str:
    """What is wrong with a recorded object, in a few words; empty when nothing is."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].lower()}"
    return ""


def finite(value: Any) -> Any:
    """The same with None for every number that JSON cannot hold: NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value
