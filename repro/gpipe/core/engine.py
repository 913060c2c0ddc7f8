"""Executes a schedule: does one action after the other, as the schedule lists them."""

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.mailbox import Inbox
from repro.gpipe.comm.message import Forms, Message, copied, received, settled
from repro.gpipe.core.loss import Loss, MeanLoss, Weighted, refuse_foreign_modules
from repro.gpipe.core.microbatch import (
    Tree,
    Whole,
    batch_size,
    flatten,
    map_leaves,
    refuse_uncut,
    refuse_unplain,
    split,
)
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.stage import HeldStages
from repro.gpipe.errors import NonFiniteError, RefusedError
from repro.gpipe.exact.batchnorm import once_per_mini_batch
from repro.gpipe.exact.nonfinite import all_finite, is_finite
from repro.gpipe.exact.rollback import Rollback
from repro.gpipe.runtime.health import report_errors_to_all
from repro.gpipe.runtime.status import status
from repro.gpipe.schedule.actions import Action, Cell, Program, Schedule

# How a step went on one rank. The greatest of all ranks counts.
_GOOD, _NON_FINITE, _REFUSED = range(3)
# What a rank does with its gradients: bits, so that all ranks' are known together.
_NO_GRADIENTS, _UPDATES, _LEAVES_GRADIENTS = 0, 1, 2
# A micro-batch's part of a parameter is a plain tensor anyway.
_USERS_TENSORS = (Tensor, nn.Parameter)


class Engine:
    """Executes one rank's actions of each step.

    Args:
        held: the stages that run here.
        links: to the neighbours.
        stages: of all ranks together.
        micro_batches: M.
        replicas: the other copies of this rank, if there are any.
        everyone: all ranks of all replicas, which agree how a step went before any of them
            updates.
        refuse_nonfinite: whether a step whose loss or gradients are not finite is refused.
    """

    def __init__(
        self,
        held: HeldStages,
        links: Links,
        stages: int,
        micro_batches: int,
        replicas: Replicas | None,
        everyone: ControlChannel,
        *,
        refuse_nonfinite: bool,
    ) -> None:
        self.held = held
        self.links = links
        self.wire = links.wire
        self.replicas = replicas
        self.everyone = everyone
        self.refuse_nonfinite = refuse_nonfinite
        self.recorder = Recorder(held.device)
        self.step = 0
        ranks, self._rank = links.wire.stages, links.wire.rank
        # The first rank reads the inputs, the last one computes the loss.
        self._is_first, self._is_last = links.wire.is_first, links.wire.is_last
        self._last_stage = stages - 1
        self._has_messages = ranks > 1
        self._micro_batches = micro_batches
        self.foreign: Collection[nn.Module] = ()  # modules of layers that run on other ranks
        self._known_loss: object = None  # or its code, since each step may make it anew
        self._programs: dict[int, Program] = {}  # by the id of their schedule
        self._input_forms, self._gradient_forms = Forms(), Forms()
        # Each waits until an announcement has been received. They are kept, since gloo must not
        # lose what it still sends if a step fails.
        self._untaken: list[Callable[[], object]] = []
        self._do: dict[str, Callable[[Action], None]] = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "Send": self._send,
            "Recv": self._receive,
        }

    @report_errors_to_all()
    def run(
        self,
        schedule: Schedule,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        evaluate: bool = False,
        trace: bool = False,
        scaler: GradScaler | None = None,
    ) -> None:
        """Do one step of `schedule`; afterwards `loss` and `recorder` have its results."""
        if self.links.closed:
            raise RefusedError(f"{status.who}: this Pipeline is closed; make another one")
        if torch.is_inference_mode_enabled() and not evaluate:
            raise RefusedError(
                "train_step inside torch.inference_mode(): nothing there has a gradient; leave "
                "that mode"
            )
        status.step, status.action, status.warm = self.step, None, True
        if id(schedule) not in self._programs:
            self._programs[id(schedule)] = Program.of(schedule, self._rank)
        self._program = self._programs[id(schedule)]
        self._evaluating, self._scaler = evaluate, scaler
        self.recorder.start(self.step, enabled=trace)
        self._forget_last_step(loss_fn)
        self._begin(inputs, targets, loss_fn, optimizer)
        if evaluate:
            with self.held.generators_preserved(watch=False):
                self._do_micro_batches()
        else:
            self._train(optimizer)
        self._flush()
        if not evaluate:
            self.step += 1
        status.action = None

    def loss(self) -> float:
        """The mini-batch's mean loss over all replicas; every rank must call it."""
        if self._agreed_loss is not None:
            return self._agreed_loss
        return self.wire.from_last(self._own_loss())

    # How a step begins: the ranks agree on the inputs.

    def _forget_last_step(self, loss_fn: Loss) -> None:
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        self._agreed_loss: float | None = None
        # By the stage and the micro-batch that make or need it, from the action that makes or
        # receives it to the one that sends or uses it.
        self._arrived: dict[Cell, Message] = {}
        self._made: dict[Cell, Message] = {}
        self._gradients: dict[Cell, Message] = {}
        self._made_gradients: dict[Cell, Message] = {}
        self._user_inputs: list[tuple[Tensor, Tensor]] = []
        if self._is_last and not self._evaluating:
            loss = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
            self.held.loss_module = None
            if isinstance(loss, nn.Module) and next(loss.buffers(), None) is not None:
                self.held.loss_module = loss
        self.held.statistics = None
        self.held.begin_step(self.step)
        self._parameters = self.held.parameters  # listed once a step

    def _begin(
        self,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """Agree on the inputs with the other ranks, and prepare for the first action."""
        examples = 0
        if not self._is_first:
            examples = self.wire.announced(self._rank - 1, evaluate=self._evaluating)
        started = self.recorder.now()  # no rank starts before the first one
        if self._is_first:
            examples = self._read_inputs(inputs)
        if not examples:
            self._refuse_inputs()
        if not self._is_last:
            taken = self.wire.announce(examples, self._rank + 1, evaluate=self._evaluating)
            self._untaken.append(taken)
        if optimizer is not None:
            optimizer.zero_grad()
        if self.links.before is not None:
            self._activations = Inbox(
                self.links.activations_in, self._program.activations, self._evaluating
            )
        if self.links.after is not None:
            self._returned = Inbox(self.links.gradients_in, self._program.gradients)
        if self._is_last:
            self._prepare_loss(targets, loss_fn, examples)
        if self._evaluating and self.held.problem:
            # A training step agrees with the other ranks first.
            raise ValueError(self.held.problem)
        self._gradient_use = _NO_GRADIENTS
        if any(p.requires_grad for p in self._parameters):
            self._gradient_use = _LEAVES_GRADIENTS if optimizer is None else _UPDATES
        self.recorder.span("setup", self._rank, -1, started)

    def _read_inputs(self, inputs: Tree) -> int:
        """First rank: cut the mini-batch; returns N, or 0 if the inputs are refused."""
        try:
            refuse_unplain(inputs, "inputs", _USERS_TENSORS)
            if self._micro_batches > 1:
                refuse_uncut(inputs, "inputs", batch_size(inputs))
            inputs = self._to_device(inputs)
            parts = split(inputs, self._micro_batches)
        except ValueError as error:
            self._refusal = str(error)
            return 0
        self._inputs = [self._cut_from_graph(i, part) for i, part in enumerate(parts)]
        return batch_size(inputs)

    def _cut_from_graph(self, i: int, part: Tree) -> Message:
        """A micro-batch without the graph that the user computed it with.

        The user's tensors get their gradients at the end of the step, see `_return_to_user`.
        """
        given, skeleton = flatten(part)
        # Layers get copies, so a part has the strides and alignment of a clone at once.
        leaves = [settled(t.detach()).requires_grad_(t.requires_grad) for t in given]
        pairs = zip(given, leaves, strict=True)
        self._user_inputs += [(tensor, leaf) for tensor, leaf in pairs if tensor.requires_grad]
        return self._input_forms.message(i, leaves, skeleton)

    def _refuse_inputs(self) -> None:
        """Raise on all ranks of this replica what the first rank says of its inputs."""
        reason = self._refusal if self._is_first else self.wire.recv_object(self._rank - 1)
        if not self._is_last:
            self.wire.announce(0, self._rank + 1, evaluate=self._evaluating)()
            self.wire.send_object(reason, self._rank + 1)
        if self.replicas is None:
            raise RefusedError(reason)
        raise ValueError(reason)  # other replicas know nothing of it and wait for this one

    def _prepare_loss(self, targets: Tree, loss_fn: Loss, examples: int) -> None:
        refuse_unplain(targets, "targets", _USERS_TENSORS)
        code = getattr(loss_fn, "__code__", loss_fn)
        if code is not self._known_loss:
            refuse_foreign_modules(loss_fn, self.foreign)
            self._known_loss = code
        on_device = None if targets is None else self._to_device(targets)
        self._mean_loss = self.held.loss = MeanLoss(
            loss_fn, on_device, examples, self._micro_batches, self._total, self._parameters
        )

    # The actions.

    def _do_micro_batches(self) -> None:
        """Do the actions of this rank, one after the other, but for the update at the end."""
        for action in self._program.actions:
            status.action = action
            if action.kind != "U":
                self._do[action.kind](action)

    def _receive(self, action: Action) -> None:
        if action.of == "F":
            self._arrived[action.cell] = self._activations.take(action.cell)
        else:
            self._gradients[action.cell] = self._returned.take(action.cell)

    def _send(self, action: Action) -> None:
        stage, i = action.cell
        if action.of == "F":
            key = self._evaluating, (stage + 1, i)
            self.links.send_activations(self._made.pop(action.cell), key)
        else:
            key = None, (stage - 1, i)
            self.links.send_gradients(self._made_gradients.pop(action.cell), key)

    def _forward(self, action: Action) -> None:
        cell = stage, i = action.cell
        inputs = self._inputs[i] if stage == 0 else self._arrived.pop(cell)
        started = self.recorder.now()
        if self._evaluating:
            made = self.held.evaluate(cell, inputs)
        else:
            keep = cell not in self._program.recomputed
            made = self.held.forward(cell, inputs, keep=keep)
        self.recorder.span("F", stage, i, started)
        if isinstance(made, Tensor):
            self.losses[i] = made
        elif stage == self._last_stage:
            self.outputs[i] = made.tree
            self.losses[i] = self.held.score(cell, self.outputs[i])
        elif self._has_messages:
            self._made[cell] = made
        else:  # to the next stage, which is on this rank too and may write to its inputs
            self._arrived[stage + 1, i] = received(
                made.form, [copied(t.detach()) for t in made.tensors]
            )

    def _recompute(self, action: Action) -> None:
        cell = stage, i = action.cell
        started = self.recorder.now()
        self.held.recompute(cell)
        self.recorder.span("R", stage, i, started)

    def _backward(self, action: Action) -> None:
        cell = stage, i = action.cell
        gradients: list[Tensor | None] = []  # of the outputs, or of the loss
        if stage < self._last_stage:
            gradients = self._gradients.pop(cell).tree
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
            message = self._gradient_forms.message(cell, *flatten(made))
            if self._has_messages:
                self._made_gradients[cell] = message
            else:
                self._gradients[stage - 1, i] = message

    # How a training step ends: the ranks agree whether it counts.

    def _train(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Do F, R and B of all micro-batches, agree with all ranks that the step counts, update."""
        rollback = Rollback(self._parameters, self.held.changing)
        gather = self.replicas.gather if self.replicas is not None else None
        with once_per_mini_batch(self.held.modules, gather) as self.held.statistics:
            try:
                with self.held.generators_preserved(watch=True):
                    if self.replicas is not None:
                        self.replicas.begin(self._parameters)
                    self._do_micro_batches()
                    if self._is_last:
                        self._mean_loss.refuse_constant()
                    if self.replicas is not None:
                        # Before statistics are gathered: replicas must meet in the same order.
                        self.replicas.finish()
                outcome = self._agree(rollback.accumulated)
                if outcome != _GOOD:
                    self._raise_refusal(outcome)
            except BaseException:
                rollback.undo()
                raise
            rollback.keep()
        self.held.statistics = None
        self._return_to_user()
        self._update(optimizer)

    def _agree(self, accumulated: list[Tensor]) -> int:
        """Agree with all ranks how the step went; returns that, and knows the loss then.

        Args:
            accumulated: gradients of earlier steps, to which those of this step will be added.
        """
        self.held.end_step()
        loss = self._own_loss()
        outcome = _REFUSED if self.held.problem else _GOOD
        # With a loss scale, inf is expected from time to time, and the scaler skips that update.
        self._nonfinite = False
        if self.refuse_nonfinite and self._scaler is None:
            gradients = accumulated + [p.grad for p in self._parameters if p.grad is not None]
            gradients += [leaf.grad for _, leaf in self._user_inputs if leaf.grad is not None]
            self._nonfinite = not (all_finite(gradients) and math.isfinite(loss))
        if self._nonfinite:
            outcome = max(outcome, _NON_FINITE)
        outcome, uses, self._agreed_loss = self.everyone.agree(outcome, self._gradient_use, loss)
        if outcome == _GOOD and uses == _UPDATES | _LEAVES_GRADIENTS:
            self.held.problem = (
                "optimizer: some ranks got one and others, which have parameters to train, did "
                "not; give every rank an optimizer of its own parameters, or none to any"
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
        """What is inf or nan on this rank, behind its place: of all ranks the first is the cause.

        A weight comes before what is made with it, then inputs, targets, the loss and gradients,
        which spread from a stage to those before it.
        """
        for name, parameter in self.held.module.named_parameters():
            if not is_finite(parameter):
                return 0, 0, f"{name} on {status.who} was inf or nan before it; load a checkpoint"
        trees: list[tuple[int, str, list[Tree]]] = []
        if self._is_first:
            trees.append((1, "the inputs", [message.tensors for message in self._inputs]))
        if self._is_last:
            trees.append((2, "the targets", self._mean_loss.parts))
            trees.append((3, "outputs or loss", [self.losses[i] for i in sorted(self.losses)]))
        for order, what, of_micro_batches in trees:
            for i, tree in enumerate(of_micro_batches):
                # Inputs may hold masks, which are made of -inf.
                if not all(is_finite(t, or_mask=order == 1) for t in flatten(tree)[0]):
                    return (
                        order,
                        0,
                        f"{what} of micro-batch {i} on {status.who} are inf or nan; lower the "
                        "learning rate, or mend or leave out such examples",
                    )
        return (
            4,
            -self._rank,
            f"the gradients on {status.who} are inf or nan, and the loss is finite; lower the "
            "learning rate or what scales the loss, or drop the gradients of earlier steps",
        )

    def _update(self, optimizer: torch.optim.Optimizer | None) -> None:
        scaler = self._scaler
        update = optimizer is not None
        if scaler is not None:
            update = scaler.agree(self._parameters, update=update)
        if optimizer is not None:
            started = self.recorder.now()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
            self.recorder.span("U", self._rank, -1, started)
        if scaler is not None and update:
            scaler.update()

    def _return_to_user(self) -> None:
        """Backpropagate from the inputs' gradients to what the user computed the inputs from."""
        pairs = [(given, leaf.grad) for given, leaf in self._user_inputs if leaf.grad is not None]
        if pairs:
            torch.autograd.backward(
                [given for given, _ in pairs], [gradient for _, gradient in pairs]
            )

    def _own_loss(self) -> float:
        """The mini-batch's mean loss on the last rank, added in the order of the micro-batches."""
        loss = float(sum(self.losses[i] for i in sorted(self.losses)))
        return self._total(loss) if self._is_last else loss

    def _total(self, value: float) -> float:
        return value if self.replicas is None else self.replicas.total(value)

    def _flush(self) -> None:
        """Wait until everything is sent."""
        self.links.flush()
        for wait_until_taken in self._untaken:
            wait_until_taken()
        self._untaken.clear()

    def _to_device(self, tree: Tree) -> Tree:
        moved = map_leaves(Tensor, lambda t: t.to(self.held.device), tree)
        return map_leaves(Whole, lambda whole: Whole(self._to_device(whole.value)), moved)
