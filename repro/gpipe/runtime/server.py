"""What the server imports that processes are forked from, before it forks any; nobody else does.

It has imported torch, so that a stage starts in tenths of a second, and nothing that has begun to
use CUDA, which no forked process could. It ends with the program that has started it.
"""

import gc

import torch._dynamo  # noqa: F401  # the first step of any optimizer imports it, in seconds

import repro.gpipe.core.pipeline
import repro.gpipe.runtime.launch  # noqa: F401
from repro.gpipe.runtime.processes import end_with_parent

end_with_parent()
gc.collect()
gc.freeze()  # what is imported stays, so no collection in any of the processes visits it
