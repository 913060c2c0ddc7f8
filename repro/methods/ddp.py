"""torch's DistributedDataParallel as a method: D replicas whose gradients are all-reduced.

Running statistics of batch norm are those of the first replica, which the library broadcasts, and
move with every micro-batch, twice where it is recomputed.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from repro.methods.unpipelined import SeededLayers, Unpipelined


class DataParallel(Unpipelined):
    """The whole model under `DistributedDataParallel`; see `Method`.

    Gradients are summed in the last micro-batch's backward, in buckets, beside the computation.
    """

    _model: DistributedDataParallel
    # A freed gradient would no longer be a view of its bucket, but take memory besides it.
    frees_gradients = False

    def _wrapped(self, module: SeededLayers) -> nn.Module:
        # Without views the library keeps a second copy of all gradients, in its buckets.
        return DistributedDataParallel(
            module, process_group=self._group, gradient_as_bucket_view=True
        )

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._model.no_sync()

    def _occupied(self, tensor: Tensor) -> Tensor:
        # A gradient is a view of a bucket, which stays when the gradient is cleared.
        return tensor.detach().new_empty(0).set_(tensor.untyped_storage())
