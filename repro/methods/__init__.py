"""Ways of training a model on several devices: ours and those of peer libraries, one interface.

`make(library, setup)` builds one. It imports torch when it is called, so that
`repro.methods.named` can be imported without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repro.methods.named import LIBRARIES

if TYPE_CHECKING:
    from repro.methods.method import Method, Setup


def make(library: str, setup: Setup) -> Method:
    """The method of a library on this process; a peer library is imported when it is asked for."""
    assert library == "repro" or setup.config.throttle is None  # `LIBRARIES` refuses it in a run
    module, _, name = LIBRARIES[library][0].rpartition(".")
    return getattr(import_module(f"repro.methods.{module}"), name)(setup)
