"""Layers that call backward() in their forward, to train a head of their own for example."""

from typing import Any

from repro.gpipe.exact.guard import Guard, Pass


class InnerBackward(Guard):
    """A layer calls backward() in its forward, and R adds these gradients once more.

    Such a layer is refused where R follows. Found by comparing gradients before and after F, in the
    first step with inputs of a form. `Pipeline.compare` shows a layer that begins later.
    """

    def before_forward(self, p: Pass) -> None:
        if p.first and p.recomputed:
            p.notes[self] = self._state(p)

    def after_forward(self, p: Pass) -> None:
        if self in p.notes and p.notes.pop(self) != self._state(p):
            raise ValueError(
                f"stage {p.stage}: a layer calls backward() in its forward, which recomputation "
                "would do again; build the Pipeline with recompute='never'"
            )

    def _state(self, p: Pass) -> list[Any]:
        gradients = (parameter.grad for parameter in self._layers.parameters_of(p.stage))
        return [None if g is None else (id(g), g._version) for g in gradients]
