"""Executes a schedule: does one action after the other, as the schedule lists them."""

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from operator import itemgetter

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.mailbox import Inbox, as_leaves
from repro.gpipe.comm.message import MessageMeta, copied, overlapping, settled
from repro.gpipe.core.learnt import Learnt, Signatures
from repro.gpipe.core.loss import Head, Loss, Weighted, refuse_foreign_modules
from repro.gpipe.core.microbatch import (
    Tree,
    Whole,
    batch_size,
    flatten,
    map_leaves,
    refuse_uncut,
    refuse_unplain,
    split,
    unflatten,
    unwrapped,
)
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.stage import HeldStages
from repro.gpipe.errors import EveryRankError, NonFiniteError, RefusedError
from repro.gpipe.exact.batchnorm import once_per_mini_batch
from repro.gpipe.exact.nonfinite import all_finite, is_finite
from repro.gpipe.exact.rollback import undone_if_it_fails
from repro.gpipe.runtime.health import report_errors_to_all
from repro.gpipe.runtime.status import status
from repro.gpipe.schedule.actions import Action, Cell, Program, Schedule

_log = logging.getLogger(__name__)

# What the first rank announces of a step: signature of its inputs, 1 if the step learns, N.
_Announced = tuple[int, int, int]
_REFUSED: _Announced = (0, 0, 0)  # its inputs are wrong, and there is no step
# How a step went on one rank. The greatest of all ranks counts.
_GOOD, _NON_FINITE, _UNEXPECTED, _FORBIDDEN = range(4)
# What a rank does with its gradients: bits, so that all ranks' are known together.
_NO_GRADIENTS, _UPDATES, _LEAVES_GRADIENTS = 0, 1, 2
# A micro-batch's part of a parameter is a plain tensor anyway.
_USERS_TENSORS = (Tensor, nn.Parameter)


class _UnexpectedStepError(EveryRankError):
    """A step in which something was not as learnt, on some stage. It has changed nothing."""


class Engine:
    """Executes one rank's actions of each step.

    What crosses the boundaries is learnt once for each signature of the inputs. The first rank
    announces the signature to the others ahead of the data. If it is new, every message brings its
    description, and the next steps post their receives ahead.

    A step may differ from the one that was learnt from: a layer was frozen, say, or works in place
    now. Such a step is undone on all ranks and done once more, learning.

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
        everyone: Wire,
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
        self._signatures = Signatures(micro_batches * (stages // ranks))
        self.foreign: Collection[nn.Module] = ()  # modules of layers that run on other ranks
        self._known_loss: object = None  # or its code, since each step may make it anew
        self._programs: dict[int, Program] = {}  # by the id of their schedule
        self._parameters: list[nn.Parameter] = []  # of this rank, listed once a step
        # Each waits until an announcement or a description has been received. They are kept, since
        # gloo must not lose what it still sends if a step fails.
        self._untaken: list[Callable[[], object]] = []

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
        """Do one step of `schedule`; afterwards `loss` and `recorder` have its results.

        Raises:
            NonFiniteError: on every rank, if loss or gradients are to be finite and are not.
                Nothing has changed then.
        """
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
        self.evaluating = evaluate
        if self._is_last and not evaluate:
            loss = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
            self.held.loss_module = None
            if isinstance(loss, nn.Module) and next(loss.buffers(), None) is not None:
                self.held.loss_module = loss
        self._scaler = scaler

        attempt = partial(self._attempt, inputs, targets, loss_fn, optimizer)
        self.recorder.start(self.step, enabled=trace)
        try:
            attempt(learn=False)
        except _UnexpectedStepError:
            first_start = self.recorder.began
            self.recorder.start(self.step, enabled=trace)
            self.recorder.began = first_start  # the step also took the time of its first attempt
            try:
                attempt(learn=True)
            except _UnexpectedStepError:
                raise RefusedError(
                    f"step {self.step}: which outputs of a stage require a gradient is not the "
                    "same in the forward and when that is recomputed; a layer must do the same "
                    "both times"
                ) from None
        if not evaluate:
            self.step += 1
        status.action = None

    def loss(self) -> float:
        """The mini-batch's mean loss over all replicas; every rank must call it."""
        if self._agreed_loss is not None:
            return self._agreed_loss
        return self.wire.from_last(self._own_loss())

    def _attempt(
        self,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None,
        *,
        learn: bool,
    ) -> None:
        """Try to do the step.

        Args:
            inputs: of the mini-batch, on the first rank.
            targets: of the mini-batch, on the last rank.
            loss_fn: the mean loss of a micro-batch.
            optimizer: of this rank's parameters.
            learn: learn what crosses the boundaries even if it seems to be known.

        Raises:
            _UnexpectedStepError: on every rank, if it was not as learnt on one of them.
        """
        self._forget_last_attempt()
        started, announced = self._agree_on_inputs(inputs, learn=learn)
        if optimizer is not None:
            optimizer.zero_grad()
        self._prepare_messages(announced)
        if self._is_last:
            self._prepare_loss(targets, loss_fn, examples=announced[2])
        if self.evaluating and self.held.refused:
            # A training step agrees with the other ranks first.
            raise ValueError(self.held.refused)
        self._gradient_use = _NO_GRADIENTS
        if any(p.requires_grad for p in self._parameters):
            self._gradient_use = _LEAVES_GRADIENTS if optimizer is None else _UPDATES
        self.recorder.span("setup", self._rank, -1, started)

        self._execute(optimizer)

        self._flush()
        self._signatures.keep(announced[0], self._learnt)

    def _forget_last_attempt(self) -> None:
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        self._agreed_loss: float | None = None
        # By the stage and the micro-batch that make or need it, from the action that makes or
        # receives it to the one that sends or uses it.
        self._received: dict[Cell, Tree] = {}
        self._made: dict[Cell, Tree] = {}
        self._gradients: dict[Cell, list[Tensor | None]] = {}
        self._made_gradients: dict[Cell, list[Tensor | None]] = {}
        self.held.begin_step(self.step)

    def _execute(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Do the actions of this rank, one after the other."""
        do = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "Send": self._send,
            "Recv": self._receive,
            "U": partial(self._update, optimizer),
        }
        with ExitStack() as self._work:  # closed by U; an evaluation has no U
            self.held.statistics = None
            if not self.evaluating:
                gather = self.replicas.gather if self.replicas is not None else None
                statistics = once_per_mini_batch(self.held.modules, gather)
                self.held.statistics = self._work.enter_context(statistics)
                self._work.enter_context(self._undone_if_refused())
            self._work.enter_context(self.held.generators_preserved(watch=not self.evaluating))
            if self.replicas is not None and not self.evaluating:
                self.replicas.begin(self._parameters)
            for action in self._program.actions:
                status.action = action
                do[action.kind](action)

    # How a step begins: the ranks agree on the inputs.

    def _agree_on_inputs(
        self, inputs: Tree, *, learn: bool
    ) -> tuple[float | torch.cuda.Event, _Announced]:
        """The start of the step on this rank, and what the first rank announces of the inputs."""
        if self._is_first:
            started = self.recorder.now()
            announced = self._read_inputs(inputs, learn=learn)
        else:
            announced = self.wire.announced(self._rank - 1, evaluate=self.evaluating)
            started = self.recorder.now()  # only now: no rank starts before the first one
        if announced == _REFUSED:
            reason = self._pass_on_refusal()
            if self.replicas is None:
                raise RefusedError(reason)
            raise ValueError(reason)  # other replicas know nothing of it and wait for this one
        if not self._is_last:
            taken = self.wire.announce(announced, self._rank + 1, evaluate=self.evaluating)
            self._untaken.append(taken)
        return started, announced

    def _read_inputs(self, inputs: Tree, *, learn: bool) -> _Announced:
        """First rank: cut the mini-batch, and describe it for the other ranks."""
        try:
            refuse_unplain(inputs, "inputs", _USERS_TENSORS)
            if self._micro_batches > 1:
                refuse_uncut(inputs, "inputs", batch_size(inputs))
            inputs = self._to_device(inputs)
            parts = split(inputs, self._micro_batches)
        except ValueError as error:
            self._refusal = str(error)
            return _REFUSED
        self._user_inputs: list[tuple[Tensor, Tensor]] = []
        self._inputs = [self._cut_from_graph(part) for part in parts]
        tensors, skeleton = flatten(unwrapped(inputs))
        # Which tensors share memory, and where, is part of the signature: see `overlapping`.
        storages = [t.untyped_storage().data_ptr() for t in tensors]
        places = []
        if len(set(storages)) < len(storages):
            places = [
                (storages.index(storage), t.storage_offset())
                for storage, t in zip(storages, tensors, strict=True)
            ]
        self._overlapping = overlapping(flatten(parts[0])[0]) if places else ()
        shapes = [(tuple(t.shape), t.stride(), str(t.dtype), t.requires_grad) for t in tensors]
        text = repr((self.evaluating, self.held.autocast, shapes, places, skeleton))
        signature = int.from_bytes(blake2b(text.encode(), digest_size=7).digest()) + 1
        known = self._signatures.get(signature)
        self._signatures.note_inputs(shapes, skeleton, new=known is None)
        learns = learn or known is None or known.must_learn
        return signature, int(learns), batch_size(inputs)

    def _cut_from_graph(self, part: Tree) -> Tree:
        """A micro-batch without the graph that the user computed it with.

        The user's tensors get their gradients at the end of the step, see `_return_to_user`.
        """
        tensors, skeleton = flatten(part)
        # Probing clones its inputs, so a part has the strides and alignment of a clone at once.
        leaves = [settled(t.detach()).requires_grad_(t.requires_grad) for t in tensors]
        pairs = zip(tensors, leaves, strict=True)
        self._user_inputs += [(given, leaf) for given, leaf in pairs if given.requires_grad]
        return unflatten(leaves, skeleton)

    def _pass_on_refusal(self) -> str:
        """Why the first rank refuses its inputs; told to the next rank, which does the same."""
        reason = self._refusal if self._is_first else self.wire.recv_object(self._rank - 1)
        if not self._is_last:
            self.wire.announce(_REFUSED, self._rank + 1, evaluate=self.evaluating)()
            self.wire.send_object(reason, self._rank + 1)
        return reason

    def _prepare_messages(self, announced: _Announced) -> None:
        """Recall or begin to learn what crosses the boundaries, and post receives."""
        signature, learning, _ = announced
        known = self._signatures.get(signature)
        assert learning or known is not None, "the first rank remembers what this one has forgotten"
        self.held.probing = bool(learning)
        self._parameters = self.held.parameters
        if learning or known is None:
            self._learnt = Learnt(unexpected=known.unexpected if known else 0)
        else:
            self._learnt = known
        if not self._is_first:
            self._user_inputs = []
        if self.links.before is not None:
            self._activations = Inbox(
                self.links.activations_in,
                self._program.activations,
                self._learnt.incoming,
                (self.wire, self.links.before) if learning else None,
            )
        if self.links.after is not None:
            returning = {cell: meta.gradients() for cell, meta in self._learnt.outgoing.items()}
            self._returned = Inbox(self.links.gradients_in, self._program.gradients, returning)

    def _prepare_loss(self, targets: Tree, loss_fn: Loss, examples: int) -> None:
        refuse_unplain(targets, "targets", _USERS_TENSORS)
        code = getattr(loss_fn, "__code__", loss_fn)
        if self.held.probing or code is not self._known_loss:
            refuse_foreign_modules(loss_fn, self.foreign)
            self._known_loss = code
        on_device = None if targets is None else self._to_device(targets)
        self.held.head = Head(
            loss_fn, on_device, examples, self._micro_batches, self._total, self._parameters
        )

    # The actions.

    def _receive(self, action: Action) -> None:
        cell = action.cell
        if action.of == "F":
            self._received[cell] = self._activations.take_tree(cell)
            return
        gradients = self._returned.take(cell)
        if self.held.probing:
            self._learnt.reached[cell] = gradients.pop().bool().tolist() if gradients else []
        # None where the loss does not depend on an output, as without a boundary: optimizers treat
        # None and zeros differently.
        self._gradients[cell] = [
            gradient if reached else None
            for gradient, reached in zip(gradients, self._learnt.reached[cell], strict=True)
        ]

    def _send(self, action: Action) -> None:
        cell = action.cell
        if action.of == "F":
            self._send_activations(cell, self._made.pop(cell))
        else:
            self._send_gradients(cell, self._made_gradients.pop(cell))

    def _forward(self, action: Action) -> None:
        cell = stage, i = action.cell
        if stage == 0:
            inputs, shared = self._inputs[i], self._overlapping
        else:
            inputs, shared = self._received.pop(cell), self._learnt.incoming[cell].overlapping
        started = self.recorder.now()
        if self.evaluating:
            result = self.held.evaluate(cell, inputs, overlapping=shared)
        else:
            keep = cell not in self._program.recomputed
            result = self.held.forward(cell, inputs, keep=keep, overlapping=shared)
        self.recorder.span("F", stage, i, started)
        if stage < self._last_stage and self._has_messages:
            self._made[cell] = result
        elif stage < self._last_stage:
            self._hand_on_activations(cell, result)
        elif self.evaluating:
            self.outputs[i] = result
            self.losses[i] = self.held.score(cell, result)
        else:
            self.losses[i] = result.detach()

    def _send_activations(self, cell: Cell, outputs: Tree) -> None:
        """Send activations, with their description while shapes are learnt."""
        assert self.links.after is not None
        tensors = self._describe_activations(cell, outputs)
        if self.held.probing:
            meta = self._learnt.outgoing[cell]
            self._returned.metas[cell] = meta.gradients(flags=True)
            # Not waited for: two ranks may send each other a description at the same time.
            self._untaken.append(self.wire.start_object(meta, self.links.after))
        self.links.send_activations(tensors)

    def _hand_on_activations(self, cell: Cell, outputs: Tree) -> None:
        """Give activations to the next stage, which this rank holds too, as a message would."""
        tensors = self._describe_activations(cell, outputs)
        stage, i = cell
        meta = self._learnt.outgoing[cell]
        self._learnt.incoming[stage + 1, i] = meta
        # Copies, because the next stage may write to its inputs.
        self._received[stage + 1, i] = as_leaves([copied(t.detach()) for t in tensors], meta)

    def _describe_activations(self, cell: Cell, outputs: Tree) -> list[Tensor]:
        """The tensors of the outputs; their description is learnt, or compared with the learnt one.

        Raises:
            ValueError: one line, if they are not as learnt.
        """
        tensors, skeleton = flatten(outputs)
        if self.held.probing:
            self._learnt.outgoing[cell] = MessageMeta.of(outputs)
        elif not self._learnt.outgoing[cell].describes(tensors, skeleton):
            stage, i = cell
            raise ValueError(
                f"stage {stage}: the outputs of micro-batch {i} changed shape, type or "
                "constants, the inputs not; what a layer returns besides the contents of its "
                "tensors must not depend on data or time"
            )
        if cell not in self._program.recomputed and not self.evaluating:
            self._compare_outputs(cell)
        return tensors

    def _compare_outputs(self, cell: Cell) -> None:
        """After a graph is built: note it if other outputs require a gradient than was learnt."""
        expected = [meta.requires_grad for meta in self._learnt.outgoing[cell].tensors]
        if self.held.requiring_gradient(cell) != expected:
            self.held.unexpected = "which outputs require a gradient has changed"

    def _recompute(self, action: Action) -> None:
        cell = stage, i = action.cell
        started = self.recorder.now()
        self.held.recompute(cell)
        self.recorder.span("R", stage, i, started)
        if stage < self._last_stage:
            self._compare_outputs(cell)

    def _backward(self, action: Action) -> None:
        cell = stage, i = action.cell
        gradients: list[Tensor | None] | None = None  # of the outputs
        if stage < self._last_stage:
            received = iter(self._gradients.pop(cell))
            gradients = [
                next(received) if meta.requires_grad else None
                for meta in self._learnt.outgoing[cell].tensors
            ]
        elif self._scaler is not None:
            gradients = [self._scaler.gradient_of(self.losses[i])]
        if self.replicas is not None and action == self._program.last_backward:
            others = [other for other in self.held.stages if other != stage]
            self.replicas.last_backward(
                parameter for other in others for parameter in self.held.parameters_of(other)
            )
        started = self.recorder.now()
        made = self.held.backward(cell, gradients)
        self.recorder.span("B", stage, i, started)
        if stage > 0:
            if self._has_messages:
                self._made_gradients[cell] = made
            else:
                self._gradients[stage - 1, i] = made

    def _send_gradients(self, cell: Cell, made: list[Tensor | None]) -> None:
        """Send gradients, with zeros for those that do not exist.

        While shapes are learnt a last tensor tells which ones exist.
        """
        metas = self._learnt.incoming[cell].gradients().tensors
        gradients = [
            meta.room(self.held.device).zero_() if gradient is None else gradient
            for gradient, meta in zip(made, metas, strict=True)
        ]
        exist = [gradient is not None for gradient in made]
        if self.held.probing:
            self._learnt.made[cell] = exist
            if made:
                gradients.append(torch.tensor(exist, dtype=torch.uint8, device=self.held.device))
        elif exist != self._learnt.made[cell]:
            self.held.unexpected = "which of the stage's inputs the loss depends on has changed"
        self.links.send_gradients(gradients)

    def _update(self, optimizer: torch.optim.Optimizer | None, _action: Action) -> None:
        """End the work on micro-batches, agree with all ranks that the step counts, and update.

        Raises:
            NonFiniteError: on every rank, if the step is refused. Nothing has changed then.
            _UnexpectedStepError: on every rank, if it was not as learnt on one of them.
        """
        if isinstance(self.held.head, Head):
            self.held.head.refuse_constant()
        if self.replicas is not None:
            # Before statistics are gathered: replicas must meet in the same order.
            self.replicas.finish()
        self._work.close()
        if self._is_first:
            self._return_to_user()
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

    # How a step ends: the ranks agree whether it counts.

    @contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """Around F, R and B: agree with all ranks at the end, and undo a step that is refused."""
        parameters = self._parameters
        buffers = self.held.changing.before_step(learning=self.held.probing)
        with undone_if_it_fails(parameters, buffers) as accumulated:
            yield
            self._agree_on_outcome(accumulated)

    def _agree_on_outcome(self, accumulated: list[Tensor]) -> None:
        """Agree with all ranks how the step went, and raise an error on all if it must not count.

        Args:
            accumulated: gradients of earlier steps, to which those of this step will be added.
        """
        held = self.held
        held.end_step()
        changed_buffer = held.changing.newly_changed()
        if changed_buffer is not None:
            held.unexpected = (
                f"a layer changed its buffer {changed_buffer!r}, which none did before"
            )
        loss = self._own_loss()
        nonfinite = False
        # With a loss scale, inf is expected from time to time, and the scaler skips that update.
        if self.refuse_nonfinite and self._scaler is None:
            nonfinite = self._is_nonfinite(loss, accumulated)

        outcome = _GOOD
        if held.refused:
            outcome = _FORBIDDEN
        elif held.unexpected:
            outcome = _UNEXPECTED
        elif nonfinite:
            outcome = _NON_FINITE
        outcome, uses, self._agreed_loss = self.everyone.agree(outcome, self._gradient_use, loss)
        mixed_uses = uses == _UPDATES | _LEAVES_GRADIENTS
        if outcome == _GOOD and not mixed_uses:
            return

        self._flush()
        if outcome == _FORBIDDEN:
            reasons = [reason for reason in self.everyone.all_gather(held.refused) if reason]
            raise RefusedError(reasons[0])
        if mixed_uses:
            raise RefusedError(
                "optimizer: some ranks got one and others, which have parameters to train, did "
                "not; give every rank an optimizer of its own parameters, or none to any"
            )
        if outcome == _UNEXPECTED:
            self._note_unexpected()
            raise _UnexpectedStepError
        causes = self.everyone.all_gather(self._nonfinite_cause() if nonfinite else None)
        _, text = min((cause for cause in causes if cause is not None), key=itemgetter(0))
        raise NonFiniteError(f"step {self.step}: {text}; allow_nonfinite=True trains on")

    def _is_nonfinite(self, loss: float, accumulated: list[Tensor]) -> bool:
        """Whether a gradient or the loss on this rank is inf or nan."""
        gradients = accumulated + [p.grad for p in self._parameters if p.grad is not None]
        gradients += [leaf.grad for _, leaf in self._user_inputs if leaf.grad is not None]
        return not (all_finite(gradients) and math.isfinite(loss))

    def _nonfinite_cause(self) -> tuple[tuple[int, int], str]:
        """What is inf or nan on this rank, with a key: of all ranks the lowest is the cause.

        A weight comes before what is made with it, then inputs, targets, the loss and gradients.
        Gradients spread from a stage to those before it.
        """
        for name, parameter in self.held.module.named_parameters():
            if not is_finite(parameter):
                return (0, 0), f"{name} on {status.who} was inf or nan before it; load a checkpoint"
        trees: list[tuple[int, str, list[Tree]]] = []
        if self._is_first:
            trees.append((1, "the inputs", self._inputs))
        if isinstance(self.held.head, Head):
            trees.append((2, "the targets", self.held.head.parts))
            trees.append((3, "outputs or loss", [self.losses[i] for i in sorted(self.losses)]))
        for order, what, of_micro_batches in trees:
            for i, tree in enumerate(of_micro_batches):
                # Inputs may hold masks, which are made of -inf.
                if not all(is_finite(t, or_mask=order == 1) for t in flatten(tree)[0]):
                    return (order, 0), (
                        f"{what} of micro-batch {i} on {status.who} are inf or nan; lower the "
                        "learning rate, or mend or leave out such examples"
                    )
        return (4, -self._rank), (
            f"the gradients on {status.who} are inf or nan, and the loss is finite; lower the "
            "learning rate or what scales the loss, or drop the gradients of earlier steps"
        )

    def _note_unexpected(self) -> None:
        """Count the step; warn if from now on each step with this signature has to learn."""
        self._learnt.unexpected += 1
        if not self.held.unexpected:  # on another rank
            return
        _log.info("%s, step %d: %s; learning anew", status.who, self.step, self.held.unexpected)
        if self._learnt.must_learn:
            _log.warning(
                "%s: %s. Such changes come again and again, so from now on every message "
                "brings its description along, and steps are slower",
                status.who,
                self.held.unexpected,
            )

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
