"""The public class: a model cut into stages, run by K processes, trained with M micro-batches.

    pipe = Pipeline(layers, stages=2, micro_batches=8)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    result = pipe.train_step(inputs, targets, loss_fn, optimizer)      # on every rank

Algorithm: section 2 of arXiv:1811.06965v5.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from repro.gpipe.checkpoint import save_load
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.links import Links
from repro.gpipe.core import clip, memory, optimizers
from repro.gpipe.core.compare import Comparison, compare
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.engine import Engine
from repro.gpipe.core.layers import Layer, as_layers, build, names, refuse_shared, refuse_unfit
from repro.gpipe.core.loss import Loss, Metrics
from repro.gpipe.core.ownership import empty_foreign_layers
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.replicas import Replicas, start_equal
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.topology import own_device, own_rank, refuse_unlike
from repro.gpipe.exact import rng, rules
from repro.gpipe.partition.balance import choose
from repro.gpipe.partition.layer_costs import LinkSpeed, stage_layers
from repro.gpipe.partition.layer_profile import measure
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost
from repro.gpipe.runtime.health import report_errors_to_all
from repro.gpipe.runtime.status import in_call, rank_name, status
from repro.gpipe.schedule.timeline import Timeline
from repro.gpipe.tree import Tree, flatten, gather, refuse_unjoined, unwrapped

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepResult:
    """What a training step returns on every rank.

    Attributes:
        loss: mean over the mini-batches of all replicas.
        start: when this stage began, in seconds of time.perf_counter on the first stage of all.
        end: when it ended, on the same clock; its device was done then.
        timeline: spans of all stages of this replica, if traced.
        metrics: the metrics that the loss returned, summed over the same mini-batches.
    """

    loss: float
    start: float
    end: float
    timeline: Timeline | None = None
    metrics: Metrics = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the first start to the last end of any stage if traced, otherwise of this stage."""
        if self.timeline is None:
            return self.end - self.start
        return self.timeline.step_time


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation returns on every rank.

    Attributes:
        loss: mean over the mini-batches of all replicas.
        outputs: of the last stage, on that stage; None on the others. Tensors are joined, anything
            else is that of the first micro-batch: `len(x)` is its size, not N.
        metrics: the metrics that the loss returned, summed over the same mini-batches.
    """

    loss: float
    outputs: Tree | None
    metrics: Metrics = field(default_factory=dict)


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
        checkpoint: recompute activations "always" (the paper), "never", or "except_last": not where
            B directly follows F, as in GPipe's last micro-batch.
        schedule: "gpipe", "gpipe-late", "1f1b", "naive" or "interleaved-1f1b".
        transport: of CPU tensors: "auto" is shared memory between processes of a Linux host and
            gloo otherwise; "shm" and "gloo" insist. GPUs use NCCL if each stage has its own, and
            otherwise, or with "gloo", pinned host memory.
        throttle: the speed of every link between neighbours, in either direction, to emulate a slow
            network on the CPUs of one Linux host. A link carries one message at a time, which
            arrives `latency` later. Without `overlap` its sender does not compute meanwhile.
        stages_per_rank: v, at least 2 for "interleaved-1f1b", otherwise 1. The model is cut into
            v K stages, and rank r runs stages r, r + K, r + 2 K and so on.
        device: of this stage; by default a GPU if there is one, else the CPU.
        seed: of initial weights and of everything random inside layers.
        sample: inputs of one micro-batch, given on the first stage at least, for balance="time".
        allow_nonfinite: do not check whether loss, gradients and weights are finite, neither when
            training nor when saving.
        check_loss: compare a loss that is not one of torch's with that of the mini-batch, in its
            first step.
        guards: rules of exactness, by the names in docs/notes/guards.md; leave one out to see what
            it costs.

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
        checkpoint: str = "always",
        schedule: str = "gpipe",
        transport: str = "auto",
        throttle: LinkSpeed | None = None,
        stages_per_rank: int = 1,
        device: torch.device | str | None = None,
        seed: int = 0,
        sample: Tree | None = None,
        allow_nonfinite: bool = False,
        check_loss: bool = True,
        guards: str | Sequence[str] = "all",
    ) -> None:
        entries = as_layers(layers)
        rng.check_seed(seed)
        how = PipelineConfig(
            stages=stages,
            micro_batches=micro_batches,
            replicas=replicas,
            balance=balance,
            partitioner=partitioner,
            checkpoint=checkpoint,
            schedule=schedule,
            transport=transport,
            throttle=throttle,
            stages_per_rank=stages_per_rank,
        )
        self.config, self.stages, self.stages_per_rank = how, how.stages, how.stages_per_rank
        self.micro_batches, self.replicas = how.micro_batches, how.replicas
        self.schedule = how.schedule_to_execute(len(entries))
        self.allow_nonfinite = allow_nonfinite

        # Which rank of which replica this process is, and where it runs.
        K = how.stages
        rank = own_rank(how)
        self.replica, self.rank = divmod(rank, K)
        self.is_first, self.is_last = self.rank == 0, self.rank == K - 1
        self._everyone = ControlChannel(how.processes, rank)
        self.device = own_device(device, rank)
        if self.device.type == "cuda":
            # Events and communicators belong to the current device.
            torch.cuda.set_device(self.device)
        kind = "stage" if self.stages_per_rank == 1 else "rank"
        self._who = rank_name(kind, self.rank, self.replica, self.replicas)
        status.who = self._who

        if how.processes > 1:
            must_be_alike = how.arguments | {
                "balance": "a cost" if callable(how.balance) else how.balance,
                "layers": len(entries),
                "seed": seed,
                "allow_nonfinite": allow_nonfinite,
                "guards": guards,
            }
            refuse_unlike(rank, must_be_alike)

        wire = ControlChannel(K, self.rank, self.replica)
        links = Links(wire, self.device, how.transport, how.throttle, ring=how.stages_per_rank > 1)
        by_time = partial(self._cost, entries, links, seed, sample)
        self.cut = choose(entries, how.total_stages, how.balance, how.partitioner, by_time)
        self.balance = self.cut.counts
        if rank == 0:
            _log.info("%s", self.cut)
        refuse_shared(entries, self.balance)

        self.layer_names = names(layers)
        self._layers = self._build_layers(entries, seed)
        foreign = empty_foreign_layers(entries, self.balance, self.module)
        if self.is_last:  # the loss follows the last stage, also where this rank has others
            foreign.update(self.module[: -self.balance[-1]].modules())
        copies = None
        if self.replicas > 1:
            copies = Replicas(range(self.rank, how.processes, K), self.device)
        gather = None if copies is None else copies.gather
        given = self._layers, self.device, gather
        chosen = rules.guards(guards, *given, finite=not allow_nonfinite)
        runner = LayerRunner(self.device, seed, self.replica * self.micro_batches)
        whole = self.micro_batches == self.replicas == 1
        own = self._layers.stages
        self.engine = Engine(
            self._layers,
            {j: Stage(j, self._layers, runner, chosen, whole=whole) for j in own},
            runner,
            chosen,
            links,
            self.schedule,
            copies,
            self._everyone,
            check_loss=check_loss,
            foreign=foreign,
        )
        self._clock_offset: float | None = None  # of this host, known after the first step
        self._updated: bool | None = None  # whether the last train_step updated the weights here

    def _cost(self, layers: list[Layer], links: Links, seed: int, sample: Tree | None) -> Cost:
        """A cost by the first rank's times of layers and the slowest link; equal on all ranks."""
        profile = None
        if self._everyone.rank == 0:
            if sample is None:
                raise ValueError("balance='time': needs sample=, the inputs of one micro-batch")
            profile = measure(layers, sample, self.device, seed=seed)
        profiles, speeds = zip(*self._everyone.all_gather((profile, links.speed())), strict=True)
        slowest = max(speeds, key=lambda link: link.seconds(2**20))
        return profiles[0].cost(slowest, recompute=self.config.checkpoint != "never")

    def _build_layers(self, layers: list[Layer], seed: int) -> RankLayers:
        own = range(self.rank, self.config.total_stages, self.stages)
        indices = {stage: stage_layers(self.balance)[stage] for stage in own}
        modules = {n: build(layers[n], n, seed, self.device) for ns in indices.values() for n in ns}
        for n, module in modules.items():
            refuse_unfit(module, n, self.stages, self.micro_batches)
        if self.replicas > 1:
            start_equal(modules.values(), range(self.rank, self.config.processes, self.stages))
        return RankLayers(indices, modules, [self.layer_names[n] for n in modules])

    def __repr__(self) -> str:
        ranges = [f"{own[0]} to {own[-1]}" for own in self._layers.stages.values()]
        layers = ", ".join(
            f"{name} {type(layer).__name__}" for name, layer in self.module.named_children()
        )
        return (
            f"Pipeline: K={self.stages}, M={self.micro_batches}, D={self.replicas}, schedule "
            f"{self.schedule.name}, checkpoint {self.schedule.checkpoint}\n  cut: {self.cut}\n  "
            f"here: {self._who} on {self.device}, layers "
            f"{' and '.join(ranges)}: {shorten(layers, 80, placeholder=' ...')}"
        )

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a Pipeline holds connections, so it is not copied or pickled; pipe.save(folder) and "
            "pipe.module.state_dict() have its weights"
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank's stages, for an optimizer."""
        return self._layers.module.parameters()

    @property
    def module(self) -> nn.Sequential:
        """This rank's layers; its state-dict keys are those of the unsplit nn.Sequential."""
        return self._layers.module

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
            inputs: read on the first stage of each replica, others may pass None; tensors of shape
                [N, ...], nested as the first layer takes them. Members marked `Whole` reach every
                micro-batch uncut.
            targets: read on the last stage, others may pass None; [N, ...] likewise, or None.
            loss_fn: (outputs, targets) of a micro-batch -> its mean loss; runs on the last stage.
                Micro-batches weigh by their numbers of examples, or as a `Weighted` loss defines.
            optimizer: of this stage's parameters. None leaves the gradients to the caller, and does
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
            self.engine.train(inputs, targets, loss_fn, optimizer, scaler, trace=trace)
        self._updated = optimizer is not None
        return self._result(trace=trace)

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
        limit of inf only measures. Returned is the norm before clipping, on this stage's device.
        """
        of_stages = [self._layers.parameters_of(stage) for stage in self._layers.stages]
        late = self._updated is True
        norm = clip.clip_grad_norm_(
            of_stages, max_norm, norm_type, self._everyone, self.stages, late=late
        )
        return norm.to(self.device)

    def grad_scaler(self, **options: Any) -> GradScaler:
        """A torch.amp.GradScaler for `train_step`; an inf on one stage skips the update on all.

        Its options are those of torch.amp.GradScaler, the same on every rank.
        """
        return GradScaler(self.device, self._everyone, **options)

    @report_errors_to_all()
    def _result(self, *, trace: bool) -> StepResult:
        """What a step returns, on the clock of the first rank of all."""
        recorder = self.engine.recorder
        spans = recorder.finish()
        if self._clock_offset is None:
            self._clock_offset = self._everyone.clock_offset()
        offset, timeline = self._clock_offset, None
        if trace:
            spans = [s._replace(start=s.start + offset, end=s.end + offset) for s in spans]
            of_all = tuple(s for of_rank in self.engine.wire.all_gather(spans) for s in of_rank)
            timeline = Timeline(of_all, self.config.total_stages, self.stages_per_rank)
        return StepResult(
            self.engine.loss,
            recorder.began + offset,
            recorder.ended + offset,
            timeline,
            self.engine.metrics,
        )

    @in_call
    def evaluate(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> EvaluationResult:
        """Run the forward in evaluation mode, without gradients; call it on every rank.

        Arguments as of `train_step`.
        """
        modes = [(m, m.training) for m in self.module.modules()]
        self.module.eval()
        try:
            with self.engine.runner.autocast_left():
                self.engine.evaluate(inputs, targets, loss_fn)
        finally:
            # By train(), which layers may override: LoRA's takes its product out of the weight.
            for module, training in modes:
                if module.training != training:
                    module.train(training)
            for module, training in modes:
                module.training = training
        joined = gather(self._outputs) if self.is_last else None
        return EvaluationResult(self.engine.loss, joined, self.engine.metrics)

    def predict(self, inputs: Tree) -> Tree | None:
        """Outputs [N, ...] in evaluation mode, without gradients; call it on every rank.

        They are on the last stage, and None is on the others. Inputs as of `train_step`. A
        ValueError reports outputs that do not have a row for each example.
        """
        predicted = self.evaluate(inputs, None, lambda *_: torch.zeros(())).outputs
        if self.is_last:
            refuse_unjoined(self._outputs, self.engine.current.examples)
        return predicted

    @in_call
    @report_errors_to_all()
    def compare(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> Comparison:
        """Compare a training step with one of the unsplit model in plain PyTorch.

        Call it on every rank, with arguments as of `train_step`. It takes two steps on the same
        mini-batch without an update: one of the pipeline, and one of a copy of all layers on the
        device of the last rank. Print the result for a table of what differs. Layers, gradients,
        generators and the number of steps are left as they were.

        Raises:
            ValueError: if the unsplit model does not fit there, or a layer cannot be copied.
        """
        last = self.config.total_stages - 1
        actions = self.schedule.ranks[-1]
        order = [a.cell[1] for a in actions if a.kind == "B" and a.cell[0] == last]
        with self.engine.runner.autocast_left():
            return compare(self.engine, self.layer_names, order, inputs, targets, loss_fn)

    @property
    def _outputs(self) -> list[Tree]:
        """The outputs of an evaluation's micro-batches, on the last stage."""
        return [outputs for _, outputs in sorted(self.engine.current.outputs.items())]

    @in_call
    def measure_memory(
        self,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None = None,
        limit: int | None = None,
    ) -> list[int]:
        """Peak bytes on each rank during one training step, which this runs, slower than usual.

        Counted are parameters, buffers, gradients, optimizer state, activations and messages: on
        the CPU live storages of tensors, on a GPU what the allocator handed out.

        Raises:
            MemoryError, torch.OutOfMemoryError: if a stage takes more than `limit` bytes.
        """
        resident = self.resident(inputs, targets, optimizer)
        step = partial(self.train_step, inputs, targets, loss_fn, optimizer)
        return self.engine.wire.all_gather(memory.peak_memory(step, self.device, resident, limit))

    def resident(
        self, inputs: Tree, targets: Tree, optimizer: torch.optim.Optimizer | None
    ) -> Iterator[Tensor]:
        """Yield what this stage has in memory between steps; a list would keep it in a step."""
        yield from memory.at_rest(self.module, optimizer)
        read = [inputs if self.is_first else None, targets if self.is_last else None]
        yield from flatten(unwrapped(read))[0]

    def sent_bytes(self) -> dict[str, int]:
        """Bytes that this process has sent so far: activations, gradients, and "all-reduce".

        The difference of two calls counts the messages between stages exactly; the first call also
        has what was sent while the Pipeline was built. An all-reduce of gradients over D replicas
        counts as a ring sends it, 2 (D-1)/D times the gradients.
        """
        sent = self.engine.links.sent_bytes()
        if self.engine.replicas is not None:
            summed = self.engine.replicas.summed_bytes
            sent["all-reduce"] = round(2 * (self.replicas - 1) / self.replicas * summed)
        return sent

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
            optimizer: of this stage; its state is saved too.
            extra: anything of yours that JSON can hold, such as the epoch.

        Raises:
            OSError, ValueError: on every rank, also if what would be saved is inf or nan and that
                is not allowed. The former checkpoint stays.
        """
        gather_state = getattr(optimizer, "consolidate_state_dict", None)
        if gather_state is not None:
            # ZeroRedundancyOptimizer: the first replica, which saves, gets the state of all.
            gather_state()
        save_load.save(
            Path(folder),
            rank=self.rank,
            gather=self._everyone.all_gather,
            module=self.module,
            layers=self.layer_names,
            misfit=self._layers.container_problem,
            optimizer=optimizer,
            step=self.engine.step,
            extra=extra,
            allow_nonfinite=self.allow_nonfinite,
            writes=self.replica == 0,
        )

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
        restored = save_load.load(
            Path(folder),
            rank=self.rank,
            gather=self._everyone.all_gather,
            module=self.module,
            layers=self.layer_names,
            optimizer=optimizer,
        )
        self.engine.step = restored.step
        return restored.extra

    @in_call
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this stage's part of the unsplit model's state dict; call it on every rank."""
        self.module.load_state_dict(save_load.own_part(state_dict, self.module, self.layer_names))

    @in_call
    def barrier(self) -> None:
        """Wait until every stage of every replica has come here and its device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._everyone.all_gather(None)

    def close(self) -> None:
        """End this pipeline's helper thread and connections; no step can follow."""
        self.engine.links.close()
