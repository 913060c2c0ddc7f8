"""The methods that are compared, by the names that readers know.

A method is a way to train one model on P devices. It is no class of its own: each name is for
fields of a run, so that `repro run sweep --method 1f1b` and the experiment `methods` make the same
runs. `name_of` goes the other way, for tables.
"""

from collections.abc import Mapping
from typing import Any

from repro.gpipe.errors import one_of

Fields = dict[str, Any]

# Name -> the field that counts the devices over which it spreads, K, D or tensor_parallel, and the
# other fields of its runs. Where devices are not stages, gradients are sums in another order,
# within 1e-5 of those of a single device; with all other methods but pipedream they are the same
# bit for bit.
METHODS: dict[str, tuple[str, Fields]] = {
    "single": ("", {}),
    # One micro-batch at a time.
    "naive": ("K", {"schedule": "naive"}),
    "gpipe": ("K", {"schedule": "gpipe"}),
    # PipeDream-flush: a backward as soon as it can be.
    "1f1b": ("K", {"schedule": "1f1b"}),
    "interleaved": ("K", {"schedule": "interleaved-1f1b", "stages_per_rank": 2}),
    # Backwards in two parts, of which one fills waits; a stage does what is ready.
    "zb": ("K", {"schedule": "zb"}),
    # Asynchronous 1F1B: every micro-batch updates, weights are stashed.
    "pipedream": ("K", {"library": "pipedream", "recompute": "never"}),
    # Replicas of the whole model, gradients all-reduced (DistributedDataParallel).
    "data": ("D", {"library": "ddp"}),
    # Replicas that shard weights, gradients and optimizer state (fully_shard).
    "fully-sharded": ("D", {"library": "fsdp"}),
    # Each matrix divided over the devices (torch.distributed.tensor.parallel).
    "tensor": ("tensor_parallel", {"library": "tensor"}),
}
# Field of a run -> its values, where these are limited.
Allowed = dict[str, tuple[Any, ...] | range]
# What is only asked of our own pipeline has its default.
_OWN_ALONE: Allowed = {
    "recompute": ("always", "never"),
    "trace": (False,),
    "transport": ("auto",),
    "link": (None,),
    "schedule": ("gpipe",),
}
_PIPELINE: Allowed = {**_OWN_ALONE, "tensor_parallel": (None,), "D": (1,)}
_REPLICAS: Allowed = {**_OWN_ALONE, "tensor_parallel": (None,), "K": (1,)}
_TENSOR: Allowed = {
    **_OWN_ALONE,
    "D": (1,),
    "K": (1,),
    "tensor_parallel": range(2, 1025),
    "fidelity": ("measured", "counted"),
}
# One float32 tensor crosses a boundary, over gloo, and all of a stage is recomputed.
_MINIMAL: Allowed = {
    "model": ("transformer",),
    **_PIPELINE,
    "task": ("train",),
    "fidelity": ("measured",),
    "recompute": ("always",),
}
_LOOP: Allowed = {**_PIPELINE, "K": (1,), "task": ("train",), "fidelity": ("measured",)}
_TORCH = "peers.pipelining.Pipelining"
# With recomputation it runs a block of n linear layers n + 2 times, see `findings`.
_ZERO_BUBBLE: Allowed = {**_PIPELINE, "schedule": ("zb",), "recompute": ("never",)}
COUNTED = ("channels", "rows")  # see `counted`
# Library -> its class in `repro.methods`, and the runs that it accepts.
LIBRARIES: Mapping[str, tuple[str, Allowed]] = {
    "repro": ("own.Own", {}),
    "torch": (_TORCH, _PIPELINE),
    "torch-1f1b": (_TORCH, {**_PIPELINE, "schedule": ("1f1b",)}),
    "torch-interleaved": (_TORCH, {**_PIPELINE, "schedule": ("interleaved-1f1b",)}),
    "torch-zb": ("peers.pipelining.ZeroBubble", _ZERO_BUBBLE),
    "torch-zbv": ("peers.pipelining.ZeroBubbleV", _ZERO_BUBBLE),
    "torch-dualpipev": ("peers.pipelining.DualPipeV", _ZERO_BUBBLE),
    "deepspeed": ("peers.deepspeed.DeepSpeedPipeline", {**_PIPELINE, "schedule": ("1f1b",)}),
    "torchgpipe": ("", _PIPELINE),  # of old records alone
    "pipedream": ("pipedream.PipeDream", {**_PIPELINE, "recompute": ("never",)}),
    "minimal": ("minimal.Minimal", _MINIMAL),
    "loop": ("loop.Loop", _LOOP),
    "ddp": ("unpipelined.DataParallel", _REPLICAS),
    "fsdp": ("sharded.FullySharded", _REPLICAS),
    "tensor": ("sharded.TensorParallel", _TENSOR),
    # Of convolutions divided by channels or rows it is only counted what they send. There are older
    # records of steps that were measured.
    **dict.fromkeys(COUNTED, ("", _TENSOR)),
}


def fields_of(name: str, devices: int) -> Fields:
    """The fields of a run that make it this method on so many devices."""
    one_of("method", name, METHODS)
    field, settings = METHODS[name]
    if field == "tensor_parallel" and devices < 2:
        raise ValueError(
            f"method = '{name}': devices = {devices}: layers are divided over 2 or more; try --K 2"
        )
    return {"K": 1, **({field: devices} if field else {}), **settings}


def name_of(run: Any) -> str:
    """The name of the method that a `RunSpec` uses; its library where it has none."""
    library: str = run.library
    if library != "repro":
        return {"ddp": "data", "fsdp": "fully-sharded"}.get(library, library)
    parts = []
    if run.K > 1 or run.tensor_parallel is not None:
        parts.append(run.schedule.removesuffix("-1f1b"))
    if run.tensor_parallel is not None:
        parts.append("tensor")
    if run.D > 1:
        parts.append("data")
    return "-x-".join(parts) or "single"
