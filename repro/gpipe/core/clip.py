"""Gradient clipping by the norm over all stages: torch.nn.utils.clip_grad_norm_ for a pipeline."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repro.gpipe.comm.control_channel import ControlChannel


@torch.no_grad()
def clip_grad_norm_(
    parameters: Sequence[Sequence[nn.Parameter]],
    max_norm: float,
    norm_type: float,
    all_ranks: ControlChannel,
    ranks: int,
    *,
    late: bool,
) -> Tensor:
    """Scale the gradients so that their norm over all stages is at most `max_norm`.

    The norms of all gradients are put into one vector in layer order; the norm of that vector is
    the total. So the total has the same bits for every K. That one rank is too `late` is an error
    on all of them. Call it on every rank.
    """
    limit, kind, problem = float(max_norm), float(norm_type), ""
    if late:
        problem = (
            "train_step has updated the weights already; call train_step without an optimizer, "
            "then clip_grad_norm_, then optimizer.step()"
        )
    norms = [_norms(of_stage, kind) for of_stage in parameters]
    same = {"max_norm": limit, "norm_type": kind}
    of_all = all_ranks.gather_alike("clip_grad_norm_", norms, same, problem)

    # In layer order: the first stage of each rank, then the second of each. Empty tensors are left
    # out, because torch.cat would consider their dtype.
    by_stage = [norms for of_stages in zip(*of_all[:ranks], strict=True) for norms in of_stages]
    filled = [norms for norms in by_stage if norms.numel()]
    total = torch.linalg.vector_norm(torch.cat(filled), kind) if filled else torch.zeros(())
    clipped = [p for of_stage in parameters for p in of_stage if p.grad is not None]
    if clipped:
        torch.nn.utils.clip_grads_with_norm_(clipped, limit, total.to(clipped[0].device))
    return total


def _norms(parameters: Sequence[nn.Parameter], norm_type: float) -> Tensor:
    """The norm of each gradient that has elements, on the CPU: [number of such gradients]."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    norms = [torch.linalg.vector_norm(v, norm_type) for v in values if v.numel()]
    return torch.stack(norms).cpu() if norms else torch.zeros(0)
