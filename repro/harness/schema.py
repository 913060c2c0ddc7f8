"""The form of every recorded file. A file is checked when it is read, by its `Folder`."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from repro.io.explain import explain
from repro.io.untrusted import short
from repro.simulate import Calibration, StageCosts


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("signs that cannot be printed, which may change a terminal")
    return text


Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, le=1e30)]  # of seconds or bytes
# The name of a group, or of a run, which is a folder.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$")]
# A text that the terminal shows.
Printable = Annotated[str, Field(max_length=500), AfterValidator(_printable)]


class _Recorded(BaseModel):
    # Strict: "0.1" is no number. Unknown fields are kept, for records of a later version.
    # Built when it is first used, because commands such as `repro list` read no records.
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, defer_build=True)


class Finding(_Recorded):
    """The outcome of one check of a library, see `repro.methods.checks.Check`."""

    verdict: str
    value: float | None
    evidence: str


class Stage(_Recorded):
    """Counted bytes of one stage at its peak.

    Attributes:
        at: the action at which the peak is reached, such as "B0".
        total: bytes of all kinds. The other fields are the kinds of `repro.costs.KINDS`.
    """

    __pydantic_extra__: dict[str, Count]
    at: str
    total: Count

    def bytes_of(self, kind: str) -> int:
        """Bytes of one kind."""
        return (self.__pydantic_extra__ or {})[kind]


class CutModel(_Recorded):
    """A model of one size, cut into stages."""

    args: dict[str, Any]
    parameters: Count
    fullest: Count
    balance: list[int]
    stages: list[Stage]


class Tried(_Recorded):
    """A size that was trained within a memory, or that ran out of it.

    Attributes:
        args: of the model.
        parameters: of the whole model.
        status: "done" if it was trained.
        reason: why it was not.
        peak_bytes: measured on each stage.
        counted_bytes: counted for each stage.
        allocator_bytes: for each stage, bytes of tensors, and of tensors and kernels' workspace;
            on a GPU a third number, of all that the allocator reserved.
    """

    args: dict[str, Any]
    parameters: Count
    status: Literal["done", "oom"]
    reason: str
    peak_bytes: list[int] | None
    counted_bytes: list[int]
    allocator_bytes: list[list[int]] | None


class Fitted(_Recorded):
    """The answer of a search for the largest model.

    Attributes:
        largest: the largest model that fits; None if none does.
        next: one size up; None if there is none.
        counted: the largest by counting, for a measured search.
        tried: every size that was trained, for a measured search.
    """

    largest: CutModel | None
    next: CutModel | None
    counted: CutModel | None = None
    tried: list[Tried] = []


class CalibrationFile(_Recorded):
    """The file that `repro calibrate MODEL` writes."""

    model: Annotated[Printable, Field(min_length=1, max_length=200)]
    model_args: dict[str, Any]
    K: Annotated[int, Field(ge=1)]
    device: Printable
    date: Printable
    unit: Printable
    calibration: Calibration


class Dependence(_Recorded):
    """How a step depends on one figure of its device.

    Attributes:
        basis: where the figure comes from.
        halved: seconds of the step with half the figure.
        doubled: seconds of the step with twice the figure.
    """

    basis: Annotated[str, Field(min_length=1, max_length=40)]
    halved: Seconds
    doubled: Seconds


class Modelled(_Recorded):
    """The answer of a cost model.

    Attributes:
        batch: N; 0 where not even micro-batches of one example fit.
        stages: costs of each stage.
        rungs: cause -> seconds of the step with this cause and all before it.
        bounds: bound, such as "fused" -> seconds of the step under it.
        memory: bytes of the device; None where there is none, or an old record does not say.
        sensitivity: figure of the device -> how the step depends on it; empty without a device.
    """

    batch: Count
    stages: StageCosts
    rungs: dict[str, Amount]
    bounds: dict[str, Amount] = {}
    memory: Amount | None = None
    sensitivity: dict[str, Dependence] = {}


def _null_if_not_finite(value: Any) -> Any:
    """JSON holds neither NaN nor infinities: null stands for a number that was not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Measure = Annotated[float | None, BeforeValidator(_null_if_not_finite)]


class _Round(_Recorded):
    """The record of a run in a round: part of a line of the journal. These fields all tasks have.

    Attributes:
        balance: layers of each stage.
        peak_bytes: of each stage; None where nobody read them.
        setup_s: seconds before the first timed step.
        unit: of throughput.
        labels: what the model says of itself, such as where its data is from.
    """

    balance: Annotated[list[int], Field(min_length=1)]
    peak_bytes: Sequence[int | float] | None = None
    setup_s: float | None
    unit: str
    labels: dict[str, Any]


class TrainRound(_Round):
    """Timed, emulated or simulated steps.

    Attributes:
        step_s: seconds of each step.
        loss: of each step; empty where a simulation computes none.
        bubble_idle_over_total: idle time over K x step, of each traced step.
        bubble_idle_over_work: idle time over busy time, of each traced step.
        breakdown: part -> share of K x step.
        modelled: what the cost model gave, of emulated and simulated steps.
        predicted: way -> seconds of a measured step, simulated from layer times of the same round
            with the run's own cut, see `repro.harness.predict.ways_of`.
        sent_bytes: of each process in one step, by what is sent, see
            `repro.methods.Method.sent_bytes`; None where nobody counted them.
        staleness: of each stage, how many updates older than the newest weights those are that a
            micro-batch uses; None where a method is synchronous.
        stashed_bytes: of each stage, the most bytes of older weights that it kept at once; None
            likewise.
    """

    task: Literal["train"] = "train"
    step_s: list[Seconds]
    loss: list[Measure]
    bubble_idle_over_total: Annotated[list[Measure], Field(min_length=1)]
    bubble_idle_over_work: Annotated[list[Measure], Field(min_length=1)]
    breakdown: dict[str, Measure]
    modelled: Modelled | None = None
    predicted: dict[str, Seconds] = {}
    sent_bytes: list[dict[str, Count]] | None = None
    staleness: list[Count] | None = None
    stashed_bytes: list[Count] | None = None

    @model_validator(mode="after")
    def _check_steps(self) -> "TrainRound":
        fits = self.modelled is None or self.modelled.batch > 0
        if fits and not (self.step_s and (self.loss or self.modelled)):
            raise ValueError("step_s or loss is empty")
        return self


class CheckRound(_Round):
    """The outcome of each check of a library, by the name of the check."""

    task: Literal["check"] = "check"
    checks: Annotated[dict[str, Finding], Field(min_length=1)]


class FitRound(_Round):
    """The largest model that fits."""

    task: Literal["fit"] = "fit"
    fit: Fitted


class CalibrateRound(_Round):
    """Seconds of the layers of a model."""

    task: Literal["calibrate"] = "calibrate"
    calibration: Calibration


class RooflineRound(_Round):
    """Rates that this machine attains, and what the roofline makes of them for a model's layers.

    Attributes:
        device: the rates as a device profile, see `repro.costs.Device`.
        calibration: seconds of the layers by that profile; its sizes, bytes and link are as in a
            calibration that was timed.
    """

    task: Literal["roofline"] = "roofline"
    device: dict[str, Any]
    calibration: Calibration


class LearnRound(_Round):
    """A training to an accuracy or a translation quality.

    Attributes:
        loss: of each step.
        metrics: name -> value on the test data after the last step: "loss", "accuracy" (share),
            "nll" (nats a token), "bleu" (mean over the languages), "bleu toy:alfa". Those of a
            pretraining, on its own test data, are called "pretraining accuracy" and the like.
        parameters: of the model.
        seconds: of all steps, data included.
        examples: of all steps.
        digest: SHA-256 of all weights and buffers.
        weights: values at evenly spaced places over all weights; empty unless asked for.
    """

    task: Literal["learn"] = "learn"
    loss: Annotated[list[Measure], Field(min_length=1)]
    metrics: dict[str, Measure]
    parameters: Count
    seconds: Seconds
    examples: Count
    digest: str
    weights: list[float] = []


def _task(record: Mapping[str, Any]) -> str:
    """The task of a record."""
    if isinstance(record.get("task"), str):
        return record["task"]
    # Records made before the task was named show it by what they hold.
    by_content = {"checks": "check", "fit": "fit", "calibration": "calibrate"}
    return next((task for name, task in by_content.items() if record.get(name)), "train")


RoundRecord = TrainRound | CheckRound | FitRound | CalibrateRound | RooflineRound | LearnRound


_ROUNDS: dict[str, type[RoundRecord]] = {
    "train": TrainRound,
    "check": CheckRound,
    "fit": FitRound,
    "calibrate": CalibrateRound,
    "roofline": RooflineRound,
    "learn": LearnRound,
}


def round_record(value: Mapping[str, Any]) -> RoundRecord:
    """The record of a run in a round, from its plain values.

    Raises:
        ValueError: in a few words, if they are no record.
    """
    task = _task(value)
    if task not in _ROUNDS:
        raise ValueError(f"task = {short(task)}: allowed is one of {', '.join(_ROUNDS)}")
    try:
        return _ROUNDS[task].model_validate(value)
    except ValidationError as error:
        raise ValueError(explain(error, _ROUNDS[task])) from None


class Event(_Recorded):
    """One line of a journal, see `repro.harness.journal`."""


class PlanEvent(Event):
    """The runs of an experiment from now on.

    Attributes:
        name: of the experiment; title, question, paper, neurips, deviations and version are its
            own too.
        identity: of the machine; ids of timed runs depend on it and on the version.
        commands: what a user types to measure these runs.
        runs: run -> group.
        specs: of the runs that no plan before has named.
    """

    name: str
    title: str
    question: str
    paper: str
    neurips: str
    deviations: list[str]
    version: int
    identity: dict[str, str]
    commands: list[str]
    runs: dict[Name, Name]
    specs: dict[Name, dict[str, Any]]


class EnvironmentEvent(Event):
    """Where the rounds below were measured; the page shows all fields."""

    __pydantic_extra__: dict[str, str | bool | int | list[str] | dict[str, str]]
    kind: str


class RoundEvent(Event):
    """A finished round of a group.

    Attributes:
        round: its id, `<group>-<number>`.
        group: that was measured.
        commit: of the code.
        started: ISO 8601 with time zone.
        ended: the same.
        load: share of the usable cores that other processes took, see `harness.contention`.
        records: run -> its record as plain values, see `round_record`.
        spans: run -> digest of the file with the spans of its median step.
        done: the runs that have all their rounds with this one.
        replacing: the runs whose earlier rounds do not count any more.
    """

    round: str
    group: str
    commit: str
    started: str
    ended: str
    load: Annotated[float, Field(ge=0, le=1)] | None
    records: dict[Name, Any]
    spans: dict[str, str]
    done: list[str]
    replacing: list[str]


class StatusEvent(Event):
    """Statuses that changed: run -> [word, reason]."""

    status: dict[str, list[str]]


def finite(value: Any) -> Any:
    """The value with None for every NaN and infinity, which JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value
