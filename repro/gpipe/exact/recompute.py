"""R makes the bits that F made."""

import logging
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.exact.guard import Finding, Guard, Outcome, Pass

_log = logging.getLogger(__name__)
_ADVICE = (
    "a layer or the loss holds state that recomputation moves again; keep it in a buffer "
    "(register_buffer) or an attribute, draw from torch's default generator, or build the "
    "Pipeline with checkpoint='never'"
)


class RecomputeEqualsForward(Guard):
    """**R equals F.** A stage would send one value and train on another.

    Found by comparing the bits of what F and R return: of all micro-batches in the first step with
    inputs of a form, and of one micro-batch in every later step. Which outputs require a gradient
    is compared always.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin_step(self, step: Any) -> None:
        self._sampled = step.number % step.micro_batches
        # Read at the end of the step, so that no GPU is waited for.
        self._differs: list[tuple[Pass, Tensor]] = []
        self._problem, self._learnt = "", False
        self._exact = self._device.type == "cpu" or torch.are_deterministic_algorithms_enabled()

    def after_forward(self, p: Pass) -> None:
        if p.recomputed and (p.close or p.micro_batch == self._sampled):
            # Copies: a layer may return the same memory for each micro-batch.
            p.notes[self] = [t.clone() for t in p.made]

    def after_recompute(self, p: Pass) -> None:
        requires = [t.requires_grad for t in p.outputs]
        if len(requires) != len(p.requires):
            raise ValueError(
                f"stage {p.stage}: it returns {len(p.requires)} tensors, and {len(requires)} when "
                "that is recomputed; a layer must do the same both times"
            )
        if requires != p.requires and not p.had_graph:
            p.known.needs_graph = self._learnt = True
        elif requires != p.requires:
            self._problem = (
                f"stage {p.stage}: which of its outputs require a gradient is not the same in the "
                "forward and when that is recomputed; a layer must do the same both times"
            )
        for made, again in zip(p.notes.pop(self, ()), p.made, strict=False):
            self._differs.append((p, _differ(made, again)))

    def end_step(self, step: Any) -> Finding | None:
        differing = [p for p, differ in self._differs if differ]
        for p in differing:
            if not p.had_graph:  # other kernels may have run
                p.known.needs_graph = self._learnt = True
        if self._learnt:
            return Finding(Outcome.AGAIN)
        for p in differing:
            what = "its outputs are not the same when a micro-batch is recomputed"
            problem = f"stage {p.stage}: {what}: {_ADVICE}"
            if self._exact:
                return Finding(Outcome.REFUSED, problem)
            advice = "torch.use_deterministic_algorithms(True) would show"
            _log.warning("%s; that may be rounding, which %s", problem, advice)
        return Finding(Outcome.REFUSED, self._problem) if self._problem else None


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Whether any bit does, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return torch.ones((), dtype=torch.bool)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.itemsize)
    if whole is None or a.is_complex():
        return torch.tensor(not torch.equal(a, b))
    return (a.contiguous().view(whole) != b.contiguous().view(whole)).any()
