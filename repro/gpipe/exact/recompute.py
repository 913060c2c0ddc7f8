"""R makes the bits that F made."""

import logging
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.comm.message import elements, settled
from repro.gpipe.exact.guard import Finding, Guard, Known, Outcome, Pass

_log = logging.getLogger(__name__)
_COLUMNS = 509
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
            p.notes[self] = [fingerprint(t) for t in p.made]

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
            form_again, bits_again = fingerprint(again)
            alike = form == form_again
            differs = (bits != bits_again).any() if alike else torch.ones((), dtype=torch.bool)
            self._differs.append((p.stage, p.known, p.had_graph, differs))

    def end_step(self, step: Any) -> Finding | None:
        differing = [each for each in self._differs if each[-1]]
        for _, known, had_graph, _ in differing:
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


def fingerprint(tensor: Tensor) -> tuple[object, Tensor]:
    """Form, and sums of all bits, which take a hundredth of its memory and stay on its device.

    The bits are whole numbers in a grid. A change of one of them changes the sums of its row and of
    its column. So does a permutation, since a prime number of columns fits no shape.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.layout, torch.empty(0)
    form = tensor.shape, tensor.stride(), tensor.dtype
    everything = elements(settled(tensor))
    inside = len(everything) // (8 * _COLUMNS) * 8 * _COLUMNS
    grid = everything[:inside].view(torch.int64).view(-1, _COLUMNS)
    return form, torch.cat([grid.sum(0), grid.sum(1), everything[inside:].to(torch.int64)])
