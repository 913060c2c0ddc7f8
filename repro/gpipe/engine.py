"""Executes a schedule: for each action, wait for the message it needs, run it on the stage, send what it made."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, ClassVar

import torch
from torch import Tensor

from repro.gpipe.microbatch import Tree, Whole, batch_size, flatten, map_leaves, sizes, split, unwrapped
from repro.gpipe.schedule import Action, Schedule
from repro.gpipe.stage import Stage
from repro.gpipe.trace import Recorder
from repro.gpipe.transport import ACTIVATION, GRADIENT, Inbox, Link, MessageMeta, Outbox, dense
from repro.gpipe.wire import Wire

Loss = Callable[[Any, Any], Tensor]
_REFUSED = (0, 0, 0)  # what the first stage announces when its inputs are no good


class Engine:
    """Runs one stage's part of each step.

    Shapes are learnt once for each signature of the inputs: the first stage announces the signature down the pipe
    ahead of the data; where it is new, every message brings its description, and from then on receives are posted
    ahead.

    Args:
        stage: the layers that run here.
        stages: K.
        rank: j, this stage.
    """

    def __init__(self, stage: Stage, stages: int, rank: int) -> None:
        self.stage = stage
        self.recorder = Recorder(rank, stage.device)
        self.step = 0
        self._before = rank - 1 if rank else None
        self._after = rank + 1 if rank + 1 < stages else None
        self._rank = rank
        self._known: dict[int, tuple[dict[int, MessageMeta], dict[int, MessageMeta]]] = {}
        self._frozen = stage.frozen()
        self.wire = Wire(stages, rank)
        if stages > 1:
            self._outbox = Outbox()
            device = stage.device
            if self._before is not None:
                self._activations_in = Link(rank, self._before, ACTIVATION, device, outgoing=False)
                self._gradients_out = Link(rank, self._before, GRADIENT, device, outgoing=True)
            if self._after is not None:
                self._activations_out = Link(rank, self._after, ACTIVATION, device, outgoing=True)
                self._gradients_in = Link(rank, self._after, GRADIENT, device, outgoing=False)

    def run(
        self,
        schedule: Schedule,
        inputs: Tree,
        targets: Tree,
        loss_fn: Loss,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        evaluate: bool = False,
    ) -> None:
        """One step of `schedule`; afterwards `losses`, on the last stage, and `recorder` tell what happened."""
        self.schedule = schedule
        self.evaluating = evaluate
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tree] = {}
        self.stage.step = self.step
        self._gradients: dict[int, list[Tensor]] = {}
        self.stage.kept.clear()  # of a step that failed
        self.recorder.start(self.step)
        with self.recorder.span("setup"):
            if optimizer is not None:
                optimizer.zero_grad()
            announced = self._announce(inputs) if self._before is None else None
        signature = self._agree(announced, targets, loss_fn)
        for action in schedule.ranks[self._rank]:
            self._do[action.kind](self, action)
        if optimizer is not None:
            with self.recorder.span("U"):
                optimizer.step()
        if self._before is not None or self._after is not None:
            self._outbox.flush()
        self._known[signature] = self._incoming, self._outgoing
        self.step += not evaluate

    def relearn(self) -> None:
        """Forget what crosses the boundaries; the next step learns it again."""
        self._known.clear()

    def close(self) -> None:
        """End the helper thread."""
        if self._before is not None or self._after is not None:
            self._outbox.close()

    def _announce(self, inputs: Tree) -> tuple[int, int, int]:
        """First stage: cut the mini-batch and tell the next stage (signature, whether it is new, N)."""
        try:
            inputs = self._to_device(inputs)
            parts = split(inputs, self.schedule.micro_batches)
        except ValueError:
            if self._after is not None:
                self.wire.send_numbers(_REFUSED, self._after)
            raise
        # Dense copies where a cut leaves gaps: a clone, which probing makes, would have other strides.
        self._parts = [map_leaves(Tensor, dense, part) for part in parts]
        tensors, skeleton = flatten(unwrapped(inputs))
        shapes = [(tuple(t.shape), t.stride(), str(t.dtype)) for t in tensors]
        text = repr((self.evaluating, shapes, skeleton))
        signature = int.from_bytes(blake2b(text.encode(), digest_size=7).digest()) + 1
        return signature, int(signature not in self._known), batch_size(inputs)

    def _agree(self, announced: tuple[int, int, int] | None, targets: Tree, loss_fn: Loss) -> int:
        """Pass the announcement on, prepare to receive, and on the last stage prepare the loss; the signature."""
        if announced is None:
            assert self._before is not None
            announced = self.wire.recv_numbers(self._before)
        if self._after is not None:
            self.wire.send_numbers(announced, self._after)
        signature, self.learning, examples = announced
        if announced == _REFUSED:
            raise ValueError("inputs: the first stage refused them; its own message says why")
        self.stage.probing = bool(self.learning)
        if self.stage.frozen() != self._frozen and self._known:
            raise ValueError(
                f"stage {self._rank}: parameters were frozen or unfrozen since the first step, which learnt what "
                "crosses the boundaries; call relearn() on every rank's Pipeline after changing requires_grad"
            )
        self._frozen = self.stage.frozen()
        self._incoming, self._outgoing = self._known.get(signature, ({}, {}))
        if self._before is not None:
            order = [a.micro_batch for a in self.schedule.ranks[self._before] if a.kind == "F"]
            learn_from = self.wire if self.learning else None
            self._activations = Inbox(self._activations_in, order, self._incoming, learn_from)
        if self._after is not None:
            order = [a.micro_batch for a in self.schedule.ranks[self._after] if a.kind == "B"]
            returning = {i: m.gradients() for i, m in self._outgoing.items()}
            self._returned = Inbox(self._gradients_in, order, returning)
        else:
            self._set_head(targets, loss_fn, examples)
        return signature

    def _set_head(self, targets: Tree, loss_fn: Loss, examples: int) -> None:
        """Last stage: each micro-batch's share of the mini-batch mean."""
        counts = sizes(examples, self.schedule.micro_batches)
        parts: list[Tree] = [None] * len(counts)
        if targets is not None:
            targets = self._to_device(targets)
            if (found := batch_size(targets, "targets")) != examples:
                raise ValueError(f"targets: {found} examples, but the inputs have {examples}")
            parts = split(targets, len(counts), "targets")

        def head(i: int, outputs: Tree) -> Tensor:
            loss = loss_fn(outputs, parts[i])
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise ValueError(f"loss_fn: returned {found}, needed is one number, the mean over the micro-batch")
            return loss * (counts[i] / examples)

        self.stage.head = head

    def _forward(self, action: Action) -> None:
        i = action.micro_batch
        inputs = self._parts[i] if self._before is None else self._activations.take_tree(i)
        keep = i not in self.schedule.recomputed(self._rank)
        with self.recorder.span("F", i):
            result = self.stage.evaluate(i, inputs) if self.evaluating else self.stage.forward(i, inputs, keep=keep)
        if self._after is not None:
            self._send(i, result)
        elif self.evaluating:
            assert self.stage.head is not None
            self.outputs[i] = result
            self.losses[i] = self.stage.head(i, result).detach()
        else:
            self.losses[i] = result.detach()

    def _send(self, i: int, outputs: Tree) -> None:
        """Send activations, with their description while shapes are learnt."""
        assert self._after is not None
        meta = MessageMeta.of(outputs)
        if self.learning:
            self._outgoing[i] = meta
            self._returned.metas[i] = meta.gradients()
            self.wire.send_object(meta, self._after)
        elif not meta.fits(self._outgoing[i]):
            raise ValueError(
                f"stage {self._rank}: the outputs of micro-batch {i} changed shape, type or constants, the inputs not; "
                "what a layer returns besides the contents of its tensors must not depend on data or time"
            )
        self._outbox.send(self._activations_out, flatten(outputs)[0])

    def _recompute(self, action: Action) -> None:
        if not self.schedule.early:
            self._await_gradient(action.micro_batch)
        with self.recorder.span("R", action.micro_batch):
            self.stage.recompute(action.micro_batch)

    def _await_gradient(self, i: int) -> None:
        if self._after is not None and i not in self._gradients:
            self._gradients[i] = self._returned.take(i)

    def _backward(self, action: Action) -> None:
        i = action.micro_batch
        self._await_gradient(i)
        gradients: list[Tensor | None] | None = None
        if self._after is not None:
            arrived = iter(self._gradients.pop(i))
            gradients = [next(arrived) if m.requires_grad else None for m in self._outgoing[i].tensors]
        with self.recorder.span("B", i):
            made = self.stage.backward(i, gradients)
        if self._before is not None:
            self._outbox.send(self._gradients_out, [g for g in made if g is not None])

    _do: ClassVar[dict[str, Callable[["Engine", Action], None]]] = {"F": _forward, "R": _recompute, "B": _backward}

    def _to_device(self, tree: Tree) -> Tree:
        moved = map_leaves(Tensor, lambda t: t.to(self.stage.device), tree)
        return map_leaves(Whole, lambda whole: Whole(self._to_device(whole.value)), moved)

    def loss(self) -> float:
        """Mean loss of the mini-batch on the last stage, 0 elsewhere; micro-batches are added in order."""
        return float(sum(self.losses[i] for i in sorted(self.losses)))
