"""Imports of the server, made before it forks any process. Only the server imports this module.

It has imported torch, so that a stage starts in tenths of a second, and nothing that has begun to
use CUDA, which no forked process could. It ends with the program that has started it.
"""

import atexit
import gc
import os

import torch._dynamo  # noqa: F401  # the first step of any optimizer imports it, in seconds

import repro.gpipe.core.pipeline
import repro.gpipe.runtime.launch  # noqa: F401

_server = os.getpid()


@atexit.register
def _end_at_once() -> None:
    """An end in order would print what the imports leak."""
    if os.getpid() == _server:
        os._exit(0)


gc.collect()
gc.freeze()  # what is imported stays, so no collection in any of the processes visits it
