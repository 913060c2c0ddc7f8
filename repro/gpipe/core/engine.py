"""The order of work in a training step and in an evaluation, on one rank.

A step begins once all ranks know N. Each rank then does its actions: the forwards and backwards of
M micro-batches on its stages. At the end all ranks vote. A good step ends with one synchronous
update. Any other step is undone, and then refused or taken again.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from repro.gpipe.comm.control_channel import ControlChannel, Vote
from repro.gpipe.comm.links import Links
from repro.gpipe.core.loss import Loss, MeanLoss, refuse_foreign_modules, summed
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.rank_actions import RankActions
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.results import EvaluationResult, StepResult
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.step import Step
from repro.gpipe.errors import RefusedError
from repro.gpipe.exact.guard import Finding, Guards, Outcome, raise_first
from repro.gpipe.runtime.health import begin_step, report_errors_to_all
from repro.gpipe.runtime.status import status
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.timeline import Timeline
from repro.gpipe.tree import Tree, gather, to_device

_MOST_ATTEMPTS = 8  # of one step; a guard learns each thing once


class Engine:
    """Trains and evaluates, step by step.

    `all_ranks` connects the ranks of all replicas, which vote on a step before any of them updates.
    `check` compares the loss with that of the mini-batch. `foreign` are modules of the layers that
    run on other ranks. `step` is how many steps were done.
    """

    def __init__(
        self,
        layers: RankLayers,
        stages: Mapping[int, Stage],
        runner: LayerRunner,
        guards: Guards,
        links: Links,
        schedule: Schedule,
        replicas: Replicas | None,
        all_ranks: ControlChannel,
        check: LossCheck | None,
        foreign: Collection[nn.Module],
    ) -> None:
        self.layers, self.runner, self.links, self.replicas = layers, runner, links, replicas
        self.channel, self.all_ranks = links.channel, all_ranks
        self.recorder = Recorder(runner.device)
        self.step, self.check, self._schedule = 0, check, schedule
        self._guards, self._foreign = guards, foreign
        self._micro_batches = schedule.micro_batches
        self._actions = RankActions(stages, links, schedule, self.recorder)
        self._agree: Vote | None = None  # of the step that is running, once its vote has begun

    @report_errors_to_all()
    def train(
        self,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None,
        scaler: GradScaler | None,
        *,
        trace: bool,
    ) -> StepResult:
        """Do one training step; every rank gets its result."""
        if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
            raise RefusedError("train_step inside torch.no_grad() or inference_mode(): leave it")
        self._follow(loss_fn, evaluate=False)
        how: dict[str, Any] = {"optimizer": optimizer, "scaler": scaler, "trace": trace}
        for _ in range(_MOST_ATTEMPTS):
            step = self._begin(inputs, targets, loss_fn, evaluate=False, **how)
            finding = self._attempt(step)
            if finding.outcome == Outcome.GOOD:
                break
            self._flush()
            if finding.outcome != Outcome.AGAIN:
                self._actions.forget()
                raise_first(finding, self.all_ranks.all_gather, f"step {self.step}")
        else:
            raise RefusedError(
                f"step {self.step}: a layer changes something else each time that it runs, which "
                "recomputation needs to put back; build the Pipeline with recompute='never'"
            )
        metrics = summed(self.all_ranks.all_gather(step.metrics) if step.has_metrics else [])
        started = self.recorder.now()
        step.update()
        if optimizer is not None:
            self.recorder.span("U", self.channel.rank, -1, started)
        self._flush()
        self.step += 1
        spans, timeline = self.recorder.finish(), None
        offset = self.all_ranks.clock_offset(self.step)  # to the clock of the first rank of all
        if trace:
            spans = [s._replace(start=s.start + offset, end=s.end + offset) for s in spans]
            of_all = tuple(s for of_rank in self.channel.all_gather(spans) for s in of_rank)
            timeline = Timeline(of_all, self._schedule.stages, self._schedule.stages_per_rank)
        start, end = self.recorder.began + offset, self.recorder.ended + offset
        return StepResult(step.loss, start, end, timeline, metrics)

    def _attempt(self, step: Step) -> Finding:
        """Do all actions and vote; what they changed is undone if the step is not good."""
        problem, replicas = self.layers.container_problem, self.replicas
        with step.undone_unless_good(self._guards):
            with torch.enable_grad(), self.runner.generators_preserved(evaluate=False) as unseen:
                self._actions.do_all(self._prepare_vote if replicas is None else None)
                if step.mean_loss is not None:
                    problem = problem or step.mean_loss.problem()
                if replicas is not None:
                    # Before statistics are gathered: replicas must meet in the same order.
                    replicas.sum_gradients(self.layers.parameters)
            self._prepare_vote()
            step.add_up_loss(self._total)
            if unseen:  # a layer drew from a generator that was not seeded for it
                self.runner.draws |= unseen
                self._guards.learned = True
            finding = self._guards.end_step(step)
            if problem and finding.outcome != Outcome.AGAIN:
                finding = Finding(Outcome.REFUSED, problem)
            assert self._agree is not None
            return step.agreed(self._agree, finding)

    @report_errors_to_all()
    def evaluate(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> EvaluationResult:
        """Do the forwards of a mini-batch; every rank gets the result."""
        self._follow(loss_fn, evaluate=True)
        step = self._begin(inputs, targets, loss_fn, evaluate=True, trace=False)
        problem = self.layers.container_problem
        if problem:  # a training step agrees with the other ranks first
            raise ValueError(problem)
        self._guards.call("begin_step", step)
        with self.runner.generators_preserved(evaluate=True):
            self._actions.do_all()
        if step.mean_loss is not None:
            problem = step.mean_loss.problem()
        self._flush()
        step.add_up_loss(self._total)
        own = step.metrics, step.own_loss
        of_ranks = self.all_ranks.gather_alike("evaluate", own, {}, problem)
        outputs = [made for _, made in sorted(step.outputs.items())]
        metrics = summed(metrics for metrics, _ in of_ranks)
        return EvaluationResult(of_ranks[-1][-1], gather(outputs) if outputs else None, metrics)

    def _follow(self, loss_fn: Loss, *, evaluate: bool) -> None:
        """Look at the layers and the loss, which may be others than in the previous step."""
        if self.links.closed:
            raise RefusedError(f"{status.who}: this Pipeline is closed; make another one")
        self.layers.follow(loss_fn if self.channel.is_last and not evaluate else None)
        self.runner.begin_step(self.step, evaluate=evaluate)

    def _begin(
        self, inputs: Tree, targets: Tree, loss_fn: Loss, *, evaluate: bool, trace: bool, **how: Any
    ) -> Step:
        """Agree on the inputs with the other ranks, and prepare for the first action."""
        begin_step(self.step)
        self._agree = None
        self._guards.learned = False
        self.recorder.start(self.step, enabled=trace)
        given = self.layers.parameters, self.runner.device, self.channel
        step = Step(self.step, self._micro_batches, *given, evaluate=evaluate, **how)
        try:
            started = step.read(inputs, self.recorder.now)
        except RefusedError as error:
            if self.replicas is None:
                raise
            raise ValueError(str(error)) from None  # other replicas know nothing of it, and wait
        if self.channel.is_last:
            refuse_foreign_modules(loss_fn, self._foreign)
            last = self.layers.layers[max(self.layers.stages)]
            own = (parameter for _, layer in last for parameter in layer.parameters())
            check = None if targets is None and evaluate else self.check  # not of a prediction
            batch = to_device(targets, self.runner.device), step.examples, self._micro_batches
            step.mean_loss = MeanLoss(loss_fn, *batch, self._total, own, check)
        self._actions.begin_step(step)
        self.recorder.span("setup", self.channel.rank, -1, started)
        return step

    def _prepare_vote(self) -> None:
        """Do what needs no gradient: where this rank waits for one, it takes no time."""
        if self._agree is None:
            self._guards.call("before_vote")
            self._agree = self.all_ranks.vote()

    def _total(self, value: float) -> float:
        return value if self.replicas is None else self.replicas.total(value)

    def _flush(self) -> None:
        """Wait until everything is sent."""
        self.links.flush()
        self.channel.flush()
        self.all_ranks.flush()
