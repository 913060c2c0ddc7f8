"""One mini-batch on one rank: its parts, its loss, its gradients, and how it ends.

A step is a transaction. Gradients of earlier steps are put aside, guards keep what they must, and
weights change only once all ranks have voted that the step is good.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import ControlChannel, Vote
from repro.gpipe.comm.message import Message, settled
from repro.gpipe.core.loss import MeanLoss, Metrics, summed
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.errors import RefusedError
from repro.gpipe.exact.guard import Finding, Guards, Outcome
from repro.gpipe.tree import Tree, check, flatten, split, to_device

# What a rank does with its gradients, and whether its loss has metrics: bits, so that those of all
# ranks are known together.
_NO_GRADIENTS, _UPDATES, _LEAVES_GRADIENTS, _METRICS = 0, 1, 2, 4
_UNLIKE = "optimizer: some ranks got one and others, which have parameters to train, did not"


class Step:
    """A training step, or an evaluation.

    Attributes:
        number: of the step, the same on all ranks.
        rank: of this process in its pipeline.
        examples: N.
        inputs: of each micro-batch, on the first rank.
        losses, outputs: of each micro-batch, on the last rank.
        mean_loss: turns outputs into a share of the loss, on the last rank.
        own_loss: the sum of the micro-batches' losses on this rank; `loss` is that of all.
        has_metrics: whether the loss of any rank returned metrics.
    """

    def __init__(
        self,
        number: int,
        micro_batches: int,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        channel: ControlChannel,
        *,
        evaluate: bool,
        optimizer: torch.optim.Optimizer | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self.number, self.micro_batches, self.evaluate = number, micro_batches, evaluate
        self.optimizer, self.scaler, self.rank = optimizer, scaler, channel.rank
        self.inputs: list[Message] = []
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        self.mean_loss: MeanLoss | None = None
        self.loss = self.own_loss = math.nan
        self.examples, self.has_metrics, self._good = 0, False, False
        self._parameters, self._device, self._channel = parameters, device, channel
        self._aside: list[tuple[nn.Parameter, Tensor]] = []  # gradients of earlier steps
        self._uses = _NO_GRADIENTS
        if any(p.requires_grad for p in parameters):
            self._uses = _LEAVES_GRADIENTS if optimizer is None else _UPDATES

    # Its inputs, on which the ranks agree.

    def read(self, inputs: Tree, now: Callable[[], Any]) -> Any:
        """Cut the mini-batch on the first rank, and send N, or a refusal, to the others.

        Returned is the time from which this rank did not wait for the first one.
        """
        channel, refusal = self._channel, ""
        if not channel.is_first:
            self.examples, refusal = channel.announced(self.rank - 1, evaluate=self.evaluate)
        started = now()
        if channel.is_first:
            try:
                self._cut(inputs)
            except ValueError as error:
                refusal = str(error)
        if not channel.is_last:
            channel.announce((self.examples, refusal), self.rank + 1, evaluate=self.evaluate)
        if not self.examples:
            channel.flush()  # gloo would lose it if the caller drops the Pipeline now
            raise RefusedError(refusal)
        return started

    def _cut(self, inputs: Tree) -> None:
        examples = check(inputs, self.micro_batches, "inputs")
        for part in split(to_device(inputs, self._device), self.micro_batches):
            # Layers get copies, so a part has the strides and alignment of a clone at once.
            given, skeleton = flatten(part)
            if not self.evaluate and any(tensor.requires_grad for tensor in given):
                raise ValueError(
                    "inputs: require a gradient, and a step trains no more than the layers; make "
                    "what computes them the first layer, or detach() them"
                )
            leaves = [settled(tensor.detach()) for tensor in given]
            self.inputs.append(Message.of(leaves, skeleton))
        self.examples = examples

    # Its gradients.

    @contextmanager
    def undone_unless_good(self, guards: Guards) -> Iterator[None]:
        """Wrap everything that computes: undo it if an error ends it, or if the step is not good.

        Gradients that the caller accumulates over several steps are put aside meanwhile. That takes
        memory for a second set of gradients, but only if a caller accumulates.
        """
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        self._aside = [(p, p.grad) for p in self._parameters if p.grad is not None]
        for parameter, _ in self._aside:
            parameter.grad = None
        try:
            guards.call("begin_step", self)
            yield
        finally:
            if self._good:
                self._add_gradients()
                guards.call("commit")
            else:
                for parameter in self._parameters:
                    parameter.grad = None
                for parameter, gradient in self._aside:
                    parameter.grad = gradient
                guards.call("undo")

    @torch.no_grad()
    def _add_gradients(self) -> None:
        for parameter, before in self._aside:
            added = parameter.grad
            if added is None:
                parameter.grad = before
            else:  # in its memory, but that torch adds a dense tensor to no sparse one
                parameter.grad = added + before if before.is_sparse else before.add_(added)

    def gradients(self) -> list[Tensor]:
        """The gradients that this step adds, and those of earlier steps."""
        found = [gradient for _, gradient in self._aside]
        return found + [p.grad for p in self._parameters if p.grad is not None]

    # Its end.

    def add_up_loss(self, total: Callable[[float], float]) -> None:
        """The mini-batch's mean loss on the last rank, added in the order of the micro-batches."""
        loss = float(sum(self.losses[i] for i in sorted(self.losses)))
        self.own_loss = total(loss) if self._channel.is_last else loss

    @property
    def metrics(self) -> Metrics:
        """Metrics of this replica's mini-batch on the last rank; none on the other ranks."""
        of_micro_batches = {} if self.mean_loss is None else self.mean_loss.metrics
        return summed(of for _, of in sorted(of_micro_batches.items()))

    def agreed(self, agree: Vote, finding: Finding) -> Finding:
        """Vote on the step: the worst finding of all ranks, with a text if it is this rank's."""
        uses = self._uses | (_METRICS if self.metrics else 0)
        outcome, uses, self.loss = agree(finding.outcome, uses, self.own_loss)
        self.has_metrics = bool(uses & _METRICS)
        if outcome == Outcome.GOOD and uses & ~_METRICS == _UPDATES | _LEAVES_GRADIENTS:
            return Finding(Outcome.REFUSED, _UNLIKE)
        self._good = outcome == Outcome.GOOD
        return finding if finding.outcome == outcome else Finding(Outcome(outcome))

    def update(self) -> None:
        """One synchronous update, once all ranks have found the step good."""
        if self.scaler is not None:
            self.scaler.update_all(self._parameters, self.optimizer)
        elif self.optimizer is not None:
            self.optimizer.step()
