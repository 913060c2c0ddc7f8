"""Which layer made inf or nan? Found by running a refused step once more while every layer is watched.

The second run has the same inputs, buffers and random state, hence the same numbers, so that naming
the culprit costs nothing as long as all goes well. The first micro-batch that went wrong counts,
and in it the layer that came first in the order of computation: every schedule and every K names
the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.core.loss import Head
from repro.gpipe.core.microbatch import Tree, flatten, unflatten
from repro.gpipe.core.stage import Stage
from repro.gpipe.errors import NonFiniteError
from repro.gpipe.exact.nonfinite import is_finite

_LOSS = "the loss"
_Layer = tuple[int, str]  # its index in the whole model, and what a person calls it


@dataclass
class Seen:
    """What one stage saw; micro-batches are numbered within its replica.

    Attributes:
        replica: whose.
        where: which stage.
        refused: what was inf or nan in the first run.
        already: the parameter that was so before it.
        inputs: micro-batches whose inputs are.
        targets: micro-batches whose targets are.
        losses: micro-batches whose loss is.
        forward: micro-batch -> the first layer here that returned it.
        backward: micro-batch -> the layer here that made such a gradient, the last one in the
            model.
        summed: what is, though no micro-batch's is.
    """

    replica: int
    where: str
    refused: str
    already: str = ""
    inputs: set[int] = field(default_factory=set)
    targets: set[int] = field(default_factory=set)
    losses: set[int] = field(default_factory=set)
    forward: dict[int, _Layer] = field(default_factory=dict)
    backward: dict[int, _Layer] = field(default_factory=dict)
    summed: str = ""


def find(
    stage: Stage, everyone: Wire, wire: Wire, refused: str, run: Callable[[], object]
) -> NonFiniteError:
    """The error to raise, the same on every rank, all of which call this.

    Args:
        stage: as the refused step has left it.
        everyone: all stages of all replicas.
        wire: those of this replica.
        refused: what was inf or nan on this stage, if anything.
        run: the same step once more; it is refused again.
    """
    where = f"stage {wire.rank}" + (
        f" of replica {wire.replica}" if everyone.stages > wire.stages else ""
    )
    seen = Seen(wire.replica, where, refused)
    with _watched(stage, seen), suppress(NonFiniteError):
        run()
    if isinstance(stage.head, Head):
        seen.targets = {
            i for i, part in enumerate(stage.head.parts) if not _all_fine(flatten(part)[0])
        }
    return NonFiniteError(
        f"step {stage.step}: {told(everyone.all_gather(seen))}; allow_nonfinite=True trains on"
    )


def told(seen: Sequence[Seen]) -> str:
    """What went wrong first, and what to do, in words."""
    for one in seen:
        if one.already:
            return f"{one.already} on {one.where} was inf or nan before it; load a checkpoint"
    if wrong := [(one.replica, i) for one in seen for i in one.losses | one.backward.keys()]:
        replica, i = min(wrong)
        return _blamed(i, [one for one in seen if one.replica == replica])
    advice = "lower the learning rate, or what scales the loss"
    for one in seen:
        if one.summed:
            return (
                f"{one.summed} on {one.where} is inf or nan in the sum over micro-batches, in none "
                f"alone; {advice}"
            )
    refused = " and ".join(f"{one.refused} on {one.where}" for one in seen if one.refused)
    if len({one.replica for one in seen}) > 1:
        return f"{refused} are inf or nan in the sum over replicas, in none alone; {advice}"
    return (
        f"{refused} were inf or nan, and not when the step was run once more: the caller's own "
        "gradients were so before it, or a layer does not do the same twice"
    )


def _blamed(i: int, seen: Sequence[Seen]) -> str:
    """Who spoilt micro-batch i."""
    for one in seen:
        if i in one.inputs:
            return (
                f"the inputs of micro-batch {i} on {one.where} are inf or nan; mend or leave out "
                "such examples"
            )
    forward = [(*one.forward[i], one.where) for one in seen if i in one.forward]
    for one in seen:
        if i in one.targets and min(forward)[1] == _LOSS:
            return (
                f"the targets of micro-batch {i} on {one.where} are inf or nan; mend or leave out "
                "such examples"
            )
    backward = [(*one.backward[i], one.where) for one in seen if i in one.backward]
    _, layer, where = min(forward) if forward else max(backward)
    way = "forward" if forward else "backward"
    return (
        f"{layer} on {where} made inf or nan in the {way} of micro-batch {i}; lower the learning "
        "rate, or look at that input"
    )


@contextmanager
def _watched(stage: Stage, seen: Seen) -> Iterator[None]:
    """Write down what the layers of a stage do meanwhile."""
    watch = stage.watch = _Watch(stage, seen)
    try:
        yield
    finally:
        stage.watch = None
        for hook in watch.hooks:
            hook.remove()


class _Watch:
    """Looks at what each layer returns and at the gradients that come back."""

    def __init__(self, stage: Stage, seen: Seen) -> None:
        self._seen = seen
        self._head = stage.head_index
        self._now = 0  # the micro-batch whose B runs
        self.hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._labels = {stage.head_index: _LOSS} if stage.head is not None else {}
        named = zip(stage.names, stage.module, strict=True)
        for index, (name, layer) in enumerate(named, stage.head_index - len(stage.names)):
            self._labels[index] = (
                f"layer {index} ({type(layer).__name__ if name == str(index) else name})"
            )
            for key, parameter in layer.named_parameters():
                if parameter.requires_grad:
                    self._hook_parameter(index, f"{name}.{key}", parameter)

    def __call__(self, i: int, index: int, value: Tree) -> Tree:
        """Look at what this layer returned for micro-batch i; the same values, to be looked at again in B."""
        if not torch.is_grad_enabled():  # R will return it again, and tell what has a gradient
            return value
        tensors, skeleton = flatten(value)
        if not _all_fine(tensors):
            if index < 0:
                self._seen.inputs.add(i)
            if index == self._head:
                self._seen.losses.add(i)
            if index in self._labels:
                self._seen.forward.setdefault(i, (index, self._labels[index]))
        return unflatten(
            [self._hooked(i, index, t) if t.requires_grad else t for t in tensors], skeleton
        )

    def _hooked(self, i: int, index: int, tensor: Tensor) -> Tensor:
        """A view, lest a later layer that passes the tensor on looks at the same gradient."""

        def look(gradient: Tensor) -> None:
            self._now = i
            self._look(index + 1, gradient)

        view = tensor.view_as(tensor)
        view.register_hook(look)
        return view

    def _hook_parameter(self, index: int, name: str, parameter: nn.Parameter) -> None:
        if not is_finite(parameter):
            self._seen.already = name

        def look_at_sum(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if self._now not in self._seen.backward and not is_finite(parameter.grad):
                self._seen.summed = f"the gradient of {name}"

        self.hooks.append(parameter.register_hook(partial(self._look, index)))
        self.hooks.append(parameter.register_post_accumulate_grad_hook(look_at_sum))

    def _look(self, index: int, gradient: Tensor) -> None:
        """Look at a gradient that this layer made; what arrives from another stage is looked at there."""
        if index in self._labels and not is_finite(gradient):
            made = (index, self._labels[index])
            self._seen.backward[self._now] = max(made, self._seen.backward.get(self._now, made))


def _all_fine(tensors: Sequence[Tensor]) -> bool:
    """Whether all are finite; where no gradient is wanted -inf is fine too, for masks are made of it."""
    return all(is_finite(t, or_mask=not t.requires_grad) for t in tensors)
