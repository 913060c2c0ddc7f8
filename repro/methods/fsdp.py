"""torch's fully_shard (FSDP2) as a method: D replicas that shard weights, gradients and state.

Each layer is a unit: its weights are gathered before its forward and before its backward, and its
gradients are summed and sharded after the backward of every micro-batch. Gradients that are kept
whole until the last micro-batch would be sent once, but take the memory that is to be saved.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from repro.methods.sharded import LocalBytes, Sharded
from repro.methods.unpipelined import SeededLayers


class ResizedBytes(LocalBytes):
    """Counts storages at their current size, as the library frees gathered weights by resizing."""

    def __init__(self, resident: Iterable[Tensor] = (), limit: int | None = None) -> None:
        # Each storage that is alive, with the size that it had last.
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        super().__init__(resident, limit)

    def _add(self, tensor: Tensor, size: int | None = None) -> None:
        super()._add(tensor, size)
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = weakref.ref(storage), storage.nbytes()

    def ended(self, key: int, size: int) -> None:
        """A storage is gone."""
        del self._storages[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._follow_sizes()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _follow_sizes(self) -> None:
        for key, (reference, size) in list(self._storages.items()):  # some may go meanwhile
            storage = reference()
            if storage is not None and storage.nbytes() != size:
                self._storages[key] = reference, storage.nbytes()
                self.resized(key, storage.nbytes())


class FullySharded(Sharded):
    """All layers under `fully_shard`."""

    meter = ResizedBytes

    def _wrapped(self, module: SeededLayers) -> nn.Module:
        mesh = DeviceMesh.from_group(self._group, self._setup.device.type)
        for layer in module:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)  # in place: the module gets another class
        return module
