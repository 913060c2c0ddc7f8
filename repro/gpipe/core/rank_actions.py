"""Does the actions of one rank in a step, one after the other, as the schedule lists them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from repro.gpipe.comm.links import LINK_OF, Links
from repro.gpipe.comm.message import Message, copied, received
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.step import Step
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.health import collectives_end_soon
from repro.gpipe.runtime.status import status, waiting
from repro.gpipe.schedule.actions import COMPUTE, Action, Cell, Schedule, Work
from repro.gpipe.schedule.program import Program
from repro.gpipe.tree import flatten, map_leaves

_MOMENT = 5e-5  # seconds between two looks at the messages
_PATIENCE = 0.1  # of the length of a W: how long a message is waited for in front of it


class RankActions:
    """F, R and B of this rank's stages, and the messages between them.

    `step` is the training step or the evaluation that is running, or was the last one.
    """

    step: Step

    def __init__(
        self, stages: Mapping[int, Stage], links: Links, schedule: Schedule, recorder: Recorder
    ) -> None:
        self._stages, self._links, self._recorder = stages, links, recorder
        self._last_stage, self._is_alone = schedule.stages - 1, links.channel.ranks == 1
        if not all(link.looks for link in links.incoming.values()):
            schedule = replace(schedule, limit=None)  # its order with works of equal lengths
        # Of a training step, and of an evaluation.
        both = schedule, schedule.forward_only()
        self._programs = [Program(each, links.channel.rank) for each in both]
        # What was received or made here and is not used or sent yet: of a link, for a stage and a
        # micro-batch that need it.
        self._messages: dict[tuple[str, Cell], Message] = {}
        self._needs = schedule.needs
        self._weights_s = 0.0  # seconds of the last W
        self._do: dict[str, Callable[[Action], None]] = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "I": self._backward,
            "W": self._weights,
            "Send": self._send,
            "Recv": self._receive,
            "U": lambda _: None,  # once all ranks have voted
        }

    def begin_step(self, step: Step) -> None:
        """Before the first action, when all ranks know the step."""
        self.step, self._program = step, self._programs[step.evaluate]
        for j, stage in self._stages.items():
            stage.begin_step(step.mean_loss if j == self._last_stage else None)
        self._messages.clear()
        for of, link in self._links.incoming.items():
            link.expect([(step.evaluate, cell) for cell in self._program.received[of]])

    def forget(self) -> None:
        """After a step that failed, which has shown nothing."""
        for stage in self._stages.values():
            stage.forget()

    def do_all(self, while_waiting: Callable[[], object] | None = None) -> None:
        """Do all actions; `while_waiting` is called where this rank first waits for a gradient."""
        with nullcontext() if self._is_alone else collectives_end_soon():
            for action in self._program.run(self._is_here, self._wait_for_one):
                status.action, started = action, self._recorder.now()
                if while_waiting is not None and action == self._program.waits:
                    while_waiting()
                self._do[action.kind](action)
                if action.kind in COMPUTE:
                    self._recorder.span(action.kind, *action.cell, started)
        status.action = None

    def _forward(self, action: Action) -> None:
        (j, i), step = action.cell, self.step
        inputs = step.inputs[i] if j == 0 else self._messages.pop(("F", action.cell))
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
            self._messages["F", (j + 1, i)] = made

    def _recompute(self, action: Action) -> None:
        j, i = action.cell
        loss = self._stages[j].recompute(i)
        if loss is not None:
            self.step.losses[i] = loss

    def _backward(self, action: Action) -> None:
        """B, or I."""
        (j, i), step = action.cell, self.step
        gradients: list[Tensor | None] = []  # of the outputs, or of the loss
        if j < self._last_stage:
            gradients = self._messages.pop(("B", action.cell)).tree
        elif step.scaler is not None:
            gradients = [step.scaler.gradient_of(step.losses[i])]
        else:
            gradients = [torch.ones_like(step.losses[i])]
        made = self._stages[j].backward(i, gradients, weights_later=action.kind == "I")
        if j > 0:
            # None where the loss does not depend on an input, as without a boundary: optimizers
            # treat None and zeros differently.
            self._messages["B", (j - 1, i)] = Message.of(*flatten(made))

    def _weights(self, action: Action) -> None:
        began = time.perf_counter()
        self._stages[action.stage].backward_to_weights(action.micro_batch)
        self._weights_s = time.perf_counter() - began

    # Messages.

    def _receive(self, action: Action) -> None:
        of = LINK_OF[action.of]
        message = self._links.incoming[of].receive((self.step.evaluate, action.cell))
        self._messages[of, action.cell] = message

    def _send(self, action: Action) -> None:
        of, (stage, i) = LINK_OF[action.of], action.cell
        receiver = (stage + 1, i) if of == "F" else (stage - 1, i)
        message = self._messages.pop((of, receiver))
        self._links.outgoing[of].send(message, (self.step.evaluate, receiver))

    def _is_here(self, work: Work) -> bool:
        """Whether some work need not wait for a message."""
        kind, stage, _ = work
        needs_message = self._needs(kind, stage) is not None
        return not needs_message or self._links.incoming[LINK_OF[kind]].has_arrived()

    def _wait_for_one(self, works: Sequence[Work], is_short: bool) -> None:
        """Wait until a message is here that one of these needs, or for a part of the last W."""
        end = time.perf_counter() + (_PATIENCE * self._weights_s if is_short else math.inf)
        channel = self._links.channel
        with waiting(channel.world_rank((channel.rank + 1) % channel.ranks)):
            while not any(map(self._is_here, works)) and time.perf_counter() < end:
                wait_until(time.perf_counter() + _MOMENT)
