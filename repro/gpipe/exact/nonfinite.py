"""Whether tensors are finite: all gradients of each step."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.exact.guard import Finding, Guard, Outcome
from repro.gpipe.runtime.status import status
from repro.gpipe.tree import flatten


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no element is inf or nan, with one kernel for each dtype; all on one device.

    It calls the private function by which torch's GradScaler checks gradients, about ten times as
    fast as public ones. That multiplies by one in place, which keeps every bit. On a GPU it is not
    there for bfloat16 (torch 2.11), whose norms are finite if the elements are.
    """
    groups: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        values = real_values(tensor)
        groups[values.dtype].append(values)
    for dtype, members in groups.items():
        device = members[0].device
        if dtype == torch.bfloat16 and device.type != "cpu":
            norms = torch.stack(torch._foreach_norm(members))
            if is_finite(norms) or all(map(is_finite, members)):  # a norm may overflow
                continue
            return False
        # torch needs float32 here for gradients of every dtype.
        found_inf = torch.zeros((), dtype=torch.float32, device=device)
        one = torch.ones_like(found_inf)
        torch._amp_foreach_non_finite_check_and_unscale_(members, found_inf, one)
        if found_inf.item():
            return False
    return True


@torch.no_grad()
def is_finite(tensor: Tensor, *, or_mask: bool = False) -> bool:
    """Whether no element of a tensor, which is only read, is inf or nan.

    With `or_mask` -inf is allowed too, since masks are made of it.
    """
    values = real_values(tensor)
    # A sum makes no copy, and a finite sum has finite terms. A sum of finite terms may overflow.
    if math.isfinite(values.sum().item()):
        return True
    allowed = values.isfinite()
    if or_mask:
        allowed |= values == -math.inf
    return bool(allowed.all())


def real_values(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stores, as real numbers; a view if possible."""
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    if values.is_neg():
        values = values.resolve_neg()
    # Autograd returns lazy conjugates, which cannot be viewed as real numbers.
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


class NonFinite(Guard):
    """A loss or gradient that is inf or nan spoils all weights in one update.

    Found in every step by one kernel over all gradients; off with a scaler, which expects inf.
    """

    def end_step(self, step: Any) -> Finding | None:
        if step.scaler is not None:
            return None
        if math.isfinite(step.own_loss) and all_finite(step.gradients()):
            return None
        order, text = self._cause(step)
        return Finding(Outcome.NON_FINITE, text, order)

    def _cause(self, step: Any) -> tuple[tuple[int, int], str]:
        """What is inf or nan on this rank, behind its place; the first of all ranks is the cause.

        A weight comes before what is made with it, then inputs, targets, the loss and gradients,
        which spread from a stage to those before it.
        """
        for name, parameter in self._layers.module.named_parameters():
            if not is_finite(parameter):
                text = f"{name} on {status.who} was inf or nan before it; load a checkpoint"
                return (0, 0), text
        losses = [step.losses[i] for i in sorted(step.losses)]
        for order, what, of_micro_batches in (
            (1, "the inputs", [message.tensors for message in step.inputs]),
            (2, "the targets", [] if step.mean_loss is None else step.mean_loss.parts),
            (3, "outputs or loss", losses),
        ):
            for i, tree in enumerate(of_micro_batches):
                # Inputs may hold masks, which are made of -inf.
                if not all(is_finite(t, or_mask=order == 1) for t in flatten(tree)[0]):
                    what += f" of micro-batch {i} on {status.who} are inf or nan"
                    advice = "lower the learning rate, or leave out such examples"
                    return (order, 0), f"{what}; {advice}"
        what = f"the gradients on {status.who} are inf or nan, and the loss is finite"
        advice = "lower the learning rate or the loss, or drop the gradients of earlier steps"
        return (4, -step.rank), f"{what}; {advice}"
