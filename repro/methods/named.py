"""The methods that are compared, by the names that readers know.

A method is a way to train one model on P devices. It is no class of its own: each name stands for
fields of a run, so that `repro run sweep --method 1f1b` and the experiment `methods` make the same
runs. `name_of` goes the other way, for tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from repro.gpipe.errors import one_of

Fields = dict[str, Any]


def _pipeline(devices: int) -> Fields:
    return {"K": devices}


def _replicas(devices: int) -> Fields:
    return {"K": 1, "D": devices}


def _tensor(devices: int) -> Fields:
    if devices < 2:
        raise ValueError(f"devices = {devices}: matrices are divided over 2 or more; try 2")
    return {"K": 1, "tensor_parallel": devices}


def _one_device(devices: int) -> Fields:
    return {"K": 1}


def _halved(second: str) -> Callable[[int], Fields]:
    """Half of the devices are stages, and there are two of something else."""

    def fields(devices: int) -> Fields:
        if devices % 2 or devices < 4:
            raise ValueError(
                f"devices = {devices} with 2 or more stages and {second} = 2: allowed are even "
                "numbers from 4"
            )
        return {"K": devices // 2, second: 2}

    return fields


@dataclass(frozen=True)
class NamedMethod:
    """One method of the comparison.

    Attributes:
        what: it is, in one sentence.
        fields: number of devices P -> the fields of a run that say how these are used.
        settings: other fields of a run that make it this method.
        exact: whether its gradients are those of a single device bit for bit, at equal M and with
            backwards in the same order; others are within 1e-5 of them.
        synchronous: whether all devices use the same weights in a step.
    """

    what: str
    fields: Callable[[int], Fields]
    settings: Mapping[str, Any]
    exact: bool = True
    synchronous: bool = True


METHODS: dict[str, NamedMethod] = {
    "single": NamedMethod("one device, K=1", _one_device, {}),
    "naive": NamedMethod(
        "model parallelism with one micro-batch at a time", _pipeline, {"schedule": "naive"}
    ),
    "gpipe": NamedMethod("this library's pipeline", _pipeline, {"schedule": "gpipe"}),
    "gpipe-x-data": NamedMethod(
        "D=2 replicas of a pipeline", _halved("D"), {"schedule": "gpipe"}, exact=False
    ),
    "1f1b": NamedMethod(
        "PipeDream-flush: a backward as soon as it can be", _pipeline, {"schedule": "1f1b"}
    ),
    "interleaved": NamedMethod(
        "1F1B with two stages on each rank",
        _pipeline,
        {"schedule": "interleaved-1f1b", "stages_per_rank": 2},
    ),
    "pipedream": NamedMethod(
        "asynchronous 1F1B: every micro-batch updates, weights are stashed",
        _pipeline,
        {"library": "pipedream"},
        exact=False,
        synchronous=False,
    ),
    "data": NamedMethod(
        "replicas of the whole model, gradients all-reduced (DistributedDataParallel)",
        _replicas,
        {"library": "ddp"},
        exact=False,
    ),
    "fully-sharded": NamedMethod(
        "replicas that shard weights, gradients and optimizer state (fully_shard)",
        _replicas,
        {"library": "fsdp"},
        exact=False,
    ),
    "gpipe-x-zero1": NamedMethod(
        "D=2 replicas of a pipeline that shard the optimizer's state",
        _halved("D"),
        {"schedule": "gpipe", "zero": 1},
        exact=False,
    ),
    "tensor": NamedMethod(
        "each matrix divided over the devices (torch.distributed.tensor.parallel)",
        _tensor,
        {"library": "tensor"},
        exact=False,
    ),
    "gpipe-x-tensor": NamedMethod(
        "a pipeline whose stages are divided over two devices",
        _halved("tensor_parallel"),
        {"schedule": "gpipe"},
        exact=False,
    ),
    "zero-bubble": NamedMethod(
        "ZB-H1: backwards split in two; simulated",
        _pipeline,
        {"schedule": "zb-h1", "checkpoint": "never"},
    ),
}


def fields_of(name: str, devices: int) -> Fields:
    """The fields of a run that make it this method on so many devices.

    Raises:
        ValueError: one line: there is no such method, or it cannot use so many devices.
    """
    one_of("method", name, METHODS)
    method = METHODS[name]
    try:
        return {**method.fields(devices), **method.settings}
    except ValueError as error:
        raise ValueError(f"method = '{name}': {error}") from None


def name_of(
    *,
    library: str,
    schedule: str,
    K: int,
    D: int,
    tensor_parallel: int | None,
    zero: int | None,
) -> str:
    """The name of the method that a run with these fields uses; its library where it has none."""
    of_library = {"ddp": "data", "fsdp": "fully-sharded"}
    if library != "repro":
        return of_library.get(library, library)
    of_schedule = {"interleaved-1f1b": "interleaved", "zb-h1": "zero-bubble"}
    base = of_schedule.get(schedule, schedule)
    if K == 1 and tensor_parallel is None:
        base = ""
    others = [
        name
        for name, present in (
            ("tensor", tensor_parallel is not None),
            ("zero1", zero is not None),
            ("data", D > 1 and zero is None),
        )
        if present
    ]
    return "-x-".join([base, *others] if base else others) or "single"
