"""R makes the bits that F made."""

import logging
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.comm.message import elements, settled
from repro.gpipe.exact.guard import Finding, Guard, Known, Outcome, Pass

_log = logging.getLogger(__name__)
_COLUMNS, _ODD = 127, 0x1E3779B97F4A7C15
_ADVICE = (
    "a layer or the loss holds state that recomputation moves again; keep it in a buffer "
    "(register_buffer) or an attribute, draw from torch's default generator, or build the "
    "Pipeline with recompute='never'"
)


class RecomputeEqualsForward(Guard):
    """A stage sends one value and trains on another, since R has other bits than F.

    Found by comparing the bits of what F and R return: of all micro-batches in the first step with
    inputs of a form, and of one micro-batch in every later step. Which outputs require a gradient
    is compared always.
    """

    def begin_step(self, step: Any) -> None:
        self._sampled = step.number % step.micro_batches
        # Read at the end of the step, so that no GPU is waited for. No Pass, which has the graph.
        self._differs: list[tuple[int, Known, bool, Tensor | bool]] = []
        self._exact = self._device.type == "cpu" or torch.are_deterministic_algorithms_enabled()

    def after_forward(self, p: Pass) -> None:
        if p.recomputed and (p.close or p.micro_batch == self._sampled):
            # Copies would keep M outputs of the stage, as long as without recomputation.
            p.notes[self] = [fingerprint(t) for t in p.made]

    def after_recompute(self, p: Pass) -> None:
        differ: list[Tensor | bool] = [[t.requires_grad for t in p.outputs] != p.requires]
        for (form, bits), again in zip(p.notes.pop(self, ()), p.made, strict=False):
            form_again, bits_again = fingerprint(again)
            differ.append(bits != bits_again if form == form_again else True)
        self._differs += [(p.stage, p.known, p.had_graph, each) for each in differ]

    def end_step(self, step: Any) -> Finding | None:
        differing = [each for each in self._differs if each[-1]]
        without_graph = [known for _, known, had_graph, _ in differing if not had_graph]
        for known in without_graph:  # other kernels may have run
            known.needs_graph = True
        if without_graph:
            return Finding(Outcome.AGAIN)
        for stage, *_, differs in differing:
            what = f"stage {stage}: its outputs are not the same when a micro-batch is recomputed"
            if differs is True:  # in their form, which no rounding changes
                return Finding(Outcome.REFUSED, f"{what}: a layer must do the same both times")
            if self._exact:
                return Finding(Outcome.REFUSED, f"{what}: {_ADVICE}")
            advice = "torch.use_deterministic_algorithms(True) would show"
            _log.warning("%s: %s; that may be rounding, which %s", what, _ADVICE, advice)
        return None


def fingerprint(tensor: Tensor) -> tuple[object, Tensor]:
    """Form, and a number of all bits and their places, which stays on the tensor's device.

    The bits are whole numbers in a grid. A change of one of them changes the sums of its row and of
    its column. So does a permutation, since a prime number of columns fits no shape. The sums and
    their places are hashed, which would take ten times as long for all bits.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.layout, torch.zeros(())
    form = tensor.shape, tensor.stride(), tensor.dtype
    everything = elements(settled(tensor))
    rest = len(everything) % 8
    words = everything[: len(everything) - rest].view(torch.int64)
    outside = len(words) % _COLUMNS
    grid = words[: len(words) - outside].view(-1, _COLUMNS)
    ends = words[len(words) - outside :], everything[len(everything) - rest :].to(torch.int64)
    sums = torch.cat([grid.sum(0), grid.sum(1), *ends])
    sums += torch.arange(len(sums), device=tensor.device)
    for _ in range(2):
        sums *= _ODD
        sums ^= sums >> 32
    return form, sums.sum()
