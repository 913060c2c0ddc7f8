"""The caller's torch.autocast region: layers and loss run inside it, everything else outside.

PyTorch recommends to leave the region before the backward. Inside it, the gradients of operators
that ran in float32 would be computed in the lower precision. The same holds for an optimizer that
multiplies matrices.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from repro.gpipe.core.stage import HeldStages


@contextmanager
def left_for_a_step(held: HeldStages) -> Iterator[None]:
    """Leave the caller's region, if there is one; `held` enters it again for its layers."""
    kind = held.device.type
    if not torch.is_autocast_enabled(kind):
        yield
        return
    held.autocast = torch.get_autocast_dtype(kind)
    # The region caches weights in the lower precision until its end, and there may be many steps in
    # one region.
    torch.clear_autocast_cache()
    try:
        with torch.autocast(kind, enabled=False):
            yield
    finally:
        held.autocast = None
        torch.clear_autocast_cache()
