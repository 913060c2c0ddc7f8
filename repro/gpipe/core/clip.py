"""Gradient clipping by the norm over all stages, as torch.nn.utils.clip_grad_norm_ does for an unsplit model."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.errors import RefusedError, within


@torch.no_grad()
def clip_grad_norm_(
    parameters: Sequence[nn.Parameter],
    max_norm: float,
    norm_type: float,
    *,
    updated: bool,
    everyone: Wire,
    stages: int,
) -> Tensor:
    """Scale the gradients so that their norm over all stages is at most `max_norm`.

    The norms of all gradients are put into one vector in layer order; the norm of that vector is
    the total. So the total has the same bits for every K. Call it on every rank.

    Args:
        parameters: of this stage, in layer order.
        max_norm: at least 0; inf only measures.
        norm_type: above 0, or inf for the largest absolute value.
        updated: whether these gradients have been used for an update already.
        everyone: all stages of all replicas.
        stages: K. Replicas have equal gradients, so those of the first replica count.

    Returns:
        The total norm before clipping: a scalar on the CPU.

    Raises:
        ValueError: if an argument is out of range or differs between ranks, or after an update.
    """
    own, wrong, norms = {}, "", torch.zeros(0)
    try:
        own = {
            "max_norm": _number("max_norm", max_norm),
            "norm_type": _number("norm_type", norm_type),
        }
        if own["norm_type"] == 0:
            raise ValueError(
                "norm_type=0.0: must be above 0; use 2.0, or inf for the largest value"
            )
        norms = _norms(parameters, own["norm_type"])
    except ValueError as error:
        wrong = str(error)
    gathered = everyone.all_gather((own, wrong, updated, norms))
    first = gathered[0][0]
    for rank, (theirs, wrong, late, _) in enumerate(gathered):
        if wrong:
            raise RefusedError(wrong)
        if theirs != first:
            raise RefusedError(
                f"clip_grad_norm_: {theirs} on rank {rank}, but {first} on rank 0; give every rank "
                "the same"
            )
        if late:
            raise RefusedError(
                "clip_grad_norm_: train_step has updated the weights already; call train_step "
                "without an optimizer, then clip_grad_norm_, then optimizer.step()"
            )
    # Empty ones are left out, because torch.cat lets them take part in choosing the number format.
    filled = [norms for *_, norms in gathered[:stages] if norms.numel()]
    total = (
        torch.linalg.vector_norm(torch.cat(filled), own["norm_type"]) if filled else torch.zeros(())
    )
    clipped = [p for p in parameters if p.grad is not None]
    if clipped:
        torch.nn.utils.clip_grads_with_norm_(clipped, own["max_norm"], total.to(clipped[0].device))
    return total


def _number(name: str, value: float) -> float:
    try:
        number = float(value)  # torch takes "inf" too
    except (TypeError, ValueError):
        number = math.nan
    if not within(number, 0.0, math.inf):
        raise ValueError(f"{name}={value!r}: must be a number, at least 0; inf is allowed")
    return number


def _norms(parameters: Sequence[nn.Parameter], norm_type: float) -> Tensor:
    """The norm of each gradient that has elements: [number of these], on the CPU."""
    found = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        if values.numel():
            found.append(torch.linalg.vector_norm(values, norm_type))
    return torch.stack(found).cpu() if found else torch.zeros(0)
