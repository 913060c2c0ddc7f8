"""The public class: a model cut into stages, run by K processes, trained with M micro-batches.

    pipe = Pipeline(layers, stages=2, micro_batches=8)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    result = pipe.train_step(inputs, targets, loss_fn, optimizer)      # on every rank

Algorithm: section 2 of arXiv:1811.06965v5.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.checkpoint import save_load
from repro.gpipe.core import clip, optimizers
from repro.gpipe.core.assembly import assemble
from repro.gpipe.core.compare import Comparison, compare
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.layers import Layer, as_layers, evaluation_mode, names
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.results import EvaluationResult, StepResult
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.errors import in_call
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost
from repro.gpipe.runtime.health import report_errors_to_all
from repro.gpipe.tree import Tree


class Pipeline:
    """K stages of a model, of which this process runs one, or several of an interleaved schedule.

    Attributes:
        config: `stages`, `micro_batches` and so on, which are attributes too.
        is_first, is_last: whether this rank reads the inputs, and computes the loss.
        layer_names: keys of all layers in the unsplit model, in order.

    Args:
        layers: an nn.Sequential, or modules or zero-argument factories in order. Each layer takes
            one value and returns one: a tensor, or nested tuples, lists or dicts of tensors.
            Factories are called only where their layers run, initialised from (seed, layer).
            Modules lose their weights where they do not run: any use of these is a ValueError.
        stages: K, at most the number of processes and of layers. 1 needs no process group. With
            `stages_per_rank` K is the number of ranks, and each of them runs that many stages.
        micro_batches: M, at most the mini-batch size N; 1 is naive model parallelism.
        replicas: D copies of the pipeline, each with mini-batches of its own. Gradients and running
            statistics are those of all mini-batches together.
        balance: how many layers each stage gets, or what to make even: "parameters", "uniform"
            counts, measured "time", for which several stages need a `sample`, or any cost(a, b) of
            a stage made of layers a to b-1. `print(pipe.cut)` shows the result.
        partitioner: a name in `partition.PARTITIONERS`: "smallest-largest", "minimum-variance" (the
            paper's) or "cumulative-share" (Lingvo's).
        recompute: activations "always" (the paper), "never", or "except_last": not where
            B directly follows F, as in GPipe's last micro-batch.
        schedule: "gpipe", "gpipe-late", "1f1b", "naive", "interleaved-1f1b", or with backwards
            in two parts "zb-h1", "interleaved-zb" or "zb", where each stage does what is ready.
        transport: of CPU tensors: "auto" is shared memory between processes of a Linux host and
            gloo otherwise; "shm" and "gloo" insist. GPUs use NCCL if each rank has its own, and
            otherwise, or with "gloo", pinned host memory.
        throttle: the speed of every link between neighbours, in either direction, to emulate a slow
            network on the CPUs of one Linux host. A link carries one message at a time, which
            arrives `latency` later. Without `overlap` its sender does not compute meanwhile.
        stages_per_rank: v, at least 2 if the schedule is interleaved, otherwise 1. The model is cut
            into v K stages, and rank r runs stages r, r + K, r + 2 K and so on.
        device: of this rank; by default a GPU if there is one, else the CPU.
        seed: of initial weights and of everything random inside layers.
        sample: inputs of one micro-batch, given on the first rank at least, for balance="time".
        without: rules to leave out, by their names in docs/notes/guards.md, such as "LossCheck",
            which compares the loss with that of the mini-batch, or "NonFinite".

    Raises:
        ValueError: for any argument out of range.
    """

    @in_call
    def __init__(
        self,
        layers: nn.Sequential | Sequence[Layer],
        stages: int,
        micro_batches: int,
        replicas: int = 1,
        *,
        balance: str | Sequence[int] | Cost = "parameters",
        partitioner: str = SMALLEST_LARGEST,
        recompute: str = "always",
        schedule: str = "gpipe",
        transport: str = "auto",
        throttle: LinkSpeed | None = None,
        stages_per_rank: int = 1,
        device: torch.device | str | None = None,
        seed: int = 0,
        sample: Tree | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.config = PipelineConfig(
            stages=stages,
            micro_batches=micro_batches,
            replicas=replicas,
            balance=balance,
            partitioner=partitioner,
            recompute=recompute,
            schedule=schedule,
            transport=transport,
            throttle=throttle,
            stages_per_rank=stages_per_rank,
        )
        self.layer_names, entries = names(layers), as_layers(layers)
        self.schedule = self.config.make_schedule()
        self.cut, self.engine = assemble(
            self.config,
            self.schedule,
            entries,
            self.layer_names,
            device=device,
            seed=seed,
            sample=sample,
            without=without,
        )
        self.stages, self.micro_batches, self.replicas = stages, micro_batches, replicas
        channel, self.device = self.engine.channel, self.engine.runner.device
        self.rank, self.replica = channel.rank, channel.replica
        self.is_first, self.is_last = channel.is_first, channel.is_last
        self.balance = self.cut.counts
        self._updated: bool | None = None  # whether the last train_step updated the weights here

    def __repr__(self) -> str:
        layers = ", ".join(
            f"{name} {type(layer).__name__}" for name, layer in self.module.named_children()
        )
        return (
            f"Pipeline: K={self.stages}, M={self.micro_batches}, D={self.replicas}, schedule "
            f"{self.schedule.name}, recompute {self.schedule.recompute}\n  cut: {self.cut}\n  "
            f"here: rank {self.rank} of replica {self.replica} on {self.device}, layers {layers}"
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank's stages, for an optimizer."""
        return self.engine.layers.module.parameters()

    @property
    def module(self) -> nn.Sequential:
        """This rank's layers; its state-dict keys are those of the unsplit nn.Sequential."""
        return self.engine.layers.module

    @in_call
    def train_step(
        self,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        trace: bool = False,
        scaler: GradScaler | None = None,
    ) -> StepResult:
        """Train on one mini-batch: M forwards and backwards on every stage, one synchronous update.

        Call it on every rank. The gradients are those of the mini-batch mean. Inside torch.autocast
        the layers and the loss run in the lower precision, and everything else as outside.

        Args:
            inputs: read on the first rank of each replica, others may pass None; tensors of shape
                [N, ...], nested as the first layer takes them. Members marked `Whole` reach every
                micro-batch uncut.
            targets: read on the last rank, others may pass None; [N, ...] likewise, or None.
            loss_fn: (outputs, targets) of a micro-batch -> its mean loss; runs on the last stage.
                Micro-batches weigh by their numbers of examples, or as a `Weighted` loss defines.
            optimizer: of this rank's parameters. None leaves the gradients to the caller, and does
                not clear them beforehand.
            trace: collect the spans of all stages.
            scaler: from `grad_scaler`, for float16. The gradients, which may be inf or nan, are
                those of the scaled loss; the returned loss is not scaled. With an optimizer, the
                scaler's step and update are done too.

        Raises:
            ValueError: if N < M, tensors disagree about N, no loss has a gradient, in inference
                mode, or if the optimizer would discard gradients that steps without one have left.
            NonFiniteError: on every rank, if the loss or a gradient is inf or nan. Nothing has
                changed, so training can go on with another mini-batch.
        """
        self._refuse_update(optimizer, scaler)
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        with self.engine.runner.autocast_left():
            result = self.engine.train(inputs, targets, loss_fn, optimizer, scaler, trace=trace)
        self._updated = optimizer is not None
        return result

    @report_errors_to_all()
    def _refuse_update(
        self, optimizer: torch.optim.Optimizer | None, scaler: GradScaler | None
    ) -> None:
        """Raise a ValueError if the step would train otherwise than without a pipeline."""
        optimizers.refuse(optimizer, scaler, stages=self.stages)
        would_clear = optimizer is not None and self._updated is False
        if would_clear and any(p.grad is not None for p in self.parameters()):
            raise ValueError(
                "optimizer: train_step would clear the gradients that steps without an optimizer "
                "have left; call optimizer.step() or optimizer.zero_grad() first"
            )

    @in_call
    @report_errors_to_all()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that their norm over all stages is at most `max_norm`.

        Call it on every rank, between `train_step` without an optimizer and `optimizer.step()`. It
        is torch.nn.utils.clip_grad_norm_ of the unsplit model, with the same bits for every K. A
        limit of inf only measures. Returned is the norm before clipping, on this rank's device.
        """
        rank = self.engine.layers
        of_stages, late = [*map(rank.parameters_of, rank.stages)], self._updated is True
        all_ranks = self.engine.all_ranks
        norm = clip.clip_grad_norm_(
            of_stages, max_norm, norm_type, all_ranks, self.stages, late=late
        )
        return norm.to(self.device)

    def grad_scaler(self, **options: Any) -> GradScaler:
        """A torch.amp.GradScaler for `train_step`; an inf on one rank skips the update on all.

        Its options are those of torch.amp.GradScaler, the same on every rank.
        """
        return GradScaler(self.device, self.engine.all_ranks, **options)

    @in_call
    def evaluate(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> EvaluationResult:
        """Run the forward in evaluation mode, without gradients; call it on every rank.

        Arguments as of `train_step`.
        """
        with evaluation_mode(self.module), self.engine.runner.autocast_left():
            return self.engine.evaluate(inputs, targets, loss_fn)

    def predict(self, inputs: Tree) -> Tree | None:
        """Outputs [N, ...] in evaluation mode, without gradients; call it on every rank.

        They are on the last rank, and None is on the others. Inputs as of `train_step`.
        """
        return self.evaluate(inputs, None, lambda *_: torch.zeros(())).outputs

    @in_call
    @report_errors_to_all()
    def compare(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> Comparison:
        """Compare a training step with one of the unsplit model in plain PyTorch.

        Call it on every rank, with arguments as of `train_step`. It takes two steps on the same
        mini-batch without an update: one of the pipeline, and one of a copy of all layers on the
        device of the last rank. Print the result for a table of what differs. Layers, gradients,
        generators and the number of steps are left as they were.

        Raises:
            ValueError: if the unsplit model does not fit there, or the loss cannot be split.
        """
        with self.engine.runner.autocast_left():
            return compare(self.engine, self.schedule, self.layer_names, inputs, targets, loss_fn)

    @in_call
    def save(
        self,
        folder: Path | str,
        optimizer: torch.optim.Optimizer | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint that any K can load; call it on every rank.

        Args:
            folder: one that all hosts see. A checkpoint in it is replaced.
            optimizer: of this rank; its state is saved too.
            extra: tensors, numbers, strings, lists, tuples and dicts of yours, such as the epoch.

        Raises:
            ValueError: on every rank, such as for a full disk. The former checkpoint stays.
        """
        gather_state = getattr(optimizer, "consolidate_state_dict", None)
        if gather_state is not None:
            # ZeroRedundancyOptimizer: the first replica, which saves, gets the state of all.
            gather_state()
        save_load.save(self._holder, Path(folder), optimizer, extra, step=self.engine.step)

    @in_call
    def load(
        self, folder: Path | str, optimizer: torch.optim.Optimizer | None = None
    ) -> dict[str, Any]:
        """Go on from a checkpoint of any K, bit for bit; call it on every rank.

        Returns:
            What `save` got as `extra`.

        Raises:
            ValueError: before anything is changed, if it is damaged or of another model.
        """
        restored = save_load.load(self._holder, Path(folder), optimizer)
        self.engine.step = restored.step
        return restored.extra

    @property
    def _holder(self) -> save_load.Holder:
        all_ranks = self.engine.all_ranks
        return save_load.Holder(all_ranks, self.stages, self.module, self.layer_names)

    def close(self) -> None:
        """End this pipeline's helper thread and connections; no step can follow."""
        self.engine.links.close()
