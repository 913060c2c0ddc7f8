"""Methods whose parameters are DTensors, of which each process has a part."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

from repro.gpipe.core.memory import LiveBytes
from repro.methods.divided import divisible
from repro.methods.unpipelined import Unpipelined


class LocalBytes(LiveBytes):
    """Counts the tensors of this process, not the whole ones that DTensors represent.

    Storages count at their current size, as fully_shard frees gathered weights by resizing.
    """

    def __init__(self, resident: Iterable[Tensor] = ()) -> None:
        # Each storage that is alive, with the size that it had last.
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        super().__init__(resident)

    def _add(self, tensor: Tensor, size: int | None = None) -> None:
        super()._add(tensor, size)
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = weakref.ref(storage), storage.nbytes()

    def ended(self, key: int, size: int) -> None:
        """A storage is gone."""
        del self._storages[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it runs operators on local tensors, which come here then
        for key, (reference, size) in list(self._storages.items()):  # some may go meanwhile
            storage = reference()
            if storage is not None and storage.nbytes() != size:
                self._storages[key] = reference, storage.nbytes()
                self.now += storage.nbytes() - self._sizes[key]
                self._sizes[key] = storage.nbytes()
        return super().__torch_dispatch__(func, types, args, kwargs)


class Sharded(Unpipelined):
    """Base of methods with DTensors; see `Unpipelined`."""

    wrappers = (DTensor,)
    meter = LocalBytes

    def _occupied(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class FullySharded(Sharded):
    """Torch's fully_shard (FSDP2): D replicas that shard weights, gradients and state.

    Each layer is a unit: its weights are gathered before its forward and before its backward, and
    its gradients are summed and sharded after the backward of every micro-batch. Gradients that are
    kept whole until the last micro-batch would be sent once, but take the memory that is to be
    saved.
    """

    def _wrapped(self, module: nn.Sequential) -> nn.Module:
        mesh = DeviceMesh.from_group(self._group, self._setup.device.type)
        for layer in module:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)  # in place: the module gets another class
        return module


class TensorParallel(Sharded):
    """torch.distributed.tensor.parallel: each matrix is divided over T processes.

    All processes run all layers on the same mini-batch, with the parts of matrices that a module's
    `tensor_plan` says.
    """

    def _wrapped(self, module: nn.Sequential) -> nn.Module:
        # torch keeps what it planned for equal meshes, their group included. A name of its own
        # makes this mesh unequal to that of an earlier run, whose group is gone.
        mesh = DeviceMesh.from_group(
            self._group,
            self._setup.device.type,
            mesh_dim_names=(f"tensor_{self._group.group_name}",),
        )
        for part in divisible(module):
            plan = part.tensor_plan
            # A DTensor, so that gradients of all layers that read it are summed in one all-reduce.
            reads = PrepareModuleOutput(
                output_layouts=Replicate(),
                desired_output_layouts=Replicate(),
                use_local_output=False,
            )
            styles = {
                **dict.fromkeys(plan.inputs, reads),
                **dict.fromkeys(plan.columns, ColwiseParallel()),
                **dict.fromkeys(plan.rows, RowwiseParallel()),
            }
            # All processes have built the same weights, so none needs to send its own.
            parallelize_module(part, mesh, styles, src_data_rank=None)
            for name in plan.counts:
                setattr(part, name, getattr(part, name) // self._processes)
        return module
