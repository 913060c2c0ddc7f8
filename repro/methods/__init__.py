"""Ways of training a model on several devices: ours and those of peer libraries, one interface.

`make(library, setup)` builds one. `checks` compares it with the unsplit model. `Method` and `Setup`
are imported when they are first used, so that `repro.methods.named` can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from repro.methods.method import Method, Setup

__all__ = ["Method", "Setup", "make"]


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
    return _MAKERS[library](setup)


def _own(setup: Setup) -> Method:
    if setup.zero:
        from repro.methods.zero import ShardedState

        return ShardedState(setup)
    from repro.methods.own import Own

    return Own(setup)


def _torch(setup: Setup) -> Method:
    from repro.methods.peers.pipelining import Pipelining

    return Pipelining(setup)


def _deepspeed(setup: Setup) -> Method:
    from repro.methods.peers.deepspeed import DeepSpeedPipeline

    return DeepSpeedPipeline(setup)


def _ddp(setup: Setup) -> Method:
    from repro.methods.ddp import DataParallel

    return DataParallel(setup)


def _fsdp(setup: Setup) -> Method:
    from repro.methods.fsdp import FullySharded

    return FullySharded(setup)


def _tensor(setup: Setup) -> Method:
    from repro.methods.tensor import TensorParallel

    return TensorParallel(setup)


def _torchgpipe(setup: Setup) -> Method:
    from repro.methods.peers.torchgpipe import TorchGPipe

    return TorchGPipe(setup)


def _pipedream(setup: Setup) -> Method:
    from repro.methods.pipedream import PipeDream

    return PipeDream(setup)


_MAKERS: dict[str, Callable[[Setup], Method]] = {
    "repro": _own,
    "torch": _torch,
    "torch-1f1b": _torch,
    "torch-interleaved": _torch,
    "deepspeed": _deepspeed,
    "torchgpipe": _torchgpipe,
    "pipedream": _pipedream,
    "ddp": _ddp,
    "fsdp": _fsdp,
    "tensor": _tensor,
}
