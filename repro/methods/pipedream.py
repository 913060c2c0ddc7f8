"""PipeDream as a method: asynchronous 1F1B with weight stashing (arXiv:1806.03377).

Each of the M micro-batches of a step is a mini-batch of its own: it updates each stage as soon as
its backward there is done. Stage j does F of micro-batch t, then B and the update of micro-batch
t - (K - 1 - j). So between F and B of a micro-batch its stage is updated K - 1 - j times by earlier
ones: this is the staleness of the stage. Both use the weights of the F, which are stashed until the
B is done. Stages may use different versions for one micro-batch (the paper's "vertical sync", which
prevents that, is not its default).

The pipe stays filled between steps: K - 1 - j micro-batches stay in flight on stage j until the
next step. So there is no bubble, but for this: whoever times a step lets all stages begin together.
Stage j then waits for the first activations, and a timed step takes (K - 1) F longer than the
M (F + B) that it takes without that barrier.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.func import functional_call

from repro.gpipe import StepResult
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.message import Message
from repro.gpipe.core import memory
from repro.gpipe.core.layers import as_layers, refuse_shared
from repro.gpipe.core.topology import own_rank
from repro.gpipe.exact import rng
from repro.gpipe.schedule.actions import Cell
from repro.gpipe.tree import Tree, flatten, map_leaves
from repro.methods.method import Method, Setup


@dataclass
class _InFlight:
    """A micro-batch between its F and its B on this stage."""

    cell: Cell  # this stage, and the micro-batch's index in its step
    inputs: Tree
    updates: int  # of this stage before its F
    # Of its F: the newest ones then, which share the memory of the parameters until an update that
    # leaves them theirs.
    weights: dict[str, Tensor]
    outputs: list[Tensor]  # that left the stage, or the loss, with their graph


class PipeDream(Method):
    """One stage of an asynchronous pipeline, which recomputes nothing; see `Method`."""

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        super().__init__(setup, config.stages, own_rank(config))
        self.balance = setup.counts()
        refuse_shared(as_layers(setup.layers), self.balance)
        self.module = setup.build_stage(self.balance, self._rank)
        self._optimizer = setup.make_optimizer(self.module.parameters())
        self._links = Links(self._channel, setup.device, config.transport)
        # How many micro-batches stay in flight while this one is done.
        self._lag = config.stages - 1 - self._rank
        self._in_flight: deque[_InFlight] = deque()
        self._forwards = 0  # over all steps
        self._parameters = dict(self.module.named_parameters())
        self._updates = 0
        self._newest = self._weights()
        self._greatest_staleness = 0

    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """M updates, of which the last K - 1 - j are done in the next step; see `Method`.

        The loss is the mean over the mini-batch, each micro-batch with the weights of its F.
        """
        start = self._now()
        target_parts, shares = self._scored(targets)
        losses: list[Tensor] = []
        sent = self._links.sent_bytes()
        returned = self._returned(range(self._setup.config.micro_batches), left=self._lag)
        # The neighbours have begun to receive what the last step left on its way.
        self._links.flush()
        with rng.preserved(self._setup.device):
            for i, given in enumerate(self._arriving(inputs)):
                outputs = self._forward(i, given, target_parts[i])
                if self._is_last:
                    losses.append(outputs[0].detach() * shares[i])
                if len(self._in_flight) > self._lag:
                    self._backward(returned)
        end = self._now()
        now_sent = self._links.sent_bytes()
        self._sent = {what: size - sent[what] for what, size in now_sent.items()}
        loss = torch.stack(losses).sum().item() if losses else 0.0
        return StepResult(self._channel.all_gather(loss)[-1], start, end)

    def asynchrony(self) -> dict[str, list[int]]:
        """On stage j, once the pipe was full: K - 1 - j."""
        return {"staleness": self.gather(self._greatest_staleness)}

    def peak_bytes(self, inputs: Tree, targets: Tree) -> list[int]:
        """Peak memory of each stage from an empty pipe to a full one."""
        self._drain()
        config = self._setup.config
        # The first K micro-batches share a version. K more are needed until all have their own.
        steps = ceil(2 * config.stages / config.micro_batches)
        data = inputs if self._is_first else (), targets if self._is_last else ()

        def fill_and_drain() -> None:
            for _ in range(steps):
                self.train_step(inputs, targets)
            self._drain()

        resident = self._resident(data)
        return self.gather(memory.peak_memory(fill_and_drain, self._setup.device, resident))

    def close(self) -> None:
        """Drop what is in flight and end the connections."""
        self._in_flight.clear()
        self._links.close()

    # F, B and the update.

    def _forward(self, i: int, inputs: Tree, targets: Tree) -> list[Tensor]:
        """F of a micro-batch with the newest weights; its activations are sent.

        On the last stage it ends with the loss. Layers get copies of the inputs, because they may
        work in place.
        """
        seed = rng.hashed(self._setup.seed, 0, self._forwards, self._rank)
        rng.reseed(seed, self._setup.device)
        self._forwards += 1
        copies = map_leaves(Tensor, torch.clone, inputs)
        value = functional_call(self.module, self._newest, (copies,))
        if self._is_last:
            value = self._setup.loss(value, targets)
        outputs, structure = flatten(value)
        cell = self._rank, i
        self._in_flight.append(_InFlight(cell, inputs, self._updates, self._newest, outputs))
        if not self._is_last:
            sent = [t.detach().requires_grad_(t.requires_grad) for t in outputs]
            self._links.outgoing["F"].send(Message.of(sent, structure), (self._rank + 1, i))
        return outputs

    def _backward(self, returned: Link | None) -> None:
        """B of the oldest micro-batch in flight; its gradients are sent, then the stage updates."""
        micro_batch = self._in_flight.popleft()
        i = micro_batch.cell[1]
        if returned is not None:
            gradients = returned.receive(micro_batch.cell).tensors
            outputs = [t for t in micro_batch.outputs if t.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, gradients)
        else:
            torch.autograd.backward(micro_batch.outputs)
        if not self._is_first:
            gradients = [
                torch.zeros_like(t) if t.grad is None else t.grad
                for t in flatten(micro_batch.inputs)[0]
                if t.requires_grad
            ]
            self._links.outgoing["B"].send(Message.of(*flatten(gradients)), (self._rank - 1, i))
        self._update(micro_batch)

    def _update(self, done: _InFlight) -> None:
        """The update by a micro-batch of which B is done, with the gradients of its weights."""
        kept = {other.updates for other in self._in_flight}
        for name, p in self._parameters.items():
            gradient, done.weights[name].grad = done.weights[name].grad, None
            p.grad = gradient
            if self._updates in kept and p.requires_grad:
                # The optimizer writes to a copy, and micro-batches in flight keep what they use.
                p.data = p.data.clone()
        if self._optimizer is not None:
            self._optimizer.step()
        self._greatest_staleness = max(self._greatest_staleness, self._updates - done.updates)
        self._updates += 1
        self._newest = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        return {
            name: nn.Parameter(p.data, requires_grad=p.requires_grad)
            for name, p in self._parameters.items()
        }

    def _drain(self) -> None:
        returned = self._returned((), left=0)
        with rng.preserved(self._setup.device):
            while self._in_flight:
                self._backward(returned)
        self._links.flush()

    # Messages and mini-batches.

    def _arriving(self, inputs: Tree) -> Iterator[Tree]:
        """What this stage gets of each micro-batch: a part of the mini-batch, or a message."""
        if self._is_first:
            yield from self.cut(self._setup.placed(inputs))
            return
        link = self._links.incoming["F"]
        cells = [(self._rank, i) for i in range(self._setup.config.micro_batches)]
        link.expect(cells)
        for cell in cells:
            yield link.receive(cell).tree

    def _returned(self, coming: Sequence[int], left: int) -> Link | None:
        """The link of the gradients for micro-batches in flight and coming, but the last `left`."""
        if self._is_last:
            return None
        order = [micro_batch.cell for micro_batch in self._in_flight]
        order += [(self._rank, i) for i in coming]
        link = self._links.incoming["B"]
        link.expect(order[: max(0, len(order) - left)])
        return link

    def _scored(self, targets: Tree) -> tuple[list[Tree], list[float]]:
        """Targets of each micro-batch, and its share in the loss; none but on the last stage."""
        if not self._is_last:
            return [None] * self._setup.config.micro_batches, []
        parts = self.cut(self._setup.placed(targets))
        return parts, self._setup.shares(parts)
