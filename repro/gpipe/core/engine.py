"""Executes a schedule: does one action after the other, as the schedule lists them."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.mailbox import Inbox
from repro.gpipe.comm.message import MessageMeta, overlapping, settled
from repro.gpipe.core.learnt import Learnt, Signatures
from repro.gpipe.core.loss import Head, Loss, LossModule, Weighted
from repro.gpipe.core.microbatch import (
    Tree,
    Whole,
    batch_size,
    flatten,
    map_leaves,
    refuse_uncuttable,
    split,
    unflatten,
    unwrapped,
)
from repro.gpipe.core.recorder import Recorder
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.scaler import GradScaler
from repro.gpipe.core.stage import Stage
from repro.gpipe.errors import EveryRankError, NonFiniteError, RefusedError
from repro.gpipe.exact.batchnorm import Statistics, once_per_mini_batch
from repro.gpipe.exact.nonfinite import all_finite
from repro.gpipe.exact.rollback import undone_if_it_fails
from repro.gpipe.runtime.health import told
from repro.gpipe.runtime.status import here
from repro.gpipe.schedule.actions import Action, Program, Schedule

_log = logging.getLogger(__name__)
_REFUSED = (0, 0, 0)  # what the first stage announces when its inputs are no good
# how a step went on one stage; on all of them, the greatest
_GOOD, _NON_FINITE, _UNEXPECTED, _FORBIDDEN = range(4)
# what a stage that has parameters to train does with their gradients
_UPDATES, _LEAVES_GRADIENTS = 1, 2


def _nothing() -> None: ...


class _UnexpectedStepError(EveryRankError):
    """A step in which something was not as learnt, on some stage; it has changed nothing."""


class Engine:
    """Runs one stage's part of each step.

    What crosses the boundaries is learnt once for each signature of the inputs: the first stage
    announces the signature down the pipe ahead of the data; where it is new, every message brings
    its description, and from then on receives are posted ahead. A step that turns out to be unlike
    the one that was learnt from, since a layer was frozen, say, or works in place from now on, is
    undone on all stages and done once more, learning.

    Args:
        stage: the layers that run here.
        links: to the neighbours.
        replicas: the other copies of this stage, if there are any.
        everyone: all stages of all replicas, who agree how a step went before any of them updates.
        refuse_nonfinite: whether a step whose loss or gradients are not finite is refused.
    """

    def __init__(
        self,
        stage: Stage,
        links: Links,
        replicas: Replicas | None,
        everyone: Wire,
        *,
        refuse_nonfinite: bool,
    ) -> None:
        self.stage = stage
        self.links = links
        self.wire = wire = links.wire
        self.replicas = replicas
        self.everyone = everyone
        self.refuse_nonfinite = refuse_nonfinite
        self.recorder = Recorder(wire.rank, stage.device)
        self.step = 0
        self._rank = wire.rank
        self._before, self._after = links.before, links.after
        self._loss_module: LossModule | None = None  # on the last stage, if the loss is a module
        self._programs: dict[int, Program] = {}
        self._signatures: Signatures | None = None  # made when M is known
        self._parameters: list[nn.Parameter] = []  # of this stage, listed once a step
        # kept, since gloo must not lose what it sends if a step fails
        self._told: Callable[[], object] = _nothing

    @told()
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
        """One step of `schedule`; afterwards `loss` and `recorder` tell what happened.

        Raises:
            NonFiniteError: on every stage, if loss or gradients are to be finite and are not;
                nothing has changed then.
        """
        if self.links.closed:  # nothing would finish what is sent
            raise RefusedError(f"stage {self._rank}: this Pipeline is closed; make another one")
        if torch.is_inference_mode_enabled() and not evaluate:
            raise RefusedError(
                "train_step inside torch.inference_mode(): nothing there has a gradient; leave "
                "that mode"
            )
        here.step, here.action, here.warm = self.step, None, True
        if id(schedule) not in self._programs:
            self._programs[id(schedule)] = Program.of(schedule, self._rank)
        self._program = self._programs[id(schedule)]
        self._micro_batches = schedule.micro_batches
        if self._signatures is None:
            self._signatures = Signatures(schedule.micro_batches)
        self.evaluating = evaluate
        self._scaler = scaler
        self.stage.takes_user_inputs = self._before is None
        self.recorder.start(self.step, enabled=trace)
        try:
            self._attempt(inputs, targets, loss_fn, optimizer, learn=False)
        except _UnexpectedStepError:
            began = self.recorder.began
            self.recorder.start(self.step, enabled=trace)
            self.recorder.began = began  # the first attempt has cost its time, too
            try:
                self._attempt(inputs, targets, loss_fn, optimizer, learn=True)
            except _UnexpectedStepError:
                raise RefusedError(
                    f"step {self.step}: which outputs of a stage require a gradient is not the "
                    "same in the forward and when that is recomputed; a layer must do the same "
                    "both times"
                ) from None
        self.step += not evaluate
        here.action = None

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
            inputs: of the mini-batch, and so on as for `run`.
            targets: likewise.
            loss_fn: likewise.
            optimizer: likewise.
            learn: learn what crosses the boundaries also where it seems to be known.

        Raises:
            _UnexpectedStepError: on every stage, if it was not as learnt on one of them.
        """
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        self.stage.begin_step(self.step)
        self._agreed: float | None = None
        # By micro-batch, from the action that makes or receives it to the one that sends or uses
        # it.
        self._received: dict[int, Tree] = {}
        self._made: dict[int, Tree] = {}
        self._gradients: dict[int, list[Tensor | None]] = {}
        self._made_gradients: dict[int, list[Tensor | None]] = {}
        if self._before is None:
            began = self.recorder.now()
            announced = self._announce(inputs, learn=learn)
        else:  # only then, so that no stage's step begins before the first one's
            announced = self.wire.announced(self._before, evaluate=self.evaluating)
            began = self.recorder.now()
        if announced == _REFUSED:
            raise self._refusal(self._pass_on_refusal())
        if self._after is not None:
            self._told = self.wire.announce(announced, self._after, evaluate=self.evaluating)
        if optimizer is not None:
            optimizer.zero_grad()
        self._prepare(announced, targets, loss_fn)
        if self.evaluating and self.stage.refused:  # a training step tells the other stages first
            raise ValueError(self.stage.refused)
        trains = any(p.requires_grad for p in self._parameters)
        self._updates = trains * (_LEAVES_GRADIENTS if optimizer is None else _UPDATES)
        self.recorder.span("setup", -1, began)
        replicas = None if self.evaluating else self.replicas
        statistics = nullcontext() if self.evaluating else self._statistics()
        do = {
            "F": self._forward,
            "R": self._recompute,
            "B": self._backward,
            "Send": self._send,
            "Recv": self._receive,
            "U": partial(self._update, optimizer),
        }
        with ExitStack() as self._work:  # U ends it; evaluation has none
            self.stage.statistics = self._work.enter_context(statistics)
            self._work.enter_context(self._checked())
            self._work.enter_context(self._generators_preserved())
            if replicas is not None:
                replicas.begin(self._parameters)
            for action in self._program.actions:
                here.action = action
                do[action.kind](action)
        self._flush()
        assert self._signatures is not None
        self._signatures.keep(announced[0], self._learnt)

    def loss(self) -> float:
        """The mini-batch's mean loss, over all replicas; every stage must ask."""
        return self.wire.from_last(self._own_loss()) if self._agreed is None else self._agreed

    def _own_loss(self) -> float:
        """The same on the last stage alone; micro-batches are added in order."""
        loss = float(sum(self.losses[i] for i in sorted(self.losses)))
        return loss if self._after is not None else self._total(loss)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Around F, R and B: a step that is not to count is refused on every stage and undone."""
        if self.evaluating:
            yield
            return
        stage = self.stage
        parameters, buffers = self._parameters, stage.changing.before_step(learning=stage.probing)
        if self._loss_module is not None:
            of_loss, buffers_of_loss = self._loss_module.before_step(parameters)
            parameters, buffers = parameters + of_loss, buffers + buffers_of_loss
        with undone_if_it_fails(parameters, buffers) as accumulated:
            yield
            stage.end_step()
            if (name := stage.changing.newly_changed()) is not None:
                stage.unexpected = f"a layer changed its buffer {name!r}, which none did before"
            if self._loss_module is not None:
                stage.refused = stage.refused or self._loss_module.refusal()
            loss = self._own_loss()
            # With a loss scale, inf is expected from time to time, and the scaler skips that
            # update.
            check = self.refuse_nonfinite and self._scaler is None
            wrong = self._nonfinite(loss, accumulated) if check else ""
            state = _UNEXPECTED if stage.unexpected else _NON_FINITE if wrong else _GOOD
            state = _FORBIDDEN if stage.refused else state
            state, updates, self._agreed = self.everyone.agree(state, self._updates, loss)
            if state == _GOOD and updates != _UPDATES | _LEAVES_GRADIENTS and stage.watch is None:
                return
            self._flush()
            if state == _FORBIDDEN:
                raise RefusedError(next(filter(None, self.everyone.all_gather(stage.refused))))
            if updates == _UPDATES | _LEAVES_GRADIENTS:
                raise RefusedError(
                    "optimizer: some stages got one and others, which have parameters to train, "
                    "did not; give every rank an optimizer of its own stage, or none to any"
                )
            if state == _UNEXPECTED and stage.watch is None:
                self._note_unexpected()
                raise _UnexpectedStepError
            raise NonFiniteError(wrong)

    def _nonfinite(self, loss: float, accumulated: list[Tensor]) -> str:
        """What is inf or nan here: "the gradients", "the loss", or nothing."""
        gradients = accumulated + [p.grad for p in self._parameters if p.grad is not None]
        gradients += [part.grad for _, part in self._given if part.grad is not None]
        if not all_finite(gradients):
            return "the gradients"
        return "" if math.isfinite(loss) else "the loss"

    def _note_unexpected(self) -> None:
        """Count the step, and warn where from now on each step with this signature has to learn."""
        self._learnt.unexpected += 1
        if self.stage.unexpected:
            _log.info(
                "stage %d, step %d: %s; learning anew", self._rank, self.step, self.stage.unexpected
            )
            if self._learnt.must_learn:
                _log.warning(
                    "stage %d: %s. Such changes come again and again, so from now on every "
                    "message brings its description along, and steps are slower",
                    self._rank,
                    self.stage.unexpected,
                )

    def _return_to_user(self) -> None:
        """Hand the gradients of the inputs to the user's tensors, or to whatever these were computed from."""
        pairs = [(given, part.grad) for given, part in self._given if part.grad is not None]
        if pairs:
            torch.autograd.backward(
                [given for given, _ in pairs], [gradient for _, gradient in pairs]
            )

    def _flush(self) -> None:
        """Wait until everything is sent."""
        self.links.flush()
        self._told()

    def _total(self, value: float) -> float:
        return value if self.replicas is None else self.replicas.total(value)

    def _generators_preserved(self) -> AbstractContextManager[None]:
        return self.stage.generators_preserved(watch=not self.evaluating)

    def _statistics(self) -> AbstractContextManager[Statistics]:
        gather = self.replicas.gather if self.replicas is not None else None
        return once_per_mini_batch(self.stage.module, gather)

    def _announce(self, inputs: Tree, *, learn: bool) -> tuple[int, int, int]:
        """First stage: cut the mini-batch; (signature, whether it is to be learnt, N)."""
        try:
            refuse_uncuttable(unwrapped(inputs), "inputs")
            inputs = self._to_device(inputs)
            parts = split(inputs, self._micro_batches)
        except ValueError as error:
            self._reason = str(error)
            return _REFUSED
        self._given: list[tuple[Tensor, Tensor]] = []
        self._inputs = [self._own(part) for part in parts]
        tensors, skeleton = flatten(unwrapped(inputs))
        # Which ones lie in the same memory, and where, counts too: see `overlapping`.
        storages = [t.untyped_storage().data_ptr() for t in tensors]
        places = [
            (storages.index(s), t.storage_offset()) for s, t in zip(storages, tensors, strict=True)
        ]
        places = places if len({*storages}) < len(storages) else []
        shapes = [(tuple(t.shape), t.stride(), str(t.dtype), t.requires_grad) for t in tensors]
        text = repr((self.evaluating, self.stage.autocast, shapes, places, skeleton))
        signature = int.from_bytes(blake2b(text.encode(), digest_size=7).digest()) + 1
        assert self._signatures is not None
        known = self._signatures.get(signature)
        self._signatures.note_inputs(shapes, skeleton, new=known is None)
        self._overlapping = overlapping(flatten(parts[0])[0]) if places else ()
        return signature, int(learn or known is None or known.must_learn), batch_size(inputs)

    def _own(self, part: Tree) -> Tree:
        """A micro-batch without what the user computed it from, which gets its gradient at the end of the step."""
        tensors, skeleton = flatten(part)
        # Probing clones its inputs, and a clone of a part may have other strides and another
        # alignment.
        own = [settled(t.detach()).requires_grad_(t.requires_grad) for t in tensors]
        self._given += [(t, mine) for t, mine in zip(tensors, own, strict=True) if t.requires_grad]
        return unflatten(own, skeleton)

    def _pass_on_refusal(self) -> str:
        """Why the first stage refuses its inputs; every stage sends it on before it raises the same error."""
        reason = self._reason if self._before is None else self.wire.recv_object(self._before)
        if self._after is not None:
            self.wire.announce(_REFUSED, self._after, evaluate=self.evaluating)()
            self.wire.send_object(reason, self._after)
        return reason

    def _refusal(self, reason: str) -> ValueError:
        """Every stage raises it; other replicas, if there are any, would wait for this one."""
        return RefusedError(reason) if self.replicas is None else ValueError(reason)

    def _prepare(self, announced: tuple[int, int, int], targets: Tree, loss_fn: Loss) -> None:
        """Prepare to receive what was announced, and on the last stage prepare the loss."""
        signature, learning, examples = announced
        assert self._signatures is not None
        known = self._signatures.get(signature)
        assert learning or known is not None, (
            "the first stage remembers what this one has forgotten"
        )
        self.stage.probing = bool(learning)
        self._parameters = [*self.stage.module.parameters()]
        if learning or known is None:
            self._learnt = Learnt(unexpected=known.unexpected if known else 0)
        else:
            self._learnt = known
        learnt = self._learnt
        if self._before is not None:
            self._given = []
            learn_from = (self.wire, self._before) if learning else None
            self._activations = Inbox(
                self.links.activations_in, self._program.activations, learnt.incoming, learn_from
            )
        if self._after is not None:
            returning = {i: m.gradients() for i, m in learnt.outgoing.items()}
            self._returned = Inbox(self.links.gradients_in, self._program.gradients, returning)
        else:
            refuse_uncuttable(targets, "targets")
            on_device = None if targets is None else self._to_device(targets)
            loss = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
            if not isinstance(loss, nn.Module):
                self._loss_module = None
            elif self._loss_module is None or self._loss_module.module is not loss:
                self._loss_module = LossModule(loss)
            self.stage.head = Head(loss_fn, on_device, examples, self._micro_batches, self._total)

    def _receive(self, action: Action) -> None:
        i = action.micro_batch
        if action.of == "F":
            self._received[i] = self._activations.take_tree(i)
        else:
            arrived = self._returned.take(i)
            if self.stage.probing:
                self._learnt.reached[i] = arrived.pop().bool().tolist() if arrived else []
            # None where the loss does not depend on an output, as without a boundary: optimizers
            # heed the difference.
            reached = self._learnt.reached[i]
            self._gradients[i] = [g if r else None for g, r in zip(arrived, reached, strict=True)]

    def _send(self, action: Action) -> None:
        i = action.micro_batch
        if action.of == "F":
            self._send_activations(i, self._made.pop(i))
        else:
            self._send_gradients(i, self._made_gradients.pop(i))

    def _forward(self, action: Action) -> None:
        i = action.micro_batch
        if self._before is None:
            inputs, shared = self._inputs[i], self._overlapping
        else:
            inputs, shared = self._received.pop(i), self._learnt.incoming[i].overlapping
        began = self.recorder.now()
        if self.evaluating:
            result = self.stage.evaluate(i, inputs, overlapping=shared)
        else:
            result = self.stage.forward(
                i, inputs, keep=i not in self._program.recomputed, overlapping=shared
            )
        self.recorder.span("F", i, began)
        if self._after is not None:
            self._made[i] = result
        elif self.evaluating:
            self.outputs[i] = result
            self.losses[i] = self.stage.score(i, result)
        else:
            self.losses[i] = result.detach()

    def _send_activations(self, i: int, outputs: Tree) -> None:
        """Send activations, with their description while shapes are learnt."""
        assert self._after is not None
        tensors, skeleton = flatten(outputs)
        if self.stage.probing:
            meta = MessageMeta.of(outputs)
            self._learnt.outgoing[i] = meta
            self._returned.metas[i] = meta.gradients(flags=True)
            self.wire.send_object(meta, self._after)
        elif not self._learnt.outgoing[i].describes(tensors, skeleton):
            raise ValueError(
                f"stage {self._rank}: the outputs of micro-batch {i} changed shape, type or "
                "constants, the inputs not; what a layer returns besides the contents of its "
                "tensors must not depend on data or time"
            )
        self.links.outbox.send(self.links.activations_out, tensors)
        if i not in self._program.recomputed and not self.evaluating:
            self._compare_outputs(i)

    def _compare_outputs(self, i: int) -> None:
        """Note it if other outputs of micro-batch i require a gradient than was learnt; after its graph is built."""
        expected = [meta.requires_grad for meta in self._learnt.outgoing[i].tensors]
        if self.stage.requiring_gradient(i) != expected:
            self.stage.unexpected = "which outputs require a gradient has changed"

    def _recompute(self, action: Action) -> None:
        i = action.micro_batch
        began = self.recorder.now()
        self.stage.recompute(i)
        self.recorder.span("R", i, began)
        if self._after is not None:
            self._compare_outputs(i)

    def _backward(self, action: Action) -> None:
        i = action.micro_batch
        gradients: list[Tensor | None] | None = None
        if self._after is not None:
            arrived = iter(self._gradients.pop(i))
            gradients = [
                next(arrived) if m.requires_grad else None for m in self._learnt.outgoing[i].tensors
            ]
        elif self._scaler is not None:
            gradients = [self._scaler.gradient_of(self.losses[i])]
        if self.replicas is not None and action == self._program.last_backward:
            self.replicas.last_backward()
        began = self.recorder.now()
        made = self.stage.backward(i, gradients)
        self.recorder.span("B", i, began)
        if self._before is not None:
            self._made_gradients[i] = made

    def _send_gradients(self, i: int, made: list[Tensor | None]) -> None:
        """Send gradients, zeros where there is none, and while shapes are learnt also where there is one."""
        metas = self._learnt.incoming[i].gradients().tensors
        gradients = [
            m.room(self.stage.device).zero_() if g is None else g
            for g, m in zip(made, metas, strict=True)
        ]
        exist = [g is not None for g in made]
        if self.stage.probing:
            self._learnt.made[i] = exist
            if made:
                gradients.append(torch.tensor(exist, dtype=torch.uint8, device=self.stage.device))
        elif exist != self._learnt.made[i]:
            self.stage.unexpected = "which of the stage's inputs the loss depends on has changed"
        self.links.outbox.send(self.links.gradients_out, gradients)

    def _update(self, optimizer: torch.optim.Optimizer | None, _action: Action) -> None:
        """End the work on micro-batches, agree with all stages that the step counts, and update.

        Raises:
            NonFiniteError: on every stage, if the step is refused; nothing has changed then.
            _UnexpectedStepError: on every stage, if it was not as learnt on one of them.
        """
        if isinstance(self.stage.head, Head):
            self.stage.head.refuse_constant()
        if self.replicas is not None:
            # before statistics are gathered: replicas must meet in the same order
            self.replicas.finish()
        self._work.close()
        if self._before is None:
            self._return_to_user()
        scaler = self._scaler
        update = optimizer is not None
        if scaler is not None:
            update = scaler.agree(self._parameters, update=update)
        if optimizer is not None:
            began = self.recorder.now()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
            self.recorder.span("U", -1, began)
        if scaler is not None and update:
            scaler.update()

    def _to_device(self, tree: Tree) -> Tree:
        moved = map_leaves(Tensor, lambda t: t.to(self.stage.device), tree)
        return map_leaves(Whole, lambda whole: Whole(self._to_device(whole.value)), moved)
