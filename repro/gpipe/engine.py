"""Executes a schedule: for each action, wait for the message it needs, run it on the stage, send what it made."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import ClassVar

import torch
from torch import Tensor

from repro.gpipe import culprit
from repro.gpipe.batchnorm import Statistics, once_per_mini_batch
from repro.gpipe.errors import NonFiniteError, RefusedError
from repro.gpipe.head import Head, Loss
from repro.gpipe.health import told
from repro.gpipe.here import here
from repro.gpipe.links import Links
from repro.gpipe.mailbox import Inbox
from repro.gpipe.message import MessageMeta, settled
from repro.gpipe.microbatch import Tree, Whole, batch_size, flatten, map_leaves, split, unwrapped
from repro.gpipe.nonfinite import all_finite
from repro.gpipe.replicas import Replicas
from repro.gpipe.schedule import Action, Part, Schedule
from repro.gpipe.stage import Stage
from repro.gpipe.trace import Recorder
from repro.gpipe.undo import undone_if_it_fails
from repro.gpipe.wire import Wire

_Metas = dict[int, MessageMeta]  # micro-batch -> what its message holds
_REFUSED = (0, 0, 0)  # what the first stage announces when its inputs are no good


def _nothing() -> None: ...


class Engine:
    """Runs one stage's part of each step.

    Shapes are learnt once for each signature of the inputs: the first stage announces the signature down the pipe
    ahead of the data; where it is new, every message brings its description, and from then on receives are posted
    ahead.

    Args:
        stage: the layers that run here.
        links: to the neighbours.
        replicas: the other copies of this stage, if there are any.
        everyone: all stages of all replicas, who agree that a step is finite before any of them updates; None where
            that is not asked.
    """

    def __init__(self, stage: Stage, links: Links, replicas: Replicas | None, everyone: Wire | None) -> None:
        self.stage = stage
        self.links = links
        self.wire = wire = links.wire
        self.replicas = replicas
        self.everyone = everyone
        self.recorder = Recorder(wire.rank, stage.device)
        self.step = 0
        self._rank = wire.rank
        self._before, self._after = links.before, links.after
        self._parts_of: dict[int, Part] = {}
        self._known: dict[int, tuple[_Metas, _Metas, dict[int, list[bool]]]] = {}
        self._parameters: list[Tensor] = []  # of this stage, listed once a step
        self._frozen: tuple[bool, ...] = ()  # which of them require no gradient
        self._told: Callable[[], object] = _nothing  # kept, since gloo must not lose what it sends if a step fails

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
    ) -> None:
        """One step of `schedule`; afterwards `loss` and `recorder` tell what happened.

        Raises:
            NonFiniteError: on every stage, if loss or gradients are to be finite and are not; nothing has changed then.
        """
        if self.links.closed:  # nothing would finish what is sent
            raise RefusedError(f"stage {self._rank}: this Pipeline is closed; make another one")
        if torch.is_inference_mode_enabled() and not evaluate:
            raise RefusedError(
                "train_step inside torch.inference_mode(): nothing there has a gradient; leave that mode"
            )
        here.step, here.action, here.warm = self.step, None, True
        if id(schedule) not in self._parts_of:
            self._parts_of[id(schedule)] = Part.of(schedule, self._rank)
        self._part = self._parts_of[id(schedule)]
        self.evaluating = evaluate
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        self.stage.step = self.step
        self._agreed: float | None = None
        self._gradients: dict[int, list[Tensor | None]] = {}
        self.stage.kept.clear()  # of a step that failed
        self.recorder.start(self.step, enabled=trace)
        if self._before is None:
            began = self.recorder.now()
            announced = self._announce(inputs)
        else:  # only then, so that no stage's step begins before the first one's
            announced = self.wire.recv_numbers(self._before)
            began = self.recorder.now()
        if self._after is not None:
            self._told = self.wire.isend_numbers(announced, self._after)
            if announced == _REFUSED:
                self._told()
        if optimizer is not None:
            optimizer.zero_grad()
        signature = self._prepare(announced, targets, loss_fn)
        self.recorder.span("setup", -1, began)
        replicas = None if evaluate else self.replicas
        statistics = nullcontext() if evaluate else self._statistics()
        with statistics as self.stage.statistics, self._checked(inputs), self.stage.generators_preserved():
            if replicas is not None:
                replicas.begin()
            for action in self._part.actions:
                here.action = action
                self._do[action.kind](self, action)
            if isinstance(self.stage.head, Head):
                self.stage.head.refuse_constant()
            if replicas is not None:
                replicas.finish()  # before statistics are gathered: replicas must meet in the same order
        if optimizer is not None:
            self._update(optimizer)
        self._flush()
        self._known[signature] = self._incoming, self._outgoing, self._reached
        self.step += not evaluate
        here.action = None

    def relearn(self) -> None:
        """Forget what crosses the boundaries; the next step learns it again."""
        self._known.clear()

    def loss(self) -> float:
        """The mini-batch's mean loss, over all replicas; every stage must ask."""
        return self.wire.from_last(self._own_loss()) if self._agreed is None else self._agreed

    def _own_loss(self) -> float:
        """The same on the last stage alone; micro-batches are added in order."""
        loss = float(sum(self.losses[i] for i in sorted(self.losses)))
        return loss if self._after is not None else self._total(loss)

    @contextmanager
    def _checked(self, inputs: Tree) -> Iterator[None]:
        """Around F, R and B: a step whose loss or gradients are not finite is refused on every stage and undone."""
        if self.everyone is None or self.evaluating:
            yield
            return
        given = flatten(unwrapped(inputs))[0] if self._before is None else []
        leaves = [*self._parameters, *(t for t in given if t.requires_grad and t.is_leaf)]
        with undone_if_it_fails(leaves, self.stage.changing.snapshot(known=not self.stage.probing)):
            yield
            loss = self._own_loss()
            wrong = "" if math.isfinite(loss) else "the loss"
            if not all_finite(leaf.grad for leaf in leaves if leaf.grad is not None):
                wrong = "the gradients"
            bad, self._agreed = self.everyone.agree(bool(wrong), loss)
            if bad or self.stage.watch is not None:
                self._flush()
                raise NonFiniteError(wrong)

    def _flush(self) -> None:
        """Wait until everything is sent."""
        self.links.flush()
        self._told()

    def _total(self, value: float) -> float:
        return value if self.replicas is None else self.replicas.total(value)

    def _statistics(self) -> AbstractContextManager[Statistics]:
        gather = self.replicas.gather if self.replicas is not None else None
        return once_per_mini_batch(self.stage.module, gather)

    def _announce(self, inputs: Tree) -> tuple[int, int, int]:
        """First stage: cut the mini-batch; (signature, whether it is new, N)."""
        try:
            inputs = self._to_device(inputs)
            parts = split(inputs, self._part.schedule.micro_batches)
        except ValueError as error:
            if self._after is not None:
                self.wire.send_numbers(_REFUSED, self._after)
            raise self._refusal(str(error)) from error
        # Probing clones its inputs, and a clone of a part may have other strides and another alignment.
        self._inputs = [map_leaves(Tensor, settled, part) for part in parts]
        if self.stage.watch is not None:
            self._inputs = culprit.detached(self._inputs)
        tensors, skeleton = flatten(unwrapped(inputs))
        shapes = [(tuple(t.shape), t.stride(), str(t.dtype), t.requires_grad) for t in tensors]
        text = repr((self.evaluating, shapes, skeleton))
        signature = int.from_bytes(blake2b(text.encode(), digest_size=7).digest()) + 1
        return signature, int(signature not in self._known), batch_size(inputs)

    def _refusal(self, reason: str) -> ValueError:
        """Every stage raises it; other replicas, if there are any, would wait for this one."""
        return RefusedError(reason) if self.replicas is None else ValueError(reason)

    def _prepare(self, announced: tuple[int, int, int], targets: Tree, loss_fn: Loss) -> int:
        """Prepare to receive what was announced, and on the last stage prepare the loss; the signature."""
        signature, learning, examples = announced
        if announced == _REFUSED:
            raise self._refusal("inputs: the first stage refused them; its own message says why")
        self.stage.probing = bool(learning)
        self._parameters = [*self.stage.module.parameters()]
        frozen = tuple(not p.requires_grad for p in self._parameters)
        if frozen != self._frozen and self._known:
            raise ValueError(
                f"stage {self._rank}: parameters were frozen or unfrozen since the first step, which learnt what "
                "crosses the boundaries; call relearn() on every rank's Pipeline after changing requires_grad"
            )
        self._frozen = frozen
        if not learning and signature not in self._known:
            raise ValueError(
                f"stage {self._rank}: the first stage remembers what crosses the boundaries, and this one does not; "
                "call relearn() on every rank's Pipeline"
            )
        self._incoming, self._outgoing, self._reached = ({}, {}, {}) if learning else self._known[signature]
        if self._before is not None:
            learn_from = (self.wire, self._before) if learning else None
            self._activations = Inbox(self.links.activations_in, self._part.arriving, self._incoming, learn_from)
        if self._after is not None:
            returning = {i: m.gradients() for i, m in self._outgoing.items()}
            self._returned = Inbox(self.links.gradients_in, self._part.returning, returning)
        else:
            on_device = None if targets is None else self._to_device(targets)
            micro_batches = self._part.schedule.micro_batches
            self.stage.head = Head(loss_fn, on_device, examples, micro_batches, self._total)
        return signature

    def _forward(self, action: Action) -> None:
        i = action.micro_batch
        inputs = self._inputs[i] if self._before is None else self._activations.take_tree(i)
        began = self.recorder.now()
        if self.evaluating:
            result = self.stage.evaluate(i, inputs)
        else:
            result = self.stage.forward(i, inputs, keep=i not in self._part.recomputed)
        self.recorder.span("F", i, began)
        if self._after is not None:
            self._send(i, result)
        elif self.evaluating:
            self.outputs[i] = result
            self.losses[i] = self.stage.score(i, result)
        else:
            self.losses[i] = result.detach()

    def _send(self, i: int, outputs: Tree) -> None:
        """Send activations, with their description while shapes are learnt."""
        assert self._after is not None
        tensors, skeleton = flatten(outputs)
        if self.stage.probing:
            meta = MessageMeta.of(outputs)
            self._outgoing[i] = meta
            self._returned.metas[i] = meta.gradients(flags=True)
            self.wire.send_object(meta, self._after)
        elif not self._outgoing[i].describes(tensors, skeleton):
            raise ValueError(
                f"stage {self._rank}: the outputs of micro-batch {i} changed shape, type or constants, the inputs not; "
                "what a layer returns besides the contents of its tensors must not depend on data or time"
            )
        self.links.outbox.send(self.links.activations_out, tensors)

    def _recompute(self, action: Action) -> None:
        if not self._part.schedule.early:
            self._await_gradient(action.micro_batch)
        began = self.recorder.now()
        self.stage.recompute(action.micro_batch)
        self.recorder.span("R", action.micro_batch, began)

    def _await_gradient(self, i: int) -> None:
        if self._after is not None and i not in self._gradients:
            arrived = self._returned.take(i)
            if self.stage.probing:
                self._reached[i] = arrived.pop().bool().tolist() if arrived else []
            # None where the loss does not depend on an output, as without a boundary: optimizers heed the difference.
            self._gradients[i] = [g if r or g.any() else None for g, r in zip(arrived, self._reached[i], strict=True)]

    def _backward(self, action: Action) -> None:
        i = action.micro_batch
        self._await_gradient(i)
        gradients: list[Tensor | None] | None = None
        if self._after is not None:
            arrived = iter(self._gradients.pop(i))
            gradients = [next(arrived) if m.requires_grad else None for m in self._outgoing[i].tensors]
        if self.replicas is not None and action == self._part.last_backward:
            self.replicas.last_backward()
        began = self.recorder.now()
        made = self.stage.backward(i, gradients)
        self.recorder.span("B", i, began)
        if self._before is not None:
            self._return(i, made)

    def _return(self, i: int, made: list[Tensor | None]) -> None:
        """Send gradients, zeros where there is none, and while shapes are learnt also where there is one."""
        metas = self._incoming[i].gradients().tensors
        gradients = [m.room(self.stage.device).zero_() if g is None else g for g, m in zip(made, metas, strict=True)]
        if self.stage.probing and made:
            gradients.append(torch.tensor([g is not None for g in made], dtype=torch.uint8, device=self.stage.device))
        self.links.outbox.send(self.links.gradients_out, gradients)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        """One synchronous update."""
        began = self.recorder.now()
        optimizer.step()
        self.recorder.span("U", -1, began)

    _do: ClassVar[dict[str, Callable[["Engine", Action], None]]] = {"F": _forward, "R": _recompute, "B": _backward}

    def _to_device(self, tree: Tree) -> Tree:
        moved = map_leaves(Tensor, lambda t: t.to(self.stage.device), tree)
        return map_leaves(Whole, lambda whole: Whole(self._to_device(whole.value)), moved)
