"""Executes a schedule: does one action after the other, as the schedule lists them."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import ControlChannel, Vote
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.message import Forms, copied, received
from repro.gpipe.core.exchange import Exchange
from repro.gpipe.core.loss import Loss, Metrics, refuse_foreign_modules, summed
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.split import leaves
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.step import Step
from repro.gpipe.errors import RefusedError
from repro.gpipe.exact.guard import Finding, Guards, Outcome, raise_first
from repro.gpipe.runtime.health import begin_step, report_errors_to_all
from repro.gpipe.runtime.status import status
from repro.gpipe.schedule.actions import COMPUTE, Action, Schedule
from repro.gpipe.schedule.program import Program
from repro.gpipe.tree import Tree, flatten, map_leaves

_MOST_ATTEMPTS = 8  # of one step; a guard learns each thing once


class Engine:
    """Executes one rank's actions of each step.

    `all_ranks` connects the ranks of all replicas, which vote on a step before any of them updates.
    `foreign` are modules of the layers that run on other ranks. After a step `loss` is the mean
    over the mini-batches of all replicas, and `metrics` are summed over them. `current` is the step
    or evaluation that is running, or was the last one.
    """

    current: Step

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
        *,
        check_loss: bool,
        foreign: Collection[nn.Module],
    ) -> None:
        self.layers, self.runner = layers, runner
        self.links, self.channel, self.all_ranks, self.replicas = (
            links,
            links.channel,
            all_ranks,
            replicas,
        )
        self.recorder = Recorder(runner.device)
        self.step, self.loss = 0, math.nan
        self.metrics: Metrics = {}
        self.check = LossCheck(runner.device) if check_loss else None
        self._stages, self._guards, self._foreign = stages, guards, foreign
        self._exchange = Exchange(links, schedule.needs)
        self._last_stage, self._micro_batches = schedule.stages - 1, schedule.micro_batches
        # Of a training step, and of an evaluation.
        if not all(link.looks for link in links.incoming.values()):
            schedule = replace(schedule, limit=None)  # its order with works of equal lengths
        both = schedule, schedule.forward_only()
        self._programs = [Program.of(each, links.channel.rank) for each in both]
        self._input_forms, self._gradient_forms = Forms(), Forms()
        self._do: dict[str, Callable[[Action], None]] = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "I": self._backward,
            "W": self._weights,
            "Send": self._exchange.send,
            "Recv": self._receive,
            "U": lambda _: None,  # once all ranks have voted
        }

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
    ) -> None:
        """Do one training step; afterwards `loss` and `recorder` have its results."""
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
                for stage in self._stages.values():
                    stage.forget()
                raise_first(finding, self.all_ranks.all_gather, f"step {self.step}")
        else:
            raise RefusedError(
                f"step {self.step}: a layer changes something else each time that it runs, which "
                "recomputation needs to put back; build the Pipeline with checkpoint='never'"
            )
        self.loss, self.metrics = step.loss, {}
        if step.has_metrics:
            self.metrics = summed(self.all_ranks.all_gather(step.metrics))
        step.return_to_user()
        started = self.recorder.now()
        step.update()
        if optimizer is not None:
            self.recorder.span("U", self.channel.rank, -1, started)
        self._flush()
        self.step += 1
        status.action = None

    def _attempt(self, step: Step) -> Finding:
        """Do all actions and vote; what they changed is undone if the step is not good."""
        problem = self.layers.container_problem
        with step.undone_unless_good(self._guards):
            with torch.enable_grad(), self.runner.generators_preserved(evaluate=False) as unseen:
                if self.replicas is not None:
                    self.replicas.begin(self.layers.parameters)
                self._do_actions()
                if step.mean_loss is not None:
                    step.mean_loss.refuse_constant()
                    problem = problem or step.mean_loss.problem(lambda: self.runner.region)
                if self.replicas is not None:
                    # Before statistics are gathered: replicas must meet in the same order.
                    self.replicas.finish()
            if self._agree is None:
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
    def evaluate(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> None:
        """Do the forwards of a mini-batch; afterwards `loss` and `current` have results."""
        self._follow(loss_fn, evaluate=True)
        step = self._begin(inputs, targets, loss_fn, evaluate=True, trace=False)
        if self.layers.container_problem:  # a training step agrees with the other ranks first
            raise ValueError(self.layers.container_problem)
        self._guards.call("begin_step", step)
        with self.runner.generators_preserved(evaluate=True):
            self._do_actions()
        mean_loss = step.mean_loss
        problem = "" if mean_loss is None else mean_loss.problem(lambda: self.runner.region)
        self._flush()
        status.action = None
        step.add_up_loss(self._total)
        own = problem, step.metrics
        self.loss, has_more = self.channel.pair_from_last(step.own_loss, any(own))
        self.metrics = {}
        if has_more or self.replicas is not None:  # of which another one may have more
            of_ranks = self.all_ranks.all_gather(own)
            if any(theirs for theirs, _ in of_ranks):
                raise RefusedError(next(theirs for theirs, _ in of_ranks if theirs))
            self.metrics = summed(metrics for _, metrics in of_ranks)

    # How a step begins.

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
        self._program = self._programs[evaluate]
        self._agree: Vote | None = None
        self._guards.learned = False
        self.recorder.start(self.step, enabled=trace)
        for stage in self._stages.values():
            stage.begin_step()
        given = self.layers.parameters, self.runner.device, self.channel
        step = Step(self.step, self._micro_batches, *given, evaluate=evaluate, **how)
        try:
            started = step.read(inputs, self._input_forms, self.recorder.now)
        except RefusedError as error:
            if self.replicas is None:
                raise
            raise ValueError(str(error)) from None  # other replicas know nothing of it, and wait
        self._exchange.begin_step(self._program, evaluate=evaluate)
        if self.channel.is_last:
            refuse_foreign_modules(loss_fn, self._foreign)
            mean_loss = step.set_loss(targets, loss_fn, self._total, self.check)
            self._stages[self._last_stage].loss = mean_loss
        self.recorder.span("setup", self.channel.rank, -1, started)
        self.current = step
        return step

    # The actions.

    def _do_actions(self) -> None:
        for action in self._program.run(self._exchange.is_here, self._exchange.wait_for_one):
            status.action, started = action, self.recorder.now()
            self._do[action.kind](action)
            if action.kind in COMPUTE:
                self.recorder.span(action.kind, *action.cell, started)

    def _receive(self, action: Action) -> None:
        if action == self._program.waits and self.replicas is None:
            self._prepare_vote()
        self._exchange.receive(action)

    def _forward(self, action: Action) -> None:
        (j, i), step = action.cell, self.current
        inputs = step.inputs[i] if j == 0 else self._exchange.here.pop(("F", j - 1, i))
        if step.evaluate:
            made, loss = self._stages[j].evaluate(i, inputs)
        else:
            recompute = action.cell in self._program.recomputed
            made, loss = self._stages[j].forward(i, inputs, recompute=recompute)
        if loss is not None:  # otherwise R computes it
            step.losses[i] = loss
        if made is not None and j == self._last_stage:
            # Copies: a layer may return the same memory for each micro-batch.
            step.outputs[i] = map_leaves(Tensor, copied, made.tree)
        elif made is not None:
            if self.channel.ranks == 1:  # the next stage is here too, and may write to its inputs
                made = received(made.form, [copied(t.detach()) for t in made.tensors])
            self._exchange.here["F", j, i] = made

    def _recompute(self, action: Action) -> None:
        j, i = action.cell
        loss = self._stages[j].recompute(i)
        if loss is not None:
            self.current.losses[i] = loss

    def _backward(self, action: Action) -> None:
        """B, or I."""
        (j, i), kind, step = action.cell, action.kind, self.current
        gradients: list[Tensor | None] = []  # of the outputs, or of the loss
        if j < self._last_stage:
            gradients = self._exchange.here.pop((kind, j + 1, i)).tree
        elif step.scaler is not None:
            gradients = [step.scaler.gradient_of(step.losses[i])]
        else:
            gradients = [torch.ones_like(step.losses[i])]
        self._before_backward(action, lambda: self.layers.parameters_of(j))
        made = self._stages[j].backward(i, gradients, weights_later=kind == "I")
        if j > 0:
            # None where the loss does not depend on an input, as without a boundary: optimizers
            # treat None and zeros differently.
            message = self._gradient_forms.message(action.cell, *flatten(made))
            self._exchange.here[kind, j, i] = message
        else:
            step.input_gradients[i] = made

    def _weights(self, action: Action) -> None:
        i, stage = action.micro_batch, self._stages[action.stage]
        self._before_backward(action, lambda: leaves(stage.later.get(i, [])))
        began = time.perf_counter()
        stage.backward_to_weights(i)
        self._exchange.weights_s = time.perf_counter() - began

    def _before_backward(self, action: Action, added: Callable[[], Iterable[Tensor]]) -> None:
        """Before B, I or W, which adds to the gradients of the parameters that `added` returns."""
        if self.replicas is not None and action == self._program.last_backward:
            self.replicas.last_backward(final=set(self.layers.parameters).difference(added()))

    # How a training step ends: the ranks vote whether it counts.

    def _prepare_vote(self) -> None:
        """Do what needs no gradient: where this rank waits for one, it takes no time."""
        self._guards.call("before_vote")
        self._agree = self.all_ranks.vote()

    def _total(self, value: float) -> float:
        return value if self.replicas is None else self.replicas.total(value)

    def _flush(self) -> None:
        """Wait until everything is sent."""
        self.links.flush()
        self.channel.flush()
        self.all_ranks.flush()
