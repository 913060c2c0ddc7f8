"""Layers that call backward() in their forward, to train a head of their own for example."""

from typing import Any

from repro.gpipe.exact.guard import Finding, Guard, Outcome, Pass


class InnerBackward(Guard):
    """A layer calls backward() in its forward, and R adds these gradients once more.

    R of such a stage leaves all gradients as it finds them. Found by comparing them before and
    after F: of all micro-batches in the first step with inputs of a form, and of one in every later
    step, which is then taken again.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._stages: set[int] = set()

    def begin_step(self, step: Any) -> None:
        self._sampled, self._learnt = step.number % step.micro_batches, False

    def before_forward(self, p: Pass) -> None:
        is_looked_at = p.first or p.micro_batch == self._sampled
        if is_looked_at and p.recomputed and p.stage not in self._stages:
            p.notes[self] = self._state(p)

    def after_forward(self, p: Pass) -> None:
        if self in p.notes and p.notes.pop(self) != self._state(p):
            self._stages.add(p.stage)
            self._learnt |= not p.first

    def before_recompute(self, p: Pass) -> None:
        if p.stage in self._stages:
            parameters = self._layers.parameters_of(p.stage)
            p.notes[self] = [(parameter, parameter.grad) for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None

    def after_recompute(self, p: Pass) -> None:
        for parameter, gradient in p.notes.pop(self, ()):
            parameter.grad = gradient

    def end_step(self, step: Any) -> Finding | None:
        return Finding(Outcome.AGAIN) if self._learnt else None

    def _state(self, p: Pass) -> list[Any]:
        gradients = (parameter.grad for parameter in self._layers.parameters_of(p.stage))
        return [None if g is None else (id(g), g._version) for g in gradients]
