"""Gradient clipping by the norm over all stages: torch.nn.utils.clip_grad_norm_ for a pipeline."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.errors import RefusedError, within


@torch.no_grad()
def clip_grad_norm_(
    parameters: Sequence[Sequence[nn.Parameter]],
    max_norm: float,
    norm_type: float,
    problem: str,
    everyone: ControlChannel,
    ranks: int,
) -> Tensor:
    """Scale the gradients so that their norm over all stages is at most `max_norm`.

    The norms of all gradients are put into one vector in layer order; the norm of that vector is
    the total. So the total has the same bits for every K. A problem of one rank is an error on all
    of them. Call it on every rank.
    """
    limit = kind = math.nan
    norms = [torch.zeros(0) for _ in parameters]
    try:
        limit, kind = _to_float("max_norm", max_norm), _to_float("norm_type", norm_type)
        if kind == 0:
            raise ValueError(
                "norm_type=0.0: must be above 0; use 2.0, or inf for the largest value"
            )
        norms = [_norms(of_stage, kind) for of_stage in parameters]
    except ValueError as error:
        problem = str(error)

    gathered = everyone.all_gather(({"max_norm": limit, "norm_type": kind}, problem, norms))
    first = gathered[0][0]
    for rank, (theirs, their_problem, _) in enumerate(gathered):
        if their_problem:
            raise RefusedError(their_problem)
        if theirs != first:
            raise RefusedError(
                f"clip_grad_norm_: {theirs} on rank {rank}, but {first} on rank 0; give every rank "
                "the same"
            )

    # In layer order: the first stage of each rank, then the second of each. Empty tensors are left
    # out, because torch.cat would consider their dtype.
    of_ranks = [norms for *_, norms in gathered[:ranks]]
    by_stage = [norms for of_stages in zip(*of_ranks, strict=True) for norms in of_stages]
    filled = [norms for norms in by_stage if norms.numel()]
    total = torch.linalg.vector_norm(torch.cat(filled), kind) if filled else torch.zeros(())
    clipped = [p for of_stage in parameters for p in of_stage if p.grad is not None]
    if clipped:
        torch.nn.utils.clip_grads_with_norm_(clipped, limit, total.to(clipped[0].device))
    return total


def _to_float(name: str, value: float) -> float:
    try:
        number = float(value)  # also of the string "inf", as torch allows
    except (TypeError, ValueError):
        number = math.nan
    if not within(number, 0.0, math.inf):
        raise ValueError(f"{name}={value!r}: must be a number, at least 0; inf is allowed")
    return number


def _norms(parameters: Sequence[nn.Parameter], norm_type: float) -> Tensor:
    """The norm of each gradient that has elements, on the CPU: [number of such gradients]."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    norms = [torch.linalg.vector_norm(v, norm_type) for v in values if v.numel()]
    return torch.stack(norms).cpu() if norms else torch.zeros(0)
