"""Finds the layer that made inf or nan: runs a refused step once more and watches every layer.

The second run has the same inputs, buffers and random state, hence the same numbers. So finding the
layer costs nothing as long as all goes well. Of all micro-batches with inf or nan the first counts,
and in it the layer that was computed first, so every schedule and every K finds the same layer.
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
from repro.gpipe.core.stage import HeldStages
from repro.gpipe.errors import NonFiniteError
from repro.gpipe.exact.nonfinite import is_finite

_LOSS = "the loss"
_Layer = tuple[int, str]  # its index in the whole model, and what a person calls it


@dataclass
class Findings:
    """What one rank found to be inf or nan; micro-batches are numbered within its replica.

    Attributes:
        replica: of the rank.
        where: the rank, or its only stage, for messages.
        refused: what was inf or nan in the first run.
        already: a parameter that was inf or nan before the step.
        inputs: micro-batches whose inputs are.
        targets: micro-batches whose targets are.
        losses: micro-batches whose loss is.
        forward: micro-batch -> the first layer of the rank whose output is.
        backward: micro-batch -> the last layer of the rank that made a gradient which is.
        summed: a gradient that is, though its terms of all micro-batches are finite.
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


def find_nonfinite_layer(
    held: HeldStages,
    everyone: Wire,
    replica: int,
    where: str,
    refused: str,
    run: Callable[[], object],
) -> NonFiniteError:
    """The error to raise, the same on every rank; call it on all of them.

    Args:
        held: the stages of this rank, as the refused step has left them.
        everyone: all ranks of all replicas.
        replica: of this rank.
        where: this rank, or its only stage, for messages.
        refused: what was inf or nan on this rank, if anything.
        run: does the same step once more, which is refused again.
    """
    findings = Findings(replica, where, refused)
    with _watched(held, findings), suppress(NonFiniteError):
        run()
    if isinstance(held.head, Head):
        for i, targets in enumerate(held.head.parts):
            if not _all_finite(flatten(targets)[0]):
                findings.targets.add(i)
    cause = describe(everyone.all_gather(findings))
    return NonFiniteError(f"step {held.step}: {cause}; allow_nonfinite=True trains on")


def describe(findings: Sequence[Findings]) -> str:
    """What went wrong first, by the findings of all stages, and what to do."""
    for stage in findings:
        if stage.already:
            return f"{stage.already} on {stage.where} was inf or nan before it; load a checkpoint"
    micro_batches = [
        (stage.replica, i) for stage in findings for i in stage.losses | stage.backward.keys()
    ]
    if micro_batches:
        replica, i = min(micro_batches)
        return _describe_micro_batch(i, [stage for stage in findings if stage.replica == replica])
    advice = "lower the learning rate, or what scales the loss"
    for stage in findings:
        if stage.summed:
            return (
                f"{stage.summed} on {stage.where} is inf or nan in the sum over micro-batches, in "
                f"none alone; {advice}"
            )
    # Once for all parts of a stage, which have the same name.
    refused = " and ".join(
        dict.fromkeys(f"{stage.refused} on {stage.where}" for stage in findings if stage.refused)
    )
    if len({stage.replica for stage in findings}) > 1:
        return f"{refused} are inf or nan in the sum over replicas, in none alone; {advice}"
    return (
        f"{refused} were inf or nan, and not when the step was run once more: the caller's own "
        "gradients were so before it, or a layer does not do the same twice"
    )


def _describe_micro_batch(i: int, findings: Sequence[Findings]) -> str:
    """What spoilt micro-batch i of one replica."""
    advice = "mend or leave out such examples"
    for stage in findings:
        if i in stage.inputs:
            return f"the inputs of micro-batch {i} on {stage.where} are inf or nan; {advice}"
    forward = [(*stage.forward[i], stage.where) for stage in findings if i in stage.forward]
    for stage in findings:
        if i in stage.targets and min(forward)[1] == _LOSS:
            return f"the targets of micro-batch {i} on {stage.where} are inf or nan; {advice}"
    backward = [(*stage.backward[i], stage.where) for stage in findings if i in stage.backward]
    if forward:
        direction, (_, layer, where) = "forward", min(forward)
    else:
        direction, (_, layer, where) = "backward", max(backward)
    return (
        f"{layer} on {where} made inf or nan in the {direction} of micro-batch {i}; lower the "
        "learning rate, or look at that input"
    )


@contextmanager
def _watched(held: HeldStages, findings: Findings) -> Iterator[None]:
    """Watch the layers of a rank meanwhile."""
    watch = held.watch = _Watch(held, findings)
    try:
        yield
    finally:
        held.watch = None
        for hook in watch.hooks:
            hook.remove()


class _Watch:
    """Checks what each layer returns and the gradients that come back."""

    def __init__(self, held: HeldStages, findings: Findings) -> None:
        self._findings = findings
        self._head = held.head_index
        self._now = 0  # the micro-batch whose B runs
        self.hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._labels = {held.head_index: _LOSS} if held.head is not None else {}
        for index, name, layer in zip(held.indices, held.names, held.module, strict=True):
            label = type(layer).__name__ if name == str(index) else name
            self._labels[index] = f"layer {index} ({label})"
            for key, parameter in layer.named_parameters():
                if parameter.requires_grad:
                    self._hook_parameter(index, f"{name}.{key}", parameter)

    def __call__(self, i: int, index: int, value: Tree) -> Tree:
        """Check what this layer returned for micro-batch i.

        Returns:
            The same values, with hooks that check their gradients.
        """
        if not torch.is_grad_enabled():  # R will return it again, and show what has a gradient
            return value
        tensors, skeleton = flatten(value)
        if not _all_finite(tensors):
            if index < 0:
                self._findings.inputs.add(i)
            if index == self._head:
                self._findings.losses.add(i)
            if index in self._labels:
                returned = (index, self._labels[index])
                self._findings.forward[i] = min(returned, self._findings.forward.get(i, returned))
        return unflatten(
            [self._hooked(i, index, t) if t.requires_grad else t for t in tensors], skeleton
        )

    def _hooked(self, i: int, index: int, tensor: Tensor) -> Tensor:
        """A view with a hook.

        A hook on the tensor itself would also see the gradient of later layers that pass it on.
        """

        def check(gradient: Tensor) -> None:
            self._now = i
            self._check_gradient(index + 1, gradient)

        view = tensor.view_as(tensor)
        view.register_hook(check)
        return view

    def _hook_parameter(self, index: int, name: str, parameter: nn.Parameter) -> None:
        if not is_finite(parameter):
            self._findings.already = name

        def check_sum(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if self._now not in self._findings.backward and not is_finite(parameter.grad):
                self._findings.summed = f"the gradient of {name}"

        self.hooks.append(parameter.register_hook(partial(self._check_gradient, index)))
        self.hooks.append(parameter.register_post_accumulate_grad_hook(check_sum))

    def _check_gradient(self, index: int, gradient: Tensor) -> None:
        """Check a gradient that this layer made; the stage that made a received one checks it."""
        if index in self._labels and not is_finite(gradient):
            made = (index, self._labels[index])
            self._findings.backward[self._now] = max(
                made, self._findings.backward.get(self._now, made)
            )


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all are finite; tensors without a gradient may be masks, which hold -inf."""
    return all(is_finite(t, or_mask=not t.requires_grad) for t in tensors)
