"""DeepSpeed's pipeline engine as a method: its 1F1B, with `torch.utils.checkpoint`.

The engine takes every process of the world as its own, so there must be K of them. It has no
setting for a given cut. It gets one layer for each stage, which holds all layers of ours.
It calls a backward for each tensor that a stage has sent: a stage that sends two, as AmoebaNet's
do, runs its backward twice, and recomputes twice.
"""

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.tree import Tree, batch_size, flatten
from repro.methods.method import Peer, Setup
from repro.methods.peers.flat import FlatStage, boundaries


class DeepSpeedPipeline(Peer):
    """One stage under `deepspeed.pipe.PipelineModule` and its engine."""

    def __init__(self, setup: Setup) -> None:
        K = setup.config.stages
        assert dist.get_world_size() == K, "DeepSpeed takes all processes as its own"
        deepspeed = _deepspeed(setup.device)
        super().__init__(setup, K, dist.get_rank())
        self.balance = setup.counts()
        self.module = setup.build_stage(self.balance, self._rank)
        _, skeleton = boundaries(setup.layers, setup.sample, self.balance)[self._rank]
        recompute = setup.config.recompute == "always"
        self._flat = FlatStage(self.module, skeleton, recompute=recompute)
        whole = deepspeed.pipe.PipelineModule(
            layers=[self._flat] * K,  # of which it takes the one of its stage
            num_stages=K,
            loss_fn=self._loss,
            partition_method="uniform",
        )
        parameters = list(self.module.parameters())
        M = setup.config.micro_batches
        size = batch_size(setup.sample)
        self._model = deepspeed.initialize(
            model=whole,
            model_parameters=parameters,
            optimizer=setup.make_optimizer(parameters),  # which it steps itself
            config={
                "train_batch_size": M * size,
                "train_micro_batch_size_per_gpu": size,
                "gradient_accumulation_steps": M,
                "gradient_clipping": 0.0,  # it clips to a norm of 1 by default
                "steps_per_print": 2**40,
            },
        )[0]

    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        return float(self._model.train_batch(self._parts(inputs, targets)))

    def close(self) -> None:
        """Remove the engine's hooks on parameters."""
        self._model.destroy()

    def _parts(self, inputs: Tree, targets: Tree) -> Iterator[tuple[Any, Any]]:
        """Micro-batches as the engine reads them: tuples of tensors, and targets as they are."""
        M = self._setup.config.micro_batches
        if batch_size(inputs) % M:
            raise ValueError(
                f"N = {batch_size(inputs)}, M = {M} with library = 'deepspeed': all micro-batches "
                f"have one size; set N={batch_size(inputs) // M * M or M}"
            )
        parts = [tuple(flatten(part)[0]) for part in self.cut(inputs)]
        return iter(list(zip(parts, self.cut(targets), strict=True)))

    def _loss(self, outputs: Any, targets: Tree) -> Tensor:
        return self._setup.loss(self._flat.unflat(outputs), targets)


def _deepspeed(device: torch.device) -> Any:
    """The library, set up for this process; it is optional, so it is imported by name."""
    os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = import_module("deepspeed")
    # Else it compiles an extension for all-reduces on one host, which a pipeline does not use.
    import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist.get_backend(), auto_mpi_discovery=False)
    import_module("deepspeed.pipe")
    return deepspeed
