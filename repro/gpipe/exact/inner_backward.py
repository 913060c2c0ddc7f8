"""Layers that call backward() in their forward, to train a head of their own for example."""

from typing import Any

from repro.gpipe.exact.guard import Guard, Pass


class InnerBackward(Guard):
    """A layer calls backward() in its forward, and R adds these gradients once more.

    R of such a stage leaves all gradients as it finds them. Found by comparing them before and
    after F, in the first step with inputs of a form. `Pipeline.compare` shows a layer that begins
    later.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._stages: set[int] = set()

    def before_forward(self, p: Pass) -> None:
        if p.first and p.recomputed and p.stage not in self._stages:
            p.notes[self] = self._state(p)

    def after_forward(self, p: Pass) -> None:
        if self in p.notes and p.notes.pop(self) != self._state(p):
            self._stages.add(p.stage)

    def before_recompute(self, p: Pass) -> None:
        if p.stage in self._stages:
            parameters = self._layers.parameters_of(p.stage)
            p.notes[self] = [(parameter, parameter.grad) for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None

    def after_recompute(self, p: Pass) -> None:
        for parameter, gradient in p.notes.pop(self, ()):
            parameter.grad = gradient

    def _state(self, p: Pass) -> list[Any]:
        gradients = (parameter.grad for parameter in self._layers.parameters_of(p.stage))
        return [None if g is None else (id(g), g._version) for g in gradients]
