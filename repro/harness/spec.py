"""Specs of what is measured: pydantic models, frozen and without unknown fields.

A `RunSpec` is one point of a sweep. A `Group` holds runs that will be divided by each other. An
`Experiment` is one table, figure or question of the paper (arXiv:1811.06965). Every mistake in them
is a `ValueError` of one line that names the field, the value, what is allowed and what to try.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from operator import not_
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AliasChoices, Field, ValidationInfo, field_validator, model_validator

from repro.data.registry import find
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import Recompute, check_kind, make_schedule
from repro.harness.schema import Printable
from repro.io.explain import Frozen
from repro.io.redact import home_to_tilde, tilde_to_home
from repro.io.untrusted import did_you_mean, short
from repro.methods.named import LIBRARIES, Allowed, name_of
from repro.simulate.stage_costs import Link

# From small to large; "overnight" is of trainings.
Scale = Literal["smoke", "laptop", "overnight", "gpu", "node", "paper"]
# The order of a pipeline's work.
ScheduleName = Literal[
    "gpipe", "gpipe-late", "1f1b", "naive", "interleaved-1f1b", "zb-h1", "interleaved-zb", "zb"
]
BalanceRule = Literal["time", "flops", "parameters", "uniform"]
Partitioner = Literal["minimum-variance", "cumulative-share"]
Optimizer = Literal["sgd", "rmsprop", "rmsprop-momentum", "adam"]
# Schedules of torch.distributed.pipelining, each a library here.
Pipelining = Literal[
    "torch", "torch-1f1b", "torch-interleaved", "torch-zb", "torch-zbv", "torch-dualpipev"
]
WholeWorld = Literal["deepspeed"]  # takes every process that there is
Replicated = Literal["ddp", "fsdp"]  # of K=1 and D replicas
Divided = Literal["tensor", "channels", "rows"]  # divide layers over `tensor_parallel` devices
Loop = Literal["minimal", "loop"]  # simple ones, over which ours costs something
Library = Literal[
    "repro", Pipelining, WholeWorld, "torchgpipe", "pipedream", Loop, Replicated, Divided
]
PIPELINING: tuple[Library, ...] = get_args(Pipelining)
WHOLE_WORLD: tuple[Library, ...] = get_args(WholeWorld)
REPLICATED: tuple[Library, ...] = get_args(Replicated)
Transport = Literal["auto", "shm", "gloo"]
Fidelity = Literal["measured", "emulated", "simulated", "counted"]
SCALES: tuple[Scale, ...] = get_args(Scale)
ON_CPU: tuple[Scale, ...] = ("smoke", "laptop", "overnight")
# Scales that only some experiments have. The others take the sizes of these instead.
SIZES_AT: dict[Scale, Scale] = {"overnight": "laptop", "gpu": "node"}
TIMED: tuple[Fidelity, ...] = ("measured", "emulated")
Positive = Annotated[int, Field(ge=1, le=2**20, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**20, strict=True)]
Devices = Annotated[int, Field(ge=1, le=1024, strict=True)]
Several = Annotated[int, Field(ge=2, le=1024, strict=True)]
Memory = Annotated[int, Field(ge=1, lt=2**60, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Name = Annotated[Printable, Field(min_length=1, max_length=200)]
# Of `recompute`: its name in records and in the hash of a run's id, which stay as they are.
_RECORDED: dict[str, Any] = {
    "validation_alias": AliasChoices("recompute", "checkpoint"),
    "serialization_alias": "checkpoint",
}
MOST_CELLS = 2**18  # K x M: a schedule of ours has seven actions for each
# Everything fits into this memory: the question is what a size takes, not whether it fits.
UNLIMITED_MEMORY = 2**59
# A prediction needs its schedule several times, and a large one takes a second to build.
_schedule = lru_cache(maxsize=2)(make_schedule)


class Training(Frozen):
    """What a run of the task "learn" trains on, see `repro.harness.tasks.learn`."""

    data: tuple[str, ...] = Field(min_length=1)  # of `repro.data.registry`: images, or languages
    # Fields of `repro.data.classification.ImageTask`, or of `repro.data.pairs.TranslationTask`,
    # without those that `data` and the model fix.
    data_args: dict[str, Any] = Field(default={})
    recipe: dict[str, Any]  # fields of `repro.train.recipe.Recipe`
    steps: Count = 0  # of a pretraining; a run has its own
    decode: Count = 0  # test sentences of each language that are translated and scored by BLEU
    # Trained before, for its weights of all layers but the last.
    pretraining: "Training | None" = None
    seed: Seed | None = None  # of a pretraining that all seeds share; None: that of the run
    weights: Count = 0  # that are recorded, evenly spaced over all, to compare runs by
    # How often, at equal distances, a part of the training data that is left out for it is
    # evaluated. The weights of the lowest loss there are kept, and their test data evaluated; a
    # recipe has no average of weights (`ema`) then.
    validations: Count = 0
    # Whether the error, the share of wrong images, replaces that loss, of images only. Ids leave
    # out a False.
    by_error: bool = Field(default=False, exclude_if=not_)
    arm: str = ""  # what an experiment calls the runs that differ from this in their seed alone
    tuning: bool = False  # whether it is one of those by which the learning rate is chosen


class RunSpec(Frozen):
    """One point of a sweep, in the paper's letters; what all tasks have.

    `RunSpec(task=..., ...)` makes the class of its task, which adds the fields that mean something
    there and narrows others. A field of another task reads as None, as one that is left out does;
    neither is recorded. Values are bounded far above what any run needs, so that no spec costs
    memory or time before anything is measured. K, M, D and how the model is cut and scheduled are
    as in `repro.gpipe.Pipeline`; `balance` may also be "flops", those of a forward, counted.

    Attributes:
        figures: digest of a profile that is a file, or of the source of a model of the user's own,
            so that an edited file makes other runs. Built-in profiles and models change with the
            code, which then raises the `version` of the experiments that use them.
    """

    model: Name  # see `repro.models.build`
    # `~` is the home folder, which is not recorded.
    model_args: dict[str, Any] = Field(default={})
    K: Devices
    M: Positive
    N: Positive  # examples of a mini-batch, of all replicas
    D: Devices = 1
    schedule: ScheduleName = "gpipe"
    recompute: Recompute = Field(default="always", **_RECORDED)
    balance: BalanceRule | tuple[Positive, ...] = "time"
    partitioner: Partitioner | None = None
    optimizer: Optimizer = "sgd"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 0.01
    seed: Seed = 0  # of initial weights and of what is random inside layers
    warmup: Count = 1  # steps that are not counted
    steps: Positive = 3  # steps that are timed
    fidelity: Fidelity = "measured"
    library: Library = "repro"  # the one that runs the steps, see `repro.methods`
    # Record spans; without them there is no timeline, bubble or breakdown.
    trace: Annotated[bool, Field(strict=True)] = True
    transport: Transport = "auto"
    task: str = "train"
    figures: str | None = Field(default=None, pattern=r"^[0-9a-f]{12}$")
    stages_per_rank: Several | None = None

    def __new__(cls, /, **fields: Any) -> "RunSpec":
        return object.__new__(_KINDS[_kind_of(**fields)] if cls is RunSpec else cls)

    def __init__(self, /, **fields: Any) -> None:
        own = type(self).model_fields
        kind = next(word for word, each in _KINDS.items() if each is type(self))
        fields = {name: value for name, value in fields.items() if name in own or value is not None}
        for name in (name for name in fields if name not in own and name in FIELDS):
            others = [word for word, each in _KINDS.items() if name in each.model_fields]
            raise ValueError(
                f"{name} = {short(fields[name])}: a {kind} run has no such field, but a run of "
                f"{' or '.join(others)}; leave it out"
            )
        try:
            super().__init__(**fields)
        except ValueError as error:
            of = "" if kind in ("train", "simulated") else f" (of a {kind} run)"
            raise ValueError(f"{error}{of}") from None

    if TYPE_CHECKING:  # fields of some tasks, None for the others
        profile: str | None
        link: Link | None
        memory: int | None
        tensor_parallel: int | None
        control: str | None
        training: Training | None
    else:

        def __getattr__(self, name: str) -> Any:
            if name in FIELDS:
                return None
            return super().__getattribute__(name)

    @field_validator("model", "model_args", "profile", check_fields=False)
    @classmethod
    def _check_recorded(cls, value: Any, info: ValidationInfo) -> Any:
        names = value if isinstance(value, dict) else ()
        if strange := next((name for name in names if not name.isidentifier()), None):
            raise ValueError(f"model_args: no argument has the name {short(strange)}; try L=3")
        try:
            json.dumps(value, allow_nan=False)
            return home_to_tilde(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{info.field_name} {error}") from None

    @model_validator(mode="after")
    def _check_sizes(self) -> "RunSpec":
        K, M, N, D = self.K, self.M, self.N, self.D
        if K * M > MOST_CELLS:
            most = f"allowed is a product of up to {MOST_CELLS}"
            raise ValueError(f"K = {K} x M = {M}: {most}; choose smaller ones")
        if M * D > N:
            on = f" on each of D = {D} replicas" if D > 1 else ""
            raise ValueError(
                f"M = {M} micro-batches{on} of a mini-batch of N = {N}: each needs at least one "
                f"example, so M x D may be 1 to {N}; choose smaller ones or a larger N"
            )
        if isinstance(self.balance, tuple):
            given = f"balance = {short(list(self.balance))}"
            if len(self.balance) != self.total_stages:
                raise ValueError(
                    f"{given} has {len(self.balance)} entries for {self.stages_text}: give one "
                    "layer count per stage, or leave it out"
                )
            if self.partitioner is not None:
                cut = "these stages are cut already"
                raise ValueError(f"partitioner = '{self.partitioner}' with {given}: {cut}")
        return self

    @model_validator(mode="after")
    def _check_schedule_and_library(self) -> "RunSpec":
        check_kind(self.schedule, self.recompute, self.stages_per_rank or 1)
        self._require("library", LIBRARIES[self.library][1])
        alike = self.fidelity == "simulated" or self.task == "traffic"
        alike |= self.library in WHOLE_WORLD
        count = self.M * self.D
        if alike and self.N % count:
            raise ValueError(
                f"N = {self.N}, M = {self.M}, D = {self.D}: N must be a multiple of M D, since all "
                f"micro-batches of such a run ({self.fidelity}, {self.task}, {self.library}) have "
                f"one size; try N={max(self.N - self.N % count, count)}"
            )
        return self

    def _require(self, cause: str, allowed: Allowed) -> None:
        """Raise a one-line ValueError for a field whose value another field does not allow."""
        for field, values in allowed.items():
            value = getattr(self, field)
            if value in values:
                continue
            several = f"{values[0]} to {values[-1]}" if isinstance(values, range) else ""
            raise ValueError(
                f"{field} = {short(value)} with {cause} = {getattr(self, cause)!r}: allowed is "
                f"{several or ' or '.join(map(repr, values))}; set that, or another {cause}"
            )

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the model's builder: `model_args` with `~` expanded."""
        return tilde_to_home(self.model_args)

    @property
    def total_stages(self) -> int:
        return self.K * (self.stages_per_rank or 1)

    @property
    def stages_text(self) -> str:
        if self.stages_per_rank is None:
            return f"K = {self.K} stages"
        return f"K = {self.K} ranks of {self.stages_per_rank} stages each"

    @property
    def timed(self) -> bool:
        """Whether a clock times it; a measured run needs a device for each process then."""
        return self.task in ("train", "calibrate", "roofline") and self.fidelity in TIMED

    @property
    def devices(self) -> int:
        """Processes that compute at once; one process counts or simulates all stages."""
        if self.fidelity not in TIMED:
            return 1
        return self.K * self.D * (self.tensor_parallel or 1)

    @property
    def method(self) -> str:
        """Its name in `repro.methods.named`."""
        return name_of(self)

    def make_schedule(self) -> Schedule:
        per_rank = self.stages_per_rank or 1
        return _schedule(self.schedule, self.total_stages, self.M, self.recompute, per_rank)

    def plain(self, *, recorded: bool = False) -> dict[str, Any]:
        """The spec as JSON, without fields that are None; with names as `recorded` and hashed."""
        fields = self.model_dump(mode="json", by_alias=recorded)
        return {name: value for name, value in fields.items() if value is not None}

    def check_depth(self, layers: int) -> None:
        """Raise a one-line ValueError where a model of so many layers cannot be cut for this."""
        if layers < self.total_stages:
            most = layers // (self.stages_per_rank or 1)
            raise ValueError(
                f"{self.stages_text}, but {self.model} has L = {layers} layers here: "
                f"K may be 1 to {most}; choose a smaller K or a deeper model"
            )
        if isinstance(self.balance, tuple) and sum(self.balance) != layers:
            raise ValueError(
                f"balance = {short(list(self.balance))} adds up to {sum(self.balance)} layers, but "
                f"{self.model} has L = {layers} here: the entries must add up to {layers}; or "
                "leave it out"
            )

    def run_id(self, version: int, environment: dict[str, str]) -> str:
        """A readable, stable name such as `amoebanet-d-K4-M32-3fa9c1`.

        It ends in a hash of the recorded spec, so it stays the same when specs get new fields, of
        the experiment's `version` and, for timed runs, of the `environment` (device kind,
        transport, torch version): what was measured elsewhere never counts as measured here.
        """
        peer = "" if self.library == "repro" else f"-{self.library}"
        name = f"{slug(self.model)}-K{self.K}-M{self.M}{peer}"
        timed = environment if self.fidelity in TIMED else {}
        marked = {"spec": self.plain(recorded=True), "version": version, "environment": timed}
        return f"{name}-{digest(marked)[:6]}"


class TrainSpec(RunSpec):
    """A run whose steps a clock times.

    Attributes:
        link: slows messages down.
        control: a run that shows what a measurement can distinguish: the same run "again" with
            another seed.
    """

    task: Literal["train"] = "train"
    fidelity: Literal["measured", "emulated"] = "measured"
    link: Link | None = None
    tensor_parallel: Several | None = None
    control: Literal["again"] | None = None


class SimulatedSpec(RunSpec):
    """A run whose steps are laid on a virtual clock, with times from a cost model.

    Attributes:
        profile: the device that gives the times of layers, a name in `repro.costs.device`, or a
            file. Without one the layers must wait by themselves.
        link: in place of the profile's.
        memory: bytes of each stage: the run takes the largest N that fits, up to its own.
    """

    task: Literal["train"] = "train"
    fidelity: Literal["simulated"] = "simulated"
    library: Literal["repro"] = "repro"
    profile: Name | None = None
    link: Link | None = None
    memory: Memory | None = None

    @model_validator(mode="after")
    def _check_memory(self) -> "SimulatedSpec":
        if self.memory is not None and self.profile is None:
            raise ValueError(f"memory = {self.memory}: it needs a profile, such as profile='v100'")
        return self


class CheckSpec(RunSpec):
    """A run that compared a library with the unsplit model; there are recorded ones alone."""

    task: Literal["check"] = "check"
    fidelity: Literal["measured"] = "measured"
    D: Literal[1] = 1
    trace: Literal[False] = False


class FitSpec(RunSpec):
    """A search for the largest model within `memory` bytes of each stage (`repro.costs.fit`)."""

    task: Literal["fit"] = "fit"
    fidelity: Literal["counted", "measured"] = "counted"
    library: Literal["repro"] = "repro"
    D: Literal[1] = 1
    balance: Literal["memory"] = "memory"
    partitioner: None = None
    stages_per_rank: None = None
    memory: Memory


class CalibrateSpec(RunSpec):
    """A run that times layers for `repro.simulate`.

    Of the task "roofline" there are recorded runs alone: they fitted a device to such times.
    """

    task: Literal["calibrate", "roofline"] = "calibrate"
    fidelity: Literal["measured"] = "measured"
    library: Literal["repro"] = "repro"
    D: Literal[1] = 1


class LearnSpec(RunSpec):
    """A training for an accuracy or a translation quality, defined by `training`."""

    task: Literal["learn"] = "learn"
    fidelity: Literal["measured"] = "measured"
    library: Literal["repro"] = "repro"
    balance: BalanceRule | tuple[Positive, ...] = "parameters"
    trace: Literal[False] = False
    training: Training

    @model_validator(mode="after")
    def _check_replicas(self) -> "LearnSpec":
        if self.N % self.D:
            raise ValueError(f"N = {self.N}: allowed is a multiple of D = {self.D}")
        return self

    def pretraining_run(self) -> "LearnSpec | None":
        """The pretraining that the training begins with, as a run of its own; None without one.

        Runs that differ in their own data, answers and steps alone share it.
        """
        if self.training.pretraining is None:
            return None
        training = self.training.pretraining
        classes = find(training.data[0]).classes
        return self.model_copy(
            update={
                "model_args": {**self.model_args, "num_classes": classes},
                "steps": training.steps,
                "training": training,
                "seed": self.seed if training.seed is None else training.seed,
            }
        )


class TrafficSpec(RunSpec):
    """A run that counts what each device sends in a step (`repro.methods.counted`)."""

    task: Literal["traffic"] = "traffic"
    fidelity: Literal["counted"] = "counted"
    library: Literal["repro", "ddp", Divided] = "repro"
    recompute: Literal["never"] = Field(default="never", **_RECORDED)
    balance: Literal["flops"] = "flops"
    partitioner: None = None
    stages_per_rank: None = None
    trace: Literal[False] = False
    tensor_parallel: Several | None = None

    @model_validator(mode="after")
    def _check_pipeline(self) -> "TrafficSpec":
        if self.library == "repro":
            self._require("library", {"D": (1,)})
        return self


# The word for a kind of runs -> its class. It is the task's, but of simulated steps.
_KINDS: dict[str, type[RunSpec]] = {
    "train": TrainSpec,
    "simulated": SimulatedSpec,
    "check": CheckSpec,
    "fit": FitSpec,
    "calibrate": CalibrateSpec,
    "roofline": CalibrateSpec,
    "learn": LearnSpec,
    "traffic": TrafficSpec,
}
# Every field of a run, of whatever kind.
FIELDS = (*dict.fromkeys(name for kind in _KINDS.values() for name in kind.model_fields),)


def _kind_of(task: Any = "train", fidelity: Any = "measured", **_fields: Any) -> str:
    tasks = [name for name in _KINDS if name != "simulated"]
    if task not in tasks:
        allowed = f"allowed are {', '.join(tasks)}{did_you_mean(str(task), tasks)}"
        raise ValueError(f"task = {short(task)}: {allowed}")
    return "simulated" if (task, fidelity) == ("train", "simulated") else task


# Plain training, over which speedups are shown first: one device takes the mini-batch at once and
# recomputes nothing. What else a run asks of devices and of its library is left out.
PLAIN: dict[str, Any] = dict.fromkeys(("stages_per_rank", "tensor_parallel", "link"))
PLAIN |= {"K": 1, "M": 1, "D": 1, "library": "repro", "schedule": "gpipe", "recompute": "never"}
PLAIN |= {"trace": True, "transport": "auto"}
# What a run is divided by, as the fields in which that run differs; the last is Table 2's.
BASELINES: dict[str, dict[str, Any]] = {"plain": PLAIN, "k1": {"K": 1}, "k2m1": {"K": 2, "M": 1}}


def sweep(**fields: Any) -> tuple[RunSpec, ...]:
    """A run for each combination of the fields that have several values, the last one fastest.

    A list gives several values; so `sweep(model="mlp", N=8, K=[1, 2], M=[1, 4])` has four runs.
    """
    several = {name: value for name, value in fields.items() if isinstance(value, list)}
    combinations = itertools.product(*several.values())
    return tuple(
        RunSpec(**fields | dict(zip(several, values, strict=True))) for values in combinations
    )


class Group(Frozen):
    """Runs that will be divided by each other: one round measures each of them.

    Those that a clock times are measured together, by processes of their own: a block is one step
    of each, in random order, and a round has `steps` blocks.

    A round stops when the ratios of its runs are decided. `rounds` replaces the experiment's number
    of rounds. A group that is `first` is measured before others, since verdicts rest on it at the
    laptop scale. Timed stages of a group that is `shared` may share a GPU, to show what the runtime
    costs there.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    runs: tuple[RunSpec, ...] = Field(min_length=1)
    rounds: Positive | None = None
    shared: bool = False
    first: bool = False


class Experiment(Frozen):
    """One table, figure or question of the paper, with its runs at one scale."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")  # that a user types: its folder's
    title: str
    question: str
    paper: str = ""  # its number in arXiv v5, such as "Table 2"
    neurips: str = ""  # its number in the NeurIPS 2019 version
    needs: str = ""  # devices
    deviations: tuple[str, ...] = ()
    minutes: dict[Scale, float] = Field(default={})
    version: Positive = 1  # raised by hand when old results should not count any more
    rounds: Positive = 2  # of every group
    groups: tuple[Group, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_once(self) -> "Experiment":
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"groups = {names}: a name is there twice; give each group its own")
        return self


def canonical(value: Any) -> str:
    """The value as JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def assigned(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def run_name(run: str, fidelity: str, differs_in: str) -> str:
    """A run's id with what is not in it: `mlp-K2-M4-3fa9c1 (emulated, width=64)`."""
    present = [text for text in (fidelity.removeprefix("measured"), differs_in) if text]
    return f"{run} ({', '.join(present)})" if present else run


def slug(name: str) -> str:
    """A model's name as a part of a file name: `timm:resnet50` -> `timm-resnet50`."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
