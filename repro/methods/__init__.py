"""Ways of training a model on several devices: ours and those of peer libraries, one interface.

`make(library, setup)` builds one. `checks` compares it with the unsplit model. It imports torch
when it is called, so that `repro.methods.named` can be imported without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repro.methods.method import Method, Setup

_PIPELINING = "peers.pipelining", "Pipelining"
_CLASSES = {  # library -> the module and the class of its method
    "repro": ("own", "Own"),
    "torch": _PIPELINING,
    "torch-1f1b": _PIPELINING,
    "torch-interleaved": _PIPELINING,
    "deepspeed": ("peers.deepspeed", "DeepSpeedPipeline"),
    "torchgpipe": ("peers.torchgpipe", "TorchGPipe"),
    "pipedream": ("pipedream", "PipeDream"),
    "ddp": ("unpipelined", "DataParallel"),
    "fsdp": ("sharded", "FullySharded"),
    "tensor": ("sharded", "TensorParallel"),
}


def make(library: str, setup: Setup) -> Method:
    """The method of a library on this process; a peer library is imported when it is asked for."""
    assert library == "repro" or setup.config.throttle is None  # `ACCEPTS` refuses it in a run
    module, name = _CLASSES[library]
    return getattr(import_module(f"repro.methods.{module}"), name)(setup)
