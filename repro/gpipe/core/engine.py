"""Executes a schedule: does one action after the other, as the schedule lists them."""

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import ControlChannel, Vote
from repro.gpipe.comm.link import Inbox
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.message import Forms, Message, copied, received, settled
from repro.gpipe.core.loss import Loss, MeanLoss, Metrics, Weighted, refuse_foreign_modules, summed
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.microbatch import Tree, Whole, check, flatten, map_leaves, split
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.stage import HeldStages
from repro.gpipe.errors import NonFiniteError, RefusedError
from repro.gpipe.exact.batchnorm import NO_STATISTICS, Statistics
from repro.gpipe.exact.buffers import undone_if_refused
from repro.gpipe.exact.nonfinite import all_finite, is_finite
from repro.gpipe.runtime.health import report_errors_to_all
from repro.gpipe.runtime.status import status
from repro.gpipe.schedule.actions import Action, Program, Schedule

# How a step went on one rank. The greatest of all ranks counts.
_GOOD, _NON_FINITE, _REFUSED = range(3)
# What a rank does with its gradients, and whether its loss has metrics: bits, so that those of all
# ranks are known together.
_NO_GRADIENTS, _UPDATES, _LEAVES_GRADIENTS, _METRICS = 0, 1, 2, 4


class Engine:
    """Executes one rank's actions of each step.

    `everyone` are all ranks of all replicas, which vote on a step before any of them updates.
    `foreign` are modules of the layers that run on other ranks. After a step `loss` is the mean
    over the mini-batches of all replicas, and `metrics` are summed over them.
    """

    def __init__(
        self,
        held: HeldStages,
        links: Links,
        schedule: Schedule,
        replicas: Replicas | None,
        everyone: ControlChannel,
        *,
        refuse_nonfinite: bool,
        check_loss: bool,
        foreign: Collection[nn.Module],
    ) -> None:
        self.held = held
        self.links, self.wire = links, links.wire
        self.replicas = replicas
        self.everyone = everyone
        self.refuse_nonfinite = refuse_nonfinite
        self.recorder = Recorder(held.device)
        self.step, self.loss = 0, math.nan
        self.metrics: Metrics = {}
        self.check = LossCheck(held.device) if check_loss else None
        self._rank = links.wire.rank
        # The first rank reads the inputs, the last one computes the loss.
        self._is_first, self._is_last = links.wire.is_first, links.wire.is_last
        self._last_stage = schedule.stages - 1
        self._micro_batches = schedule.micro_batches
        self._foreign = foreign
        # Of a training step, and of an evaluation.
        self._programs = [Program.of(s, self._rank) for s in (schedule, schedule.forward_only())]
        self._input_forms, self._gradient_forms = Forms(), Forms()
        self._do: dict[str, Callable[[Action], None]] = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "Send": self._send,
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
        if torch.is_inference_mode_enabled():
            raise RefusedError("train_step inside torch.inference_mode(): leave that mode")
        self._scaler = scaler
        self._begin(loss_fn, evaluate=False, trace=trace)
        self._read(inputs, targets, loss_fn, optimizer)
        gather = self.replicas.gather if self.replicas is not None else None
        with (
            undone_if_refused(self._parameters, self.held.changing) as accumulated,
            Statistics(self.held.norms, gather) as self.held.statistics,
        ):
            with self.held.generators_preserved():
                if self.replicas is not None:
                    self.replicas.begin(self._parameters)
                self._do_actions()
                if self._is_last:
                    self._mean_loss.refuse_constant()
                    self.held.refuse(self._mean_loss.problem(lambda: self.held.region))
                if self.replicas is not None:
                    # Before statistics are gathered: replicas must meet in the same order.
                    self.replicas.finish()
            if self._agree is None:
                self._prepare_vote()
            outcome = self._vote(accumulated)
            if outcome != _GOOD:
                self._raise_refusal(outcome)
        self.metrics = {}
        if self._has_metrics:
            self.metrics = summed(self.everyone.all_gather(self._own_metrics()))
        self.held.statistics = NO_STATISTICS  # frees them
        self._return_to_user()
        self._update(optimizer)
        self._flush()
        self.step += 1
        status.action = None

    @report_errors_to_all()
    def evaluate(self, inputs: Tree, targets: Tree, loss_fn: Loss) -> None:
        """Do the forwards of a mini-batch; afterwards `loss` and `outputs` have their results."""
        self._begin(loss_fn, evaluate=True, trace=False)
        self._read(inputs, targets, loss_fn, None)
        if self.held.problem:  # a training step agrees with the other ranks first
            raise ValueError(self.held.problem)
        with self.held.generators_preserved():
            self._do_actions()
        problem = self._mean_loss.problem(lambda: self.held.region) if self._is_last else ""
        self._flush()
        status.action = None
        own = problem, self._own_metrics()
        self.loss, has_more = self.wire.pair_from_last(self._own_loss(), any(own))
        self.metrics = {}
        if has_more or self.replicas is not None:  # of which another one may have more
            of_ranks = self.everyone.all_gather(own)
            if any(theirs for theirs, _ in of_ranks):
                raise RefusedError(next(theirs for theirs, _ in of_ranks if theirs))
            self.metrics = summed(metrics for _, metrics in of_ranks)

    # How a step begins: the ranks agree on the inputs.

    def _begin(self, loss_fn: Loss, *, evaluate: bool, trace: bool) -> None:
        """Reset the state of the previous step."""
        if self.links.closed:
            raise RefusedError(f"{status.who}: this Pipeline is closed; make another one")
        status.step, status.action, status.warm = self.step, None, True
        self._program, self._evaluating = self._programs[evaluate], evaluate
        self.recorder.start(self.step, enabled=trace)
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        # Under "F" or "B", and the stage and the micro-batch that made it; from the action that
        # makes or receives it to the one that sends or uses it.
        self._messages: dict[tuple[str, int, int], Message] = {}
        self._user_inputs: list[tuple[Tensor, Tensor]] = []
        self._agree: Vote | None = None
        if self._is_last and not evaluate:
            loss = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
            loss = getattr(loss, "_orig_mod", loss)  # of a compiled module
            self.held.loss_module = None
            # A loss of torch has no state, and may be made anew for each step.
            if isinstance(loss, nn.Module) and not type(loss).__module__.startswith("torch."):
                self.held.loss_module = loss
        self.held.sampled = self.step % self._micro_batches
        self.held.begin_step(self.step, evaluate=evaluate)
        self._parameters = self.held.parameters  # listed once a step

    def _read(
        self, inputs: Tree, targets: Tree, loss_fn: Loss, optimizer: torch.optim.Optimizer | None
    ) -> None:
        """Cut the mini-batch, agree on N with the other ranks, and prepare for the first action."""
        examples, refusal = 0, ""
        if not self._is_first:
            examples = self.wire.announced(self._rank - 1, evaluate=self._evaluating)
        started = self.recorder.now()  # no rank starts before the first one
        if self._is_first:
            try:
                examples = self._cut(inputs)
            except ValueError as error:
                refusal = str(error)
        if not examples:
            self._refuse_inputs(refusal)
        self.examples = examples
        if not self._is_last:
            self.wire.announce(examples, self._rank + 1, evaluate=self._evaluating)
        if optimizer is not None:
            optimizer.zero_grad()
        orders = {"F": self._program.activations, "B": self._program.gradients}
        self._inboxes = {
            of: Inbox(link, orders[of], evaluate=self._evaluating)
            for of, link in self.links.incoming.items()
        }
        if self._is_last:
            refuse_foreign_modules(loss_fn, self._foreign)
            targets = None if targets is None else self.to_device(targets)
            # A prediction has no targets.
            check = None if self._evaluating and targets is None else self.check
            counts = examples, self._micro_batches
            self._mean_loss = self.held.loss = MeanLoss(
                loss_fn, targets, *counts, self._total, self._parameters, check
            )
        self._gradient_use = _NO_GRADIENTS
        if any(p.requires_grad for p in self._parameters):
            self._gradient_use = _LEAVES_GRADIENTS if optimizer is None else _UPDATES
        self.recorder.span("setup", self._rank, -1, started)

    def _cut(self, inputs: Tree) -> int:
        """First rank: cut the mini-batch into micro-batches; returns N."""
        examples = check(inputs, self._micro_batches, "inputs")
        self._inputs: list[Message] = []
        for i, part in enumerate(split(self.to_device(inputs), self._micro_batches)):
            # Without the graph that the user computed them with: see `_return_to_user`. Layers get
            # copies, so a part has the strides and alignment of a clone at once.
            given, skeleton = flatten(part)
            leaves = [settled(t.detach()).requires_grad_(t.requires_grad) for t in given]
            pairs = zip(given, leaves, strict=True)
            self._user_inputs += [(tensor, leaf) for tensor, leaf in pairs if tensor.requires_grad]
            self._inputs.append(self._input_forms.message(i, leaves, skeleton))
        return examples

    def _refuse_inputs(self, reason: str) -> None:
        """Raise the first rank's refusal of its inputs on all ranks of this replica."""
        if not self._is_first:
            reason = self.wire.recv_object(self._rank - 1)
        if not self._is_last:
            self.wire.announce(0, self._rank + 1, evaluate=self._evaluating)
            self.wire.send_object(reason, self._rank + 1)
        if self.replicas is None:
            raise RefusedError(reason)
        raise ValueError(reason)  # other replicas know nothing of it and wait for this one

    # The actions.

    def _do_actions(self) -> None:
        for action in self._program.actions:
            status.action = action
            self._do[action.kind](action)

    def _receive(self, action: Action) -> None:
        if action == self._program.waits and self.replicas is None:
            self._prepare_vote()
        self._messages[action.producer] = self._inboxes[action.of].take(action.cell)

    def _send(self, action: Action) -> None:
        stage, i = action.cell
        message = self._messages.pop((action.of, stage, i))
        receiver = stage + 1 if action.of == "F" else stage - 1
        self.links.send(action.of, message, (self._evaluating, (receiver, i)))

    def _forward(self, action: Action) -> None:
        cell = stage, i = action.cell
        inputs = self._inputs[i] if stage == 0 else self._messages.pop(("F", stage - 1, i))
        started = self.recorder.now()
        if self._evaluating:
            made = self.held.evaluate(cell, inputs)
        else:
            keep = cell not in self._program.recomputed
            made = self.held.forward(cell, inputs, keep=keep)
        self.recorder.span("F", stage, i, started)
        if isinstance(made, Tensor):
            self.losses[i] = made
        elif made is None:
            return  # R computes the loss
        elif stage == self._last_stage:
            # Copies: a layer may return the same memory for each micro-batch.
            self.outputs[i] = map_leaves(Tensor, copied, made.tree)
            self.losses[i] = self.held.score(cell, self.outputs[i])
        else:
            if self.wire.stages == 1:  # the next stage is here too, and may write to its inputs
                made = received(made.form, [copied(t.detach()) for t in made.tensors])
            self._messages["F", stage, i] = made

    def _recompute(self, action: Action) -> None:
        stage, i = action.cell
        started = self.recorder.now()
        loss = self.held.recompute(action.cell)
        self.recorder.span("R", stage, i, started)
        if loss is not None:
            self.losses[i] = loss

    def _backward(self, action: Action) -> None:
        cell = stage, i = action.cell
        gradients: list[Tensor | None] = []  # of the outputs, or of the loss
        if stage < self._last_stage:
            gradients = self._messages.pop(("B", stage + 1, i)).tree
        elif self._scaler is not None:
            gradients = [self._scaler.gradient_of(self.losses[i])]
        else:
            gradients = [torch.ones_like(self.losses[i])]
        if self.replicas is not None and action == self._program.last_backward:
            others = [other for other in self.held.stages if other != stage]
            self.replicas.last_backward(
                parameter for other in others for parameter in self.held.parameters_of(other)
            )
        started = self.recorder.now()
        made = self.held.backward(cell, gradients)
        self.recorder.span("B", stage, i, started)
        if stage > 0:
            # None where the loss does not depend on an input, as without a boundary: optimizers
            # treat None and zeros differently.
            self._messages["B", stage, i] = self._gradient_forms.message(cell, *flatten(made))

    # How a training step ends: the ranks vote whether it counts.

    def _prepare_vote(self) -> None:
        """Do what needs no gradient: where this rank waits for one, it takes no time."""
        self.held.statistics.prepare()
        self._agree = self.everyone.vote()

    def _vote(self, accumulated: list[Tensor]) -> int:
        """Send this rank's outcome of the step to all ranks; return that of all, set the loss.

        The gradients of this step will be added to the accumulated ones.
        """
        self.held.end_step()
        loss = self._own_loss()
        # With a loss scale, inf is expected from time to time, and the scaler skips that update.
        self._nonfinite = False
        if self.refuse_nonfinite and self._scaler is None:
            gradients = accumulated + [p.grad for p in self._parameters if p.grad is not None]
            gradients += [leaf.grad for _, leaf in self._user_inputs if leaf.grad is not None]
            self._nonfinite = not (all_finite(gradients) and math.isfinite(loss))
        outcome = _NON_FINITE if self._nonfinite else _GOOD
        if self.held.problem:
            outcome = _REFUSED
        assert self._agree is not None
        uses = self._gradient_use | (_METRICS if self._own_metrics() else 0)
        outcome, uses, self.loss = self._agree(outcome, uses, loss)
        self._has_metrics = bool(uses & _METRICS)
        if outcome == _GOOD and uses & ~_METRICS == _UPDATES | _LEAVES_GRADIENTS:
            self.held.problem = (
                "optimizer: some ranks got one and others, which have parameters to train, did not"
            )
            return _REFUSED
        return outcome

    def _raise_refusal(self, outcome: int) -> None:
        self._flush()
        if outcome == _REFUSED:
            problems = self.everyone.all_gather(self.held.problem)
            raise RefusedError(next(problem for problem in problems if problem))
        causes = self.everyone.all_gather(self._nonfinite_cause() if self._nonfinite else None)
        *_, text = min(cause for cause in causes if cause is not None)
        raise NonFiniteError(f"step {self.step}: {text}; allow_nonfinite=True trains on")

    def _nonfinite_cause(self) -> tuple[int, int, str]:
        """What is inf or nan on this rank, and its place; the first of all ranks is the cause.

        A weight comes before what is made with it, then inputs, targets, the loss and gradients,
        which spread from a stage to those before it.
        """
        for name, parameter in self.held.module.named_parameters():
            if not is_finite(parameter):
                return 0, 0, f"{name} on {status.who} was inf or nan before it; load a checkpoint"
        trees: list[tuple[int, str, list[Tree]]] = []
        if self._is_first:
            trees = [(1, "the inputs", [message.tensors for message in self._inputs])]
        if self._is_last:
            losses = [self.losses[i] for i in sorted(self.losses)]
            trees += [(2, "the targets", self._mean_loss.parts), (3, "outputs or loss", losses)]
        for order, what, of_micro_batches in trees:
            for i, tree in enumerate(of_micro_batches):
                # Inputs may hold masks, which are made of -inf.
                if not all(is_finite(t, or_mask=order == 1) for t in flatten(tree)[0]):
                    what += f" of micro-batch {i} on {status.who} are inf or nan"
                    return order, 0, f"{what}; lower the learning rate, or leave out such examples"
        what = f"the gradients on {status.who} are inf or nan, and the loss is finite"
        advice = "lower the learning rate or the loss, or drop the gradients of earlier steps"
        return 4, -self._rank, f"{what}; {advice}"

    def _update(self, optimizer: torch.optim.Optimizer | None) -> None:
        scaler, updates = self._scaler, optimizer is not None
        if scaler is not None:  # whether any rank updates
            updates = scaler.agree(self._parameters, update=updates)
        if optimizer is not None:
            started = self.recorder.now()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
            self.recorder.span("U", self._rank, -1, started)
        if scaler is not None and updates:
            scaler.update()

    def _return_to_user(self) -> None:
        """Backpropagate from the inputs' gradients to what the user computed the inputs from."""
        pairs = [(given, leaf.grad) for given, leaf in self._user_inputs if leaf.grad is not None]
        if pairs:
            roots, their_gradients = zip(*pairs, strict=True)
            torch.autograd.backward(roots, their_gradients)

    def _own_loss(self) -> float:
        """The mini-batch's mean loss on the last rank, added in the order of the micro-batches."""
        loss = float(sum(self.losses[i] for i in sorted(self.losses)))
        return self._total(loss) if self._is_last else loss

    def _own_metrics(self) -> Metrics:
        """Metrics of this replica's mini-batch on the last rank; none on the other ranks."""
        return (
            summed(of for _, of in sorted(self._mean_loss.metrics.items())) if self._is_last else {}
        )

    def _total(self, value: float) -> float:
        return value if self.replicas is None else self.replicas.total(value)

    def _flush(self) -> None:
        """Wait until everything is sent."""
        self.links.flush()
        self.wire.flush()
        self.everyone.flush()

    def to_device(self, tree: Tree) -> Tree:
        """Inputs or targets on the device of these stages."""
        moved = map_leaves(Tensor, lambda t: t.to(self.held.device), tree)
        return map_leaves(Whole, lambda whole: Whole(self.to_device(whole.value)), moved)
