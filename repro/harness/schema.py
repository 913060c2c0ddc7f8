"""The form of everything recorded: the records of a run's rounds, and the events of a journal."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from repro.io.explain import explain
from repro.simulate.calibration import Calibration
from repro.simulate.stage_costs import StageCosts


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("signs that cannot be printed, which may change a terminal")
    return text


def _null_if_not_finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null replaces a number that was not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, le=1e30)]  # of seconds or bytes
Measure = Annotated[float | None, BeforeValidator(_null_if_not_finite)]
# The name of a group, or of a run, which is a part of a file's name.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$")]
# A text that the terminal shows.
Printable = Annotated[str, Field(max_length=500), AfterValidator(_printable)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class _Recorded(BaseModel):
    # Strict: "0.1" is no number. Unknown fields are kept, for records of a later version.
    # Built when it is first used, because commands such as `repro list` read no records.
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, defer_build=True)


class Finding(_Recorded):
    """The outcome of a check of a library, "ok", "wrong" or "none"; its greatest difference."""

    verdict: str
    value: float | None
    evidence: str


class Stage(_Recorded):
    """Counted bytes of one stage at its peak: `total`, and of each kind of `repro.costs.KINDS`."""

    __pydantic_extra__: dict[str, Count]
    at: str  # the action at which the peak is reached, such as "B0"
    total: Count

    def bytes_of(self, kind: str) -> int:
        return (self.__pydantic_extra__ or {})[kind]


class CutModel(_Recorded):
    """A model of one size, cut into stages."""

    args: dict[str, Any]
    parameters: Count
    fullest: Count
    balance: list[int]
    stages: list[Stage]


class Tried(_Recorded):
    """A size that was trained within a memory, or that ran out of it; bytes are of each stage."""

    args: dict[str, Any] = {}
    parameters: Count = 0
    status: Literal["done", "oom"] = "done"
    reason: str = ""
    peak_bytes: list[int] | None = None
    counted_bytes: list[int] = []
    # Of a GPU: bytes of tensors, of tensors and kernels' workspace, and of all that the allocator
    # reserved. Older records of a CPU have the first two.
    allocator_bytes: list[list[int]] | None = None


class Fitted(_Recorded):
    """The answer of a search for the largest model; None where there is none."""

    largest: CutModel | None
    next: CutModel | None  # one size up
    # Of a measured search, the largest by counting, and every size that was trained.
    counted: CutModel | None = None
    tried: list[Tried] = []


class KeptLayers(_Recorded):
    """The layer times that `repro predict MODEL --device here` keeps."""

    K: Annotated[int, Field(ge=1)]  # processes
    date: Printable
    calibration: Calibration


class Modelled(_Recorded):
    """The answer of a cost model."""

    batch: Count  # N; 0 where not even micro-batches of one example fit
    stages: StageCosts
    memory: Amount | None = None  # bytes of the device, where there is one and they are known


class _Round(_Recorded):
    """The record of a run in a round, part of a line of the journal: what all tasks have."""

    balance: Annotated[list[int], Field(min_length=1)]  # layers of each stage
    peak_bytes: Sequence[int | float] | None = None  # of each stage, where they were read
    setup_s: float | None  # before the first timed step
    unit: str  # of throughput
    labels: dict[str, Any]  # what the model says of itself, such as where its data is from


class TrainRound(_Round):
    """Timed, emulated or simulated steps: numbers of each step, of idle time of each traced one."""

    task: Literal["train"] = "train"
    step_s: list[Seconds]
    loss: list[Measure]  # empty where a simulation computes none
    bubble_idle_over_total: Annotated[list[Measure], Field(min_length=1)]  # idle over K x step
    breakdown: dict[str, Measure]  # part -> share of K x step
    modelled: Modelled | None = None  # of simulated steps
    # Way -> seconds of a measured step, simulated from layer times of the same round with the run's
    # own cut. "together": of layers timed on all processes at once. Of recorded steps alone
    # "mixed": between these and the times of layers while the others waited.
    predicted: dict[str, Seconds] = {}
    # Of each process in one step, by what is sent, where that was counted.
    sent_bytes: list[dict[str, Count]] | None = None
    # Of each stage of an asynchronous method: how many updates older than the newest weights those
    # are that a micro-batch uses.
    staleness: list[Count] | None = None

    @model_validator(mode="after")
    def _check_steps(self) -> "TrainRound":
        fits = self.modelled is None or self.modelled.batch > 0
        if fits and not (self.step_s and (self.loss or self.modelled)):
            raise ValueError("step_s or loss is empty")
        return self


class CheckRound(_Round):
    """The outcome of each check of a library, by the name of the check; of old records alone."""

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
    """A device that was fitted to layers of a model: only old records are of this task."""

    task: Literal["roofline"] = "roofline"


class LearnRound(_Round):
    """A training to an accuracy or a translation quality.

    Attributes:
        loss: of training, of at most 200 steps, evenly spaced from the first.
        metrics: name -> value on the test data with the weights that were kept: "loss", "accuracy"
            (share), "bleu" (mean over the languages), "bleu toy:alfa"; the loss of sentences is in
            nats a token. Those of a pretraining are called "pretraining accuracy" and the like.
    """

    task: Literal["learn"] = "learn"
    loss: Annotated[list[Measure], Field(min_length=1)]
    metrics: dict[str, Measure]
    parameters: Count
    seconds: Seconds  # of all steps, data included
    examples: Count  # of all steps
    digest: str  # SHA-256 of all weights and buffers
    validation: dict[str, Measure] = {}  # updates -> loss on the validation data after them
    weights: list[float] = []  # values at evenly spaced places over all weights, if asked for


class TrafficRound(_Round):
    """What each process sends in a step, by the shapes of a model."""

    task: Literal["traffic"] = "traffic"
    sent_bytes: list[dict[str, Count]]  # by what is sent
    undivided: Measure  # share of the products of all convolutions that every process computes


RoundRecord = Annotated[
    TrainRound | CheckRound | FitRound | CalibrateRound | RooflineRound | LearnRound | TrafficRound,
    Field(discriminator="task"),
]
_ROUND: TypeAdapter[RoundRecord] = TypeAdapter(RoundRecord, config=ConfigDict(defer_build=True))


def round_record(value: Mapping[str, Any]) -> RoundRecord:
    try:
        return _ROUND.validate_python(value)
    except ValidationError as error:
        raise ValueError(explain(error, TrainRound)) from None


def _checked(value: Any) -> Any:
    """A record as plain values, of which most readers need a few, if it is one."""
    round_record(value)
    return value


class Spans(_Recorded):
    """The spans of a step, as the columns of their file."""

    kind: list[str]
    stage: list[Count]
    micro_batch: list[int]
    step: list[int]
    start: list[float]
    end: list[float]


class PlanEvent(_Recorded):
    """The runs of an experiment from now on; the fields after the first are the experiment's."""

    event: Literal["plan"] = "plan"
    name: str
    title: str
    question: str
    paper: str
    neurips: str
    deviations: list[str]
    version: int
    identity: dict[str, str]  # of the machine; ids of timed runs depend on it and on the version
    commands: list[str]  # what a user types to measure these runs
    runs: dict[Name, Name]  # run -> group
    specs: dict[Name, dict[str, Any]]  # of the runs that no plan before has named


class EnvironmentEvent(_Recorded):
    """Where the rounds below were measured; the page shows all fields."""

    __pydantic_extra__: dict[str, str | bool | int | list[str] | dict[str, str]]
    event: Literal["environment"] = "environment"
    kind: str
    count: Count = 1  # of cores or GPUs


class RoundEvent(_Recorded):
    """A finished round of a group."""

    event: Literal["round"] = "round"
    round: Annotated[str, Field(pattern=r"-[0-9]+$")]  # its id, `<group>-<number>`
    group: str
    commit: str  # of the code
    started: str  # ISO 8601, in UTC
    ended: str
    records: dict[Name, Annotated[Any, AfterValidator(_checked)]]  # run -> its record
    spans: dict[Name, Digest]  # run -> digest of the file with the spans of its median step
    done: list[str]  # the runs that have all their rounds with this one
    replacing: list[str]  # the runs whose earlier rounds do not count any more
    # Runs that were measured step against step by one set of processes: step i of each is block i.
    together: list[Name] = []


class StatusEvent(_Recorded):
    """Statuses that changed: run -> [word, reason]."""

    event: Literal["status"] = "status"
    status: dict[str, Annotated[list[str], Field(min_length=1, max_length=2)]]


# A line, see `harness.journal`.
Event = Annotated[
    PlanEvent | EnvironmentEvent | RoundEvent | StatusEvent, Field(discriminator="event")
]
