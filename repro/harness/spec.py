"""What is measured: frozen, validated specs.

A `RunSpec` is one point of a sweep, a `Group` holds runs that will be divided by each other, and an
`Experiment` is one table, figure or question of the paper (arXiv:1811.06965). All are pydantic
models: frozen, no unknown fields, and every mistake in them is one `ValueError` line that names the
field, the value, what is allowed and what to try.
"""

import hashlib
import json
import re
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from repro.harness.mistakes import one_line
from repro.harness.outside import check_plain, short
from repro.io.redact import expanded, portable

Scale = Literal["smoke", "laptop", "node", "paper"]
ScheduleName = Literal["gpipe", "gpipe-late", "1f1b"]
Checkpoint = Literal["always", "except_last", "never"]
BalanceRule = Literal["time", "parameters", "uniform", "memory"]
Optimizer = Literal["sgd", "rmsprop", "adam"]
Library = Literal["repro", "torch", "torchgpipe"]
Transport = Literal["auto", "shm", "gloo"]
Task = Literal["train", "check", "fit", "calibrate"]
Fidelity = Literal["quoted", "measured", "emulated", "simulated", "counted"]
SCALES: tuple[Scale, ...] = get_args(Scale)
TIMED: tuple[Fidelity, ...] = ("measured", "emulated")
Positive = Annotated[int, Field(ge=1, le=2**20, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**20, strict=True)]
Devices = Annotated[int, Field(ge=1, le=1024, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Speed = Annotated[float, Field(ge=1e-3, le=1e18, allow_inf_nan=False)]  # bytes per second
# a second becomes at most twelve days
Stretch = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
# a memory with which everything fits: what a size takes is asked, not whether it fits
ENOUGH = 2**59
MOST_CELLS = 2**18  # K x M: a schedule of ours has seven actions for each
# see `differences`
_NAMED = ("balance", "optimizer", "lr", "seed", "warmup", "steps", "trace", "transport")
_MOST_ARGUMENTS = 2**14  # values in model_args
_MOST_TEXT = 2**16  # characters of model_args as JSON


_NOT_COMPARED = {"balance", "stretch"}  # of a run, in which its baseline may differ


class Frozen(BaseModel):
    """Base of all specs: immutable, no unknown fields, mistakes reported as one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ValueError(one_line(error, type(self), data)) from None


class Link(Frozen):
    """Between neighbouring stages: seconds of latency, bytes per second, whether a stage computes while it sends."""

    latency: Seconds = 0.0
    bytes_per_second: Speed
    overlap: Annotated[bool, Field(strict=True)] = True


class RunSpec(Frozen):
    """One point of a sweep, in the paper's letters: K stages, M micro-batches, a mini-batch of N, D replicas.

    Each replica takes its part of the N examples and cuts it into M micro-batches. `lr` is the
    optimizer's step size; `warmup` steps are not counted, `steps` are timed; `model_args` go to
    `repro.models.build(model, **model_args)`. `library` runs the steps: `repro` is this project,
    `torch` is torch.distributed.pipelining. Without `trace` steps are timed by their start and end
    alone: no timeline, bubble or breakdown. `transport` carries the messages between stages. The
    task "check" times nothing but holds the library against the unsplit model
    (`repro.methods.checks`). The task "fit" times nothing either: it looks for the largest model,
    grown in what model_args do not fix (`repro.costs.size_ladder`), of which every stage stays
    within `memory` bytes, cut as evenly by memory as can be: counted on fake tensors, or measured,
    by training one size after the other. The task "calibrate" times the layers, on K processes at
    once, for `repro.simulate`.

    A simulated run lays the schedule on a virtual clock, with what layers cost on the device
    `profile` (a name in `repro.costs.device`, or a file), or with the waits of layers that wait;
    with `memory` it takes the largest N, up to the one that is given, of which every stage stays
    within it. An emulated run with a profile has K stages wait as long, `stretch` seconds for one
    of the device's. `link` slows messages down; where a profile has one it stands in for that.
    `figures` is a digest of the figures of a profile that is a file: an edited file makes other
    runs. The built-in profiles change with the code, which then raises the `version` of the
    experiments that use them.

    Values are bounded far above what any run needs, so that no spec costs memory or time before
    anything is measured: K and D by 1024, K x M by 2^18, N, M, warmup and steps by 2^20, stretch by
    10^6 and 10^-6, a link by 10^-3 and 10^18 bytes per second, model_args by 2^14 plain values and
    2^16 characters. In model_args `~` stands for the home folder, which is not recorded;
    `arguments` has it expanded.
    """

    model: str = Field(min_length=1, max_length=200)
    model_args: dict[str, Any] = {}
    K: Devices
    M: Positive
    N: Positive
    D: Devices = 1
    schedule: ScheduleName = "gpipe"
    checkpoint: Checkpoint = "always"
    balance: BalanceRule | tuple[Positive, ...] = "time"
    optimizer: Optimizer = "sgd"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 0.01
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    warmup: Count = 1
    steps: Positive = 3
    fidelity: Fidelity = "measured"
    library: Library = "repro"
    trace: Annotated[bool, Field(strict=True)] = True
    transport: Transport = "auto"
    task: Task = "train"
    memory: Annotated[int, Field(ge=1, lt=2**60, strict=True)] | None = None
    profile: str | None = Field(default=None, min_length=1, max_length=200)
    figures: str | None = Field(default=None, pattern=r"^[0-9a-f]{12}$")
    link: Link | None = None
    stretch: Stretch | None = None

    @field_validator("model", "profile")
    @classmethod
    def _check_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and not name.isprintable():
            raise ValueError(
                f"{info.field_name} = {short(name)}: allowed are letters, digits and signs that "
                "can be printed"
            )
        written = portable(str(info.field_name), name)
        return written if info.field_name == "profile" else name

    @field_validator("model_args")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            check_plain(arguments, _MOST_ARGUMENTS)
        except ValueError as error:
            raise ValueError(f"model_args {error}") from None
        if (size := len(canonical(arguments))) > _MOST_TEXT:
            raise ValueError(
                f"model_args holds {size} characters as JSON, allowed are {_MOST_TEXT}; give less"
            )
        if strange := [name for name in arguments if not name.isidentifier()]:
            raise ValueError(
                f"model_args has the name {short(strange[0])}: allowed are names of a function's "
                "arguments; try L=3"
            )
        return portable("model_args", arguments)

    @model_validator(mode="after")
    def _check(self) -> "RunSpec":
        if self.K * self.M > MOST_CELLS:
            raise ValueError(
                f"K = {self.K} x M = {self.M}: allowed is a product of up to {MOST_CELLS}; choose "
                "a smaller K or M"
            )
        if self.M * self.D > self.N:
            replicas = f" on each of D = {self.D} replicas" if self.D > 1 else ""
            raise ValueError(
                f"M = {self.M} micro-batches{replicas} of a mini-batch of N = {self.N}: each needs "
                f"at least one example, so M may be 1 to {self.N // self.D}; choose a smaller M or "
                "a larger N"
            )
        if isinstance(self.balance, tuple) and len(self.balance) != self.K:
            raise ValueError(
                f"balance = {short(list(self.balance))} has {len(self.balance)} entries for K = "
                f"{self.K} stages: give one layer count per stage, or balance='time'"
            )
        _check_fields(self)
        if self.task == "check" and (self.D > 1 or self.N % self.M):
            raise ValueError(
                f"N = {self.N}, D = {self.D} with task = 'check': N must be a multiple of M = "
                f"{self.M}, D 1; try N={self.M * max(1, self.N // self.M)} and D=1"
            )
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """What the model's builder is called with: `model_args` with `~` expanded."""
        return expanded(self.model_args)

    @property
    def modelled(self) -> bool:
        """Whether a cost model says what the layers take, and not a clock."""
        return self.fidelity == "simulated" or (
            self.fidelity == "emulated" and self.profile is not None
        )

    @property
    def devices(self) -> int:
        """How many devices, or processes, the run computes on at once; one counts or simulates all stages."""
        return 1 if self.fidelity in ("counted", "simulated") else self.K * self.D

    def grown(self, arguments: Mapping[str, Any]) -> str:
        """Of the arguments of a model that a fit has found, those that it chose."""
        return (
            assigned(
                {name: value for name, value in arguments.items() if name not in self.model_args}
            )
            or "as given"
        )

    def plain(self) -> dict[str, Any]:
        """As recorded and hashed: JSON, without what does not concern this run."""
        return {
            name: value for name, value in self.model_dump(mode="json").items() if value is not None
        }

    def fit(self, layers: int) -> None:
        """Raise a one-line ValueError where this run cannot be cut out of a model of `layers` layers."""
        if layers < self.K:
            raise ValueError(
                f"K = {self.K} stages, but {self.model} has L = {layers} layers here: "
                f"K may be 1 to {layers}; choose a smaller K or a deeper model"
            )
        if isinstance(self.balance, tuple) and sum(self.balance) != layers:
            raise ValueError(
                f"balance = {short(list(self.balance))} adds up to {sum(self.balance)} layers, but "
                f"{self.model} has L = {layers} here: the entries must add up to {layers}; or use "
                "balance='time'"
            )

    def run_id(self, version: int, environment: dict[str, str]) -> str:
        """A readable, stable name such as `amoebanet-d-K4-M32-3fa9c1`.

        The hash covers every field of the spec, the experiment's `version` and, for timed runs, the
        `environment` (device kind, transport, torch version): a number measured elsewhere or on
        another engine is never taken for one measured here.
        """
        peer = f"-{self.library}" if self.library != "repro" else ""
        return f"{slug(self.model)}-K{self.K}-M{self.M}{peer}-{mark(self.plain(), version, environment)}"


class Group(Frozen):
    """Runs that will be divided by each other; one round measures each once. `rounds`: not as many as elsewhere."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    runs: tuple[RunSpec, ...] = Field(min_length=1)
    rounds: Positive | None = None

    @model_validator(mode="after")
    def _no_twins(self) -> "Group":
        seen = set()
        for run in self.runs:
            text = canonical(run.model_dump(mode="json"))
            if text in seen:
                raise ValueError(
                    f"group '{self.name}' lists K = {run.K}, M = {run.M} twice: name each run once"
                )
            seen.add(text)
        return self


class Experiment(Frozen):
    """One table, figure or question of the paper, with its runs at one scale.

    `paper` and `neurips` are its numbers in arXiv v5 and in the NeurIPS 2019 version; `minutes`
    says about how long it takes at each scale; `version` is raised by hand when old results should
    not count any more; `rounds` is how often every group is measured; `deviations` says where it
    departs from the paper, and why.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    title: str
    question: str
    paper: str = ""
    neurips: str = ""
    needs: str = ""
    deviations: tuple[str, ...] = ()
    minutes: dict[Scale, float] = {}
    version: Positive = 1
    rounds: Positive = 5
    groups: tuple[Group, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_once(self) -> "Experiment":
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"groups = {names}: a name is there twice; give each group its own")
        return self


def baseline(spec: RunSpec, candidates: Mapping[str, RunSpec], **changed: Any) -> str | None:
    """Id of the candidate that equals `spec` but for the changed fields (K=1, or K=2 and M=1, or another library).

    How layers are cut is left out of the comparison: K=1 has nothing to cut, and a list of layer
    counts fits one K alone. So is the clock of an emulated run, whose seconds are those of its
    device.
    """
    target = compared(spec, **changed)
    return next(
        (name for name, candidate in candidates.items() if compared(candidate) == target), None
    )


def compared(spec: RunSpec, **changed: Any) -> Hashable:
    """What a run has in common with its baseline, with `changed` fields; equal ones are equal dictionary keys."""
    return _hashable(spec.model_dump(exclude=_NOT_COMPARED) | changed)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(sorted((name, _hashable(part)) for name, part in value.items()))
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """A hash of its canonical JSON: 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def mark(spec: Mapping[str, Any], version: int, environment: Mapping[str, str]) -> str:
    """What a run's id ends in; of a recorded spec.json it is the same as when it was recorded, whatever fields came."""
    timed = environment if spec.get("fidelity") in TIMED else {}
    return digest({"spec": spec, "version": version, "environment": timed})[:6]


def assigned(arguments: Mapping[str, Any]) -> str:
    """`L=3, D=16`."""
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def differences(runs: Mapping[str, RunSpec]) -> dict[str, str]:
    """For each id the settings that tell its run from the others here: `width=64, lr=0.1`.

    These are the model's arguments and the fields of `_NAMED`, each only where runs of the same
    model and fidelity differ in it. K, M and the library are part of the id; the other fields have
    columns of their own in plans and tables. Recorded ids stay as they are.
    """
    alike: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in runs.values():
        alike.setdefault((spec.model, spec.fidelity), []).append(spec)
    found = {}
    for run, spec in runs.items():
        others = alike[spec.model, spec.fidelity]
        settings = {
            name: value
            for name, value in spec.model_args.items()
            if any(other.model_args.get(name) != value for other in others)
        }
        settings |= {
            name: getattr(spec, name)
            for name in _NAMED
            if any(getattr(other, name) != getattr(spec, name) for other in others)
        }
        found[run] = ", ".join(
            f"{name}={short(value, 40, quote=False)}" for name, value in settings.items()
        )
    return found


def run_name(run: str, *details: str) -> str:
    """A run as a person reads it, with the details that are not empty: `mlp-K2-M4-3fa9c1 (emulated, width=64)`."""
    present = [text for text in details if text]
    return f"{run} ({', '.join(present)})" if present else run


def slug(name: str) -> str:
    """A model's name as a part of a file name: `timm:resnet50` -> `timm-resnet50`."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def _check_fields(spec: RunSpec) -> None:
    """Raise a one-line ValueError for fields that do not go together."""
    if spec.library != "repro":
        _peer(spec)
    _fit(spec)
    _modelled(spec)


def _peer(spec: RunSpec) -> None:
    """What the peer libraries are not asked to do."""
    wanted = {"D": (1,), "schedule": ("gpipe",), "checkpoint": ("always", "never")}
    wanted |= {"trace": (False,), "transport": ("auto",), "link": (None,)}
    for field, allowed in wanted.items():
        if (value := getattr(spec, field)) not in allowed:
            words = " or ".join(repr(one) for one in allowed)
            raise ValueError(
                f"{field} = {value!r} with library = '{spec.library}': allowed is {words}; set "
                "that, or library='repro'"
            )


def _fit(spec: RunSpec) -> None:
    """Only some of what makes up a search for the largest model."""
    fits, simulated = spec.task == "fit", spec.fidelity == "simulated"
    wanted = {
        "balance": (spec.balance == "memory") == fits,
        "memory": (spec.memory is None) != fits or simulated,
        "fidelity": spec.fidelity in ("counted", "measured")
        if fits
        else spec.fidelity != "counted",
        "D": spec.D == 1 or not fits,
        "library": spec.library == "repro" or not fits,
    }
    if wrong := [field for field, fine in wanted.items() if not fine]:
        raise ValueError(
            f"{wrong[0]} = {getattr(spec, wrong[0])!r} with task = '{spec.task}': a fit has a "
            "memory in bytes, balance='memory', D=1 and library='repro' and is counted or "
            "measured, and nothing else has; set that"
        )


def _modelled(spec: RunSpec) -> None:
    """What the cost models have no part in."""
    simulated, emulated = spec.fidelity == "simulated", spec.fidelity == "emulated"
    if spec.modelled and spec.N % spec.M:
        raise ValueError(
            f"N = {spec.N} with fidelity = '{spec.fidelity}': micro-batches are modelled alike, so "
            f"N must be a multiple of M = {spec.M}; try N={spec.N - spec.N % spec.M}"
        )
    timing = spec.task == "calibrate"
    wanted = {
        "profile": (
            spec.profile is None or simulated or emulated,
            "only simulated and emulated runs have one",
        ),
        "memory": (
            not simulated or spec.memory is None or spec.profile is not None,
            "only simulated runs with a device's profile, and fits, have one",
        ),
        "stretch": (
            spec.stretch is None or (emulated and spec.profile),
            "only emulated runs with a profile have one",
        ),
        "task": (
            spec.task == "train" or not (simulated or spec.profile),
            "task='train' alone can be modelled",
        ),
        "fidelity": (spec.fidelity == "measured" or not timing, "task='calibrate' is measured"),
        "link": (spec.link is None or spec.task == "train", "only task='train' has one"),
        "D": (
            spec.D == 1 or not (simulated or spec.profile or timing),
            "one replica is modelled, or timed for it",
        ),
        "library": (
            spec.library == "repro" or not (simulated or spec.profile or timing),
            "'repro' alone is modelled, or timed for it",
        ),
    }
    for field, (fine, words) in wanted.items():
        if not fine:
            raise ValueError(
                f"{field} = {getattr(spec, field)!r} with fidelity = '{spec.fidelity}': {words}; "
                "leave it out"
            )
