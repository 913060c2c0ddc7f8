"""Layers that write in place to what enters their stage."""

from collections.abc import Sequence

from torch import Tensor

from repro.gpipe.comm.message import copied
from repro.gpipe.exact.guard import Guard, Pass


class OverwrittenInputs(Guard):
    """A layer writes in place to what enters its stage, which R needs as it came.

    Each F and R gets copies. Two inputs that share memory cannot be written to, since behind a
    boundary they are two. Found by version counters in every pass.
    """

    def before_forward(self, p: Pass) -> None:
        # With the same layout and alignment: the last bits of a product may depend on them.
        p.given = [copied(t) for t in p.leaves]
        p.notes[self] = versions(p.given)

    before_recompute = before_forward

    def after_forward(self, p: Pass) -> None:
        before, now = p.notes.pop(self), versions(p.given)
        for n in p.inputs.form.sharing:
            if now[n] != before[n]:
                raise ValueError(
                    f"stage {p.stage}: a layer writes in place to tensor {n} of what enters it, "
                    "and another one there shares its memory; clone() one of them, or choose a "
                    "balance that keeps these layers together"
                )

    after_recompute = after_forward


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """Torch's count of in-place writes to each tensor; 0 for inference tensors, which have none."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # asking each one first takes ten times as long
        return [0 if t.is_inference() else t._version for t in tensors]
