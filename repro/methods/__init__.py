"""Ways of training a model on several devices: our pipeline and peer libraries, one interface.

`make(library, setup)` builds one. `checks` compares it with the unsplit model.
"""

from collections.abc import Callable

from repro.methods.method import Method, Setup
from repro.methods.own import Own

__all__ = ["Method", "Setup", "make"]


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
