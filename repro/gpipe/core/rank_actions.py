"""Does the actions of one rank in a step, one after the other, as the schedule lists them."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from repro.gpipe.comm.links import Links
from repro.gpipe.comm.message import Forms, copied, received
from repro.gpipe.core.exchange import Exchange
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.step import Step
from repro.gpipe.runtime.health import collectives_end_soon
from repro.gpipe.runtime.status import status
from repro.gpipe.schedule.actions import COMPUTE, Action, Schedule
from repro.gpipe.schedule.program import Program
from repro.gpipe.tree import flatten, map_leaves


class RankActions:
    """F, R and B of this rank's stages, and the messages between them.

    `step` is the training step or the evaluation that is running, or was the last one.
    """

    step: Step

    def __init__(
        self, stages: Mapping[int, Stage], links: Links, schedule: Schedule, recorder: Recorder
    ) -> None:
        self._stages, self._recorder = stages, recorder
        self._exchange = Exchange(links, schedule.needs)
        self._last_stage, self._is_alone = schedule.stages - 1, links.channel.ranks == 1
        if not all(link.looks for link in links.incoming.values()):
            schedule = replace(schedule, limit=None)  # its order with works of equal lengths
        # Of a training step, and of an evaluation.
        both = schedule, schedule.forward_only()
        self._programs = [Program(each, links.channel.rank) for each in both]
        self._gradient_forms = Forms()
        self._do: dict[str, Callable[[Action], None]] = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "I": self._backward,
            "W": self._weights,
            "Send": self._exchange.send,
            "Recv": self._exchange.receive,
            "U": lambda _: None,  # once all ranks have voted
        }

    def begin_step(self, step: Step) -> None:
        """Before the first action, when all ranks know the step."""
        self.step, self._program = step, self._programs[step.evaluate]
        for j, stage in self._stages.items():
            stage.begin_step(step.mean_loss if j == self._last_stage else None)
        self._exchange.begin_step(self._program, evaluate=step.evaluate)

    def forget(self) -> None:
        """After a step that failed, which has shown nothing."""
        for stage in self._stages.values():
            stage.forget()

    def do_all(self, while_waiting: Callable[[], object] | None = None) -> None:
        """Do all actions; `while_waiting` is called where this rank first waits for a gradient."""
        with nullcontext() if self._is_alone else collectives_end_soon():
            for action in self._program.run(self._exchange.is_here, self._exchange.wait_for_one):
                status.action, started = action, self._recorder.now()
                if while_waiting is not None and action == self._program.waits:
                    while_waiting()
                self._do[action.kind](action)
                if action.kind in COMPUTE:
                    self._recorder.span(action.kind, *action.cell, started)
        status.action = None

    def _forward(self, action: Action) -> None:
        (j, i), step = action.cell, self.step
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
            if self._is_alone:  # the next stage is here too, and may write to its inputs
                made = received(made.form, [copied(t.detach()) for t in made.tensors])
            self._exchange.here["F", j, i] = made

    def _recompute(self, action: Action) -> None:
        j, i = action.cell
        loss = self._stages[j].recompute(i)
        if loss is not None:
            self.step.losses[i] = loss

    def _backward(self, action: Action) -> None:
        """B, or I."""
        (j, i), kind, step = action.cell, action.kind, self.step
        gradients: list[Tensor | None] = []  # of the outputs, or of the loss
        if j < self._last_stage:
            gradients = self._exchange.here.pop((kind, j + 1, i)).tree
        elif step.scaler is not None:
            gradients = [step.scaler.gradient_of(step.losses[i])]
        else:
            gradients = [torch.ones_like(step.losses[i])]
        made = self._stages[j].backward(i, gradients, weights_later=kind == "I")
        if j > 0:
            # None where the loss does not depend on an input, as without a boundary: optimizers
            # treat None and zeros differently.
            message = self._gradient_forms.message(action.cell, *flatten(made))
            self._exchange.here[kind, j, i] = message
        else:
            step.input_gradients[i] = made

    def _weights(self, action: Action) -> None:
        began = time.perf_counter()
        self._stages[action.stage].backward_to_weights(action.micro_batch)
        self._exchange.weights_s = time.perf_counter() - began
