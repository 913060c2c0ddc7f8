"""Batch norm's running statistics and re-materialization.

A layer that is run twice for one micro-batch must count that micro-batch once: its F does, its R does not.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@contextmanager
def statistics_frozen(module: nn.Module) -> Iterator[None]:
    """Normalise with the batch's own statistics as in training, but leave the running ones alone."""
    tracking = [m for m in module.modules() if isinstance(m, BATCH_NORMS) and m.training and m.track_running_stats]
    for norm in tracking:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True
