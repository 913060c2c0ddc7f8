"""The methods that are compared, by the names that readers know.

A method is a way to train one model on P devices. It is no class of its own: each name stands for
fields of a run, so that `repro run sweep --method 1f1b` and the experiment `methods` make the same
runs. `name_of` goes the other way, for tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.gpipe.errors import one_of

Fields = dict[str, Any]


@dataclass(frozen=True)
class NamedMethod:
    """One method of the comparison.

    Attributes:
        what: it is, in one sentence.
        settings: the fields of a run that make it this method, besides the number of devices.
        spread: the field that says over how many devices it spreads: K, D or tensor_parallel; None
            of a single device. With a second field there are two of that, and half of the devices
            are stages.
        exact: whether its gradients are those of a single device bit for bit, at equal M and with
            backwards in the same order; others are within 1e-5 of them.
        synchronous: whether all devices use the same weights in a step.
    """

    what: str
    settings: Mapping[str, Any]
    spread: tuple[str, ...] = ("K",)
    exact: bool = True
    synchronous: bool = True

    def fields(self, devices: int) -> Fields:
        """The fields of a run on so many devices.

        Raises:
            ValueError: one line: it cannot use so many.
        """
        match self.spread:
            case ():
                of_devices = {"K": 1}
            case ("K",):
                of_devices = {"K": devices}
            case ("tensor_parallel",) if devices < 2:
                raise ValueError(f"devices = {devices}: matrices are divided over 2 or more; try 2")
            case (field,):
                of_devices = {"K": 1, field: devices}
            case (_, second) if devices % 2 or devices < 4:
                raise ValueError(
                    f"devices = {devices} with 2 or more stages and {second} = 2: allowed are even "
                    "numbers from 4"
                )
            case (first, second):
                of_devices = {first: devices // 2, second: 2}
        return {**of_devices, **self.settings}


METHODS: dict[str, NamedMethod] = {
    "single": NamedMethod("one device, K=1", {}, ()),
    "naive": NamedMethod("model parallelism with one micro-batch at a time", {"schedule": "naive"}),
    "gpipe": NamedMethod("this library's pipeline", {"schedule": "gpipe"}),
    "gpipe-x-data": NamedMethod(
        "D=2 replicas of a pipeline", {"schedule": "gpipe"}, ("K", "D"), exact=False
    ),
    "1f1b": NamedMethod("PipeDream-flush: a backward as soon as it can be", {"schedule": "1f1b"}),
    "interleaved": NamedMethod(
        "1F1B with two stages on each rank", {"schedule": "interleaved-1f1b", "stages_per_rank": 2}
    ),
    "pipedream": NamedMethod(
        "asynchronous 1F1B: every micro-batch updates, weights are stashed",
        {"library": "pipedream"},
        exact=False,
        synchronous=False,
    ),
    "data": NamedMethod(
        "replicas of the whole model, gradients all-reduced (DistributedDataParallel)",
        {"library": "ddp"},
        ("D",),
        exact=False,
    ),
    "fully-sharded": NamedMethod(
        "replicas that shard weights, gradients and optimizer state (fully_shard)",
        {"library": "fsdp"},
        ("D",),
        exact=False,
    ),
    "gpipe-x-zero1": NamedMethod(
        "D=2 replicas of a pipeline that shard the optimizer's state",
        {"schedule": "gpipe", "zero": 1},
        ("K", "D"),
        exact=False,
    ),
    "tensor": NamedMethod(
        "each matrix divided over the devices (torch.distributed.tensor.parallel)",
        {"library": "tensor"},
        ("tensor_parallel",),
        exact=False,
    ),
    "gpipe-x-tensor": NamedMethod(
        "a pipeline whose stages are divided over two devices",
        {"schedule": "gpipe"},
        ("K", "tensor_parallel"),
        exact=False,
    ),
    "zero-bubble": NamedMethod(
        "ZB-H1: backwards split in two; simulated",
        {"schedule": "zb-h1", "checkpoint": "never"},
    ),
}
# Library -> field of a run -> its allowed values, where these are limited. What is only asked of
# our own pipeline has its default.
_OWN_ALONE: Mapping[str, tuple[Any, ...]] = {
    "checkpoint": ("always", "never"),
    "trace": (False,),
    "transport": ("auto",),
    "link": (None,),
    "zero": (None,),
}
_PIPELINE = {**_OWN_ALONE, "schedule": ("gpipe",), "tensor_parallel": (None,), "D": (1,)}
_REPLICAS = {**_OWN_ALONE, "schedule": ("gpipe",), "tensor_parallel": (None,), "K": (1,)}
ACCEPTS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "repro": {},
    "torch": _PIPELINE,
    "torch-1f1b": {**_PIPELINE, "schedule": ("1f1b",)},
    "torch-interleaved": {**_PIPELINE, "schedule": ("interleaved-1f1b",)},
    "deepspeed": {**_PIPELINE, "schedule": ("1f1b",)},
    "torchgpipe": _PIPELINE,
    "pipedream": _PIPELINE,
    "ddp": _REPLICAS,
    "fsdp": _REPLICAS,
    "tensor": {**_OWN_ALONE, "schedule": ("gpipe",), "D": (1,), "K": (1,)},
}


def fields_of(name: str, devices: int) -> Fields:
    """The fields of a run that make it this method on so many devices.

    Raises:
        ValueError: one line: there is no such method, or it cannot use so many devices.
    """
    one_of("method", name, METHODS)
    try:
        return METHODS[name].fields(devices)
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
