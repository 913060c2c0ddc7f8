"""Layers that write in place to what enters their stage."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from repro.gpipe.comm.message import copied
from repro.gpipe.exact.guard import Guard, Pass


class OverwrittenInputs(Guard):
    """A layer writes in place to what enters its stage, which R needs as it came.

    An F that is recomputed gets copies, which are gone after it. By their version counters it shows
    whether its stage writes, as timm's ResNet does. Then R gets copies too, and so does an F whose
    graph B walks; on other stages a graph would keep the copy, and torch refuses a write that
    begins in a later step. The first stage always gets copies, since its inputs are the user's. Two
    inputs that share memory cannot be written to, since behind a boundary they are two.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._copied = {0}  # stages

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
        if now != before:
            self._copied.add(p.stage)

    after_recompute = after_forward


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """Torch's count of in-place writes to each tensor; 0 for inference tensors, which have none."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # asking each one first takes ten times as long
        return [0 if t.is_inference() else t._version for t in tensors]
