"""Ways of training a model on several devices: our pipeline, and peer libraries behind the same face.

`make(library, setup)` builds one; `checks` holds it against the unsplit model.
"""

from collections.abc import Callable

from repro.methods.method import Method, Setup
from repro.methods.own import Own

__all__ = ["Method", "Setup", "make"]


def make(library: str, setup: Setup) -> Method:
    """The method of that library on this process; peers are imported only here.

    Raises:
        ValueError: for a peer with throttled links, which it does not have.
    """
    if library != "repro" and setup.throttle is not None:
        raise ValueError(
            f"throttle = {setup.throttle} with library {library!r}: only links of library='repro' "
            "can be throttled; leave it out"
        )
    return _MAKERS[library](setup)


def _torch(setup: Setup) -> Method:
    from repro.methods.peers.pipelining import Pipelining

    return Pipelining(setup)


def _torchgpipe(setup: Setup) -> Method:
    from repro.methods.peers.torchgpipe import TorchGPipe

    return TorchGPipe(setup)


_MAKERS: dict[str, Callable[[Setup], Method]] = {
    "repro": Own,
    "torch": _torch,
    "torchgpipe": _torchgpipe,
}
