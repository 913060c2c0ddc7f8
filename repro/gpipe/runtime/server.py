"""Imports of the server, made before it forks any process. Only the server imports this module.

It has imported torch, so that a stage starts in tenths of a second, and nothing that has begun to
use CUDA, which no forked process could. It ends with the program that has started it.
"""

# ruff: noqa: E402
from repro.io.signals import end_with_parent

end_with_parent()  # before the imports: after them, an end in order would print what they leak

import gc
import sys
from pickle import UnpicklingError
from typing import Any

import torch._dynamo  # noqa: F401  # the first step of any optimizer imports it, in seconds

import repro.gpipe.core.pipeline
import repro.gpipe.runtime.launch  # noqa: F401

_HALF = ("", "Ran out of input", "pickle data was truncated")  # of what is to be read


def _print_error(kind: type, error: BaseException, trace: Any) -> None:
    """Print no error if the launcher ended before it had sent this process all of its task."""
    if not (isinstance(error, EOFError | UnpicklingError) and str(error) in _HALF):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _print_error
gc.collect()
gc.freeze()  # what is imported stays, so no collection in any of the processes visits it
