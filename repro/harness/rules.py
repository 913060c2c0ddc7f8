"""What the fields of a run ask of each other, as data: of each task, fidelity and library.

A rule is two settings, each field -> its values: where a run has the first, it must have the
second. What a library accepts is said in `repro.methods.named`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from repro.gpipe.schedule.kinds import SCHEDULES
from repro.io.untrusted import short
from repro.methods.named import COUNTED, DIVIDED, LIBRARIES

GIVEN = ("a value",)  # any but None
EXAMPLES = {"stages_per_rank": ", as in --stages-per-rank 2"}
NONE = (None,)
OURS = ("repro",)
MOST_CELLS = 2**18  # K x M: a schedule of ours has seven actions for each
Spec = Any  # a `RunSpec`, whose module imports this one
Setting = Mapping[str, tuple[Any, ...]]

TIMED = ("measured", "emulated")
_MEASURED_STEPS: Setting = {"fidelity": ("measured",), "task": ("train",)}
_ONE_REPLICA_OF_OURS: Setting = {"D": (1,), "library": OURS}
_TRAFFIC: Setting = {
    "fidelity": ("counted",),
    "balance": ("flops",),
    "partitioner": NONE,
    "checkpoint": ("never",),
    "stages_per_rank": NONE,
}
RULES: list[tuple[Setting, Setting]] = [
    # Libraries.
    *(({"library": (name,)}, accepted) for name, (_, accepted) in LIBRARIES.items()),
    ({"library": DIVIDED}, {"tensor_parallel": GIVEN, "fidelity": ("measured", "counted")}),
    # Schedules.
    *(
        (
            {"schedule": (name,)},
            ({"checkpoint": ("never",)} if kind.split else {})
            | ({} if kind.executed else {"fidelity": ("simulated",)})
            | {"stages_per_rank": GIVEN if kind.interleaved else NONE},
        )
        for name, kind in SCHEDULES.items()
    ),
    # Cuts.
    ({"balance": ("memory",)}, {"partitioner": NONE, "task": ("fit",)}),
    # Devices.
    ({"zero": GIVEN}, {"tensor_parallel": NONE, "fidelity": TIMED, "task": ("train",)}),
    (
        {"tensor_parallel": GIVEN},
        {"fidelity": (*TIMED, "simulated", "counted"), "task": ("train", "traffic")},
    ),
    ({"shared": GIVEN}, _MEASURED_STEPS),
    ({"sentences": GIVEN}, {"model": ("translation",), "D": (1,), **_MEASURED_STEPS}),
    # Tasks.
    (
        {"task": ("fit",)},
        {
            "balance": ("memory",),
            "memory": GIVEN,
            "fidelity": ("counted", "measured"),
            "stages_per_rank": NONE,
            **_ONE_REPLICA_OF_OURS,
        },
    ),
    ({"task": ("learn",)}, {"training": GIVEN, "library": OURS, "fidelity": ("measured",)}),
    ({"training": GIVEN}, {"task": ("learn",)}),
    ({"task": ("check",)}, {"D": (1,)}),
    ({"task": ("calibrate", "roofline")}, {"fidelity": ("measured",), **_ONE_REPLICA_OF_OURS}),
    # Cost models.
    ({"fidelity": ("counted",)}, {"task": ("fit", "traffic")}),
    ({"task": ("traffic",)}, {"library": COUNTED, **_TRAFFIC}),
    ({"task": ("traffic",), "library": OURS}, {"D": (1,), "tensor_parallel": NONE, **_TRAFFIC}),
    ({"fidelity": ("simulated",)}, {"task": ("train",), "library": OURS}),
    (
        {"profile": GIVEN},
        {"fidelity": ("simulated", "emulated"), "task": ("train",), "library": OURS},
    ),
    ({"fidelity": ("emulated",), "profile": GIVEN}, {"D": (1,), "tensor_parallel": NONE}),
    ({"stretch": GIVEN}, {"fidelity": ("emulated",), "profile": GIVEN}),
    ({"fidelity": ("simulated",), "memory": GIVEN}, {"profile": GIVEN}),
    ({"fidelity": ("measured", "emulated", "quoted"), "memory": GIVEN}, {"task": ("fit",)}),
    ({"link": GIVEN}, {"task": ("train",)}),
]


def check(spec: Spec) -> None:
    for mistake in _mistakes(spec):
        raise ValueError(mistake)


def _mistakes(spec: Spec) -> Iterator[str]:
    yield from _wrong_sizes(spec)
    for where, needed in RULES:
        if not all(_has(spec, field, values) for field, values in where.items()):
            continue
        for field in (field for field, values in needed.items() if not _has(spec, field, values)):
            causes = ", ".join(f"{name} = {getattr(spec, name)!r}" for name in where)
            value = f"a value{EXAMPLES.get(field, '')}"
            allowed = value if needed[field] is GIVEN else " or ".join(map(repr, needed[field]))
            others = (
                f"leave {name} out" if only is GIVEN else f"set another {name}"
                for name, only in where.items()
            )
            yield (
                f"{field} = {short(getattr(spec, field))} with {causes}: allowed is {allowed}; "
                f"set that, or {' or '.join(others)}"
            )
    yield from _wrong_divisions(spec)


def _has(spec: Spec, field: str, values: tuple[Any, ...]) -> bool:
    value = getattr(spec, field)
    return value is not None if values is GIVEN else value in values


def _wrong_sizes(spec: Spec) -> Iterator[str]:
    K, M, N, D = spec.K, spec.M, spec.N, spec.D
    if K * M > MOST_CELLS:
        yield f"K = {K} x M = {M}: allowed is a product of up to {MOST_CELLS}; choose smaller ones"
    if M * D > N:
        on = f" on each of D = {D} replicas" if D > 1 else ""
        yield (
            f"M = {M} micro-batches{on} of a mini-batch of N = {N}: each needs at least one "
            f"example, so M x D may be 1 to {N}; choose smaller ones or a larger N"
        )
    if isinstance(spec.balance, tuple):
        given = f"balance = {short(list(spec.balance))}"
        if len(spec.balance) != spec.total_stages:
            yield (
                f"{given} has {len(spec.balance)} entries for {spec.stages_text}: give one layer "
                "count per stage, or balance='time'"
            )
        if spec.partitioner is not None:
            yield f"partitioner = '{spec.partitioner}' with {given}: these stages are cut already"


def _wrong_divisions(spec: Spec) -> Iterator[str]:
    K, M, N = spec.K, spec.M, spec.N
    if spec.zero is not None and spec.D == 1:
        yield "zero = 1 with D = 1: the optimizer's state is sharded over replicas; set D=2 or more"
    if spec.task == "learn" and N % spec.D:
        yield f"N = {N} with task = 'learn': allowed is a multiple of D = {spec.D}"
    alike = (
        spec.modelled or spec.task in ("check", "traffic") or spec.library in ("deepspeed", "bare")
    )
    count = M * spec.D
    if alike and N % count:
        yield (
            f"N = {N}, M = {M}, D = {spec.D} with fidelity = '{spec.fidelity}', task = "
            f"'{spec.task}', library = '{spec.library}': micro-batches have one size there, so N "
            f"must be a multiple of M D; try N={max(N - N % count, count)}"
        )
    rounds = max(1, M // K)
    at_least = {
        "deepspeed": (K > 1, "K of 2 or more"),
        "torch-1f1b": (M >= K, f"M of K or more; set M={K}"),
        "torch-interleaved": (
            K > 1 and M % rounds == 0,
            "K of 2 or more, and M of less than 2 K or a multiple of M // K; set "
            f"M={rounds * max(2, K)}",
        ),
    }
    fits, needed = at_least.get(spec.library, (True, ""))
    if not fits:
        yield f"M = {M}, K = {K} with library = '{spec.library}': it needs {needed}"
