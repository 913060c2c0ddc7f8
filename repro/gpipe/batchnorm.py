"""Running statistics of normalisation layers and re-materialization.

A layer that is run twice for one micro-batch must count that micro-batch once: its F does, its R does not.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@contextmanager
def statistics_frozen(module: nn.Module) -> Iterator[None]:
    """Normalise with the batch's own statistics as in training, but leave the running ones alone."""
    norms = [m for m in module.modules() if isinstance(m, BATCH_NORMS + INSTANCE_NORMS)]
    tracking = [m for m in norms if m.training and m.track_running_stats]
    running = [(m, m.running_mean, m.running_var) for m in tracking]
    for norm in tracking:
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = None  # an instance norm would update them all the same
    try:
        yield
    finally:
        for norm, mean, variance in running:
            norm.track_running_stats = True
            norm.running_mean, norm.running_var = mean, variance
