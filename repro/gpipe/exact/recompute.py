"""R makes the bits that F made."""

import logging
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.exact.guard import Finding, Guard, Known, Outcome, Pass

_log = logging.getLogger(__name__)
_PIECE = 2**14  # elements that are read at once, in three copies of 8 bytes each
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element
_ODD = 0x1E3779B97F4A7C15
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
        self._differs: list[tuple[int, Known, bool, Tensor]] = []  # no Pass, which has the graph
        self._problem, self._learnt = "", False
        self._exact = self._device.type == "cpu" or torch.are_deterministic_algorithms_enabled()

    def after_forward(self, p: Pass) -> None:
        if p.recomputed and (p.close or p.micro_batch == self._sampled):
            # Copies would keep M outputs of the stage, as long as without recomputation.
            p.notes[self] = [_digest(t) for t in p.made]

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
        for (form, bits), again in zip(p.notes.pop(self, ()), p.made, strict=False):
            form_again, bits_again = _digest(again)
            differs = bits != bits_again if form == form_again else torch.ones((), dtype=torch.bool)
            self._differs.append((p.stage, p.known, p.had_graph, differs))

    def end_step(self, step: Any) -> Finding | None:
        differing = [of for *of, differs in self._differs if differs]
        for _, known, had_graph in differing:
            if not had_graph:  # other kernels may have run
                known.needs_graph = self._learnt = True
        if self._learnt:
            return Finding(Outcome.AGAIN)
        for stage, *_ in differing:
            what = "its outputs are not the same when a micro-batch is recomputed"
            problem = f"stage {stage}: {what}: {_ADVICE}"
            if self._exact:
                return Finding(Outcome.REFUSED, problem)
            advice = "torch.use_deterministic_algorithms(True) would show"
            _log.warning("%s; that may be rounding, which %s", problem, advice)
        return Finding(Outcome.REFUSED, self._problem) if self._problem else None


def _digest(tensor: Tensor) -> tuple[object, Tensor]:
    """Form, and a number of all bits and their places, which stays on the tensor's device.

    Tensors that differ have the same number with a chance of about 2^-64. A tensor that differs in
    one element always has another one, since weights are odd.
    """
    form = tensor.shape, tensor.dtype
    number = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    whole = _WHOLE.get(tensor.itemsize)
    if whole is None or tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        return form, number
    for n, piece in enumerate(tensor.reshape(-1).split(_PIECE)):
        mixed = piece.view(whole).to(torch.int64, copy=True).mul_(_ODD)
        mixed ^= mixed >> 32
        first = 2 * n * _PIECE + 1
        last = first + 2 * len(piece)
        weights = torch.arange(first, last, 2, dtype=torch.int64, device=tensor.device)
        number += mixed.mul_(weights).sum()
    return form, number
