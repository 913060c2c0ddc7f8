"""The list of guards."""

from typing import Any

import torch

from repro.gpipe.exact.batchnorm import Gather, RunningStatistics
from repro.gpipe.exact.foreign import ForeignLeaves
from repro.gpipe.exact.guard import Guards
from repro.gpipe.exact.inputs import OverwrittenInputs
from repro.gpipe.exact.nonfinite import NonFinite
from repro.gpipe.exact.recompute import RecomputeEqualsForward
from repro.gpipe.exact.state import LayerState


def guards(rank: Any, device: torch.device, gather: Gather | None, *, finite: bool) -> Guards:
    """All guards of a rank's layers, in the order in which they are called."""
    return Guards(
        [
            OverwrittenInputs(),
            LayerState(rank),
            RunningStatistics(rank, gather),
            ForeignLeaves(rank),
            RecomputeEqualsForward(device),
            *([NonFinite(rank)] if finite else []),
        ]
    )
