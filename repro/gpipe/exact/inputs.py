"""Layers that write in place to what enters their stage."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.comm.message import copied
from repro.gpipe.exact.guard import Finding, Guard, Outcome, Pass


class OverwrittenInputs(Guard):
    """A layer writes in place to what enters its stage, which R needs as it came.

    An F that is recomputed gets copies, which are gone after it. An R, and an F whose graph B
    walks, get copies on stages that are known to write (timm's ResNet has one) and on the first
    stage, whose inputs are the user's; on others a graph would keep the copy. Found by version
    counters in every pass, by values in the first step with inputs of a form. A stage that begins
    to write is noticed, and the step taken again. Two inputs that share memory cannot be written
    to, since behind a boundary they are two.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._copied = {0}  # stages
        self._learned = False

    def begin_step(self, step: Any) -> None:
        self._learned = False

    def before_forward(self, p: Pass) -> None:
        self._give(p, copies=p.recomputed)

    def before_recompute(self, p: Pass) -> None:
        self._give(p, copies=False)

    def _give(self, p: Pass, *, copies: bool) -> None:
        if copies or p.first or p.stage in self._copied:
            # With the same layout and alignment: the last bits of a product may depend on them.
            p.given = [copied(t) for t in p.leaves]
        p.notes[self] = versions(p.given)

    def after_forward(self, p: Pass) -> None:
        before, now = p.notes.pop(self), versions(p.given)
        for n in p.inputs.form.sharing:
            if now[n] != before[n]:
                raise ValueError(
                    f"stage {p.stage}: a layer writes in place to tensor {n} of what enters it, "
                    "and another one there shares its memory; clone() one of them, or choose a "
                    "balance that keeps these layers together"
                )
        # A write through `.data` is not counted.
        if now != before or (p.first and not all(map(torch.equal, p.given, p.inputs.tensors))):
            self._learned |= p.given is p.leaves
            self._copied.add(p.stage)

    after_recompute = after_forward

    def on_error(self, p: Pass) -> bool:
        """Torch refuses a write to a leaf."""
        if p.given is not p.leaves:
            return False
        self._copied.add(p.stage)
        self._learned = True
        return True

    def end_step(self, step: Any) -> Finding | None:
        return Finding(Outcome.AGAIN) if self._learned else None


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """Torch's count of in-place writes to each tensor; 0 for inference tensors, which have none."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # asking each one first takes ten times as long
        return [0 if t.is_inference() else t._version for t in tensors]
