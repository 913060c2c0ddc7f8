"""Ways of training a model on several devices: ours and those of peer libraries, one interface.

`make(library, setup)` builds one. `checks` compares it with the unsplit model. `Method` and `Setup`
are imported when they are first used, so that `repro.methods.named` can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.methods.method import Method, Setup

__all__ = ["Method", "Setup", "make"]

_PIPELINING = "peers.pipelining", "Pipelining"
_CLASSES = {  # library -> the module and the class of its method
    "repro": ("own", "Own"),
    "torch": _PIPELINING,
    "torch-1f1b": _PIPELINING,
    "torch-interleaved": _PIPELINING,
    "deepspeed": ("peers.deepspeed", "DeepSpeedPipeline"),
    "torchgpipe": ("peers.torchgpipe", "TorchGPipe"),
    "pipedream": ("pipedream", "PipeDream"),
    "ddp": ("ddp", "DataParallel"),
    "fsdp": ("fsdp", "FullySharded"),
    "tensor": ("tensor", "TensorParallel"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in ("Method", "Setup"):
        raise AttributeError(f"module 'repro.methods' has no attribute {name!r}")
    return getattr(import_module("repro.methods.method"), name)


def make(library: str, setup: Setup) -> Method:
    """The method of a library on this process; a peer library is imported when it is asked for.

    Raises:
        ValueError: one line: links are to be throttled, and the library is a peer, which cannot.
    """
    if library != "repro" and setup.config.throttle is not None:
        raise ValueError(
            f"throttle = {setup.config.throttle} with library {library!r}: only links of "
            "library='repro' can be throttled; leave it out"
        )
    module, name = ("zero", "ShardedState") if setup.zero else _CLASSES[library]
    return getattr(import_module(f"repro.methods.{module}"), name)(setup)
