"""torch.distributed.tensor.parallel as a method: each matrix is divided over T processes.

All processes run all layers on the same mini-batch, with the parts of matrices that a module's
`tensor_plan` says. `repro.methods.divided` does the same inside our pipeline.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

from repro.methods.divided import divisible, refuse_indivisible
from repro.methods.method import Setup
from repro.methods.sharded import Sharded
from repro.methods.unpipelined import SeededLayers


class TensorParallel(Sharded):
    """All layers under `parallelize_module`."""

    def __init__(self, setup: Setup) -> None:
        refuse_indivisible(setup.layers, setup.config.tensor_parallel)
        super().__init__(setup)

    def _wrapped(self, module: SeededLayers) -> nn.Module:
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
