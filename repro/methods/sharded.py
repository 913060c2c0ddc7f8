"""What methods share whose parameters are DTensors, of which each process has a part."""

from typing import Any, ClassVar

from torch import Tensor
from torch.distributed.tensor import DTensor

from repro.gpipe.core.memory import LiveBytes
from repro.methods.unpipelined import Unpipelined


class LocalBytes(LiveBytes):
    """Counts the tensors of this process, not the whole ones for which DTensors stand."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it runs operators on local tensors, which come here then
        return super().__torch_dispatch__(func, types, args, kwargs)


class Sharded(Unpipelined):
    """Base of methods with DTensors; see `Unpipelined`."""

    wrappers = (DTensor,)
    meter: ClassVar[type[LiveBytes]] = LocalBytes

    def _occupied(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor
