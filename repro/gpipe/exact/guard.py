"""Guards: one rule of exactness each, one class in one file, behind one small protocol.

A guard notices what would make a pipeline train otherwise than plain PyTorch. Either it prevents
the mistake, or it reports a `Finding` at the end of the step. The ranks then agree on the worst
finding of all:

- NON_FINITE, REFUSED: the step is undone, and every rank raises the text.
- AGAIN: the guard has learned something, for example that a layer moves a buffer. The step is
  undone and taken once more. AGAIN comes before all other findings, which may follow from what was
  not known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn

import torch
from torch import Tensor

from repro.gpipe.comm.message import Message
from repro.gpipe.errors import NonFiniteError, RefusedError

Gather = Callable[[Tensor], list[Tensor]]  # one tensor of each replica


class Outcome(IntEnum):
    """Outcome of a step on one rank; the maximum over all ranks decides."""

    GOOD, NON_FINITE, REFUSED, AGAIN = range(4)


@dataclass(frozen=True)
class Finding:
    """Why a step does not count as it is."""

    outcome: Outcome
    text: str = ""
    order: tuple[int, int] = (0, 0)  # of several ranks' findings the least is raised


def raise_first(finding: Finding, gather: Callable[[Any], Sequence[Any]], step: str) -> NoReturn:
    """Raise on every rank the first of what the ranks have found.

    `finding` is this rank's, and `gather` collects those of all ranks.
    """
    found = gather(finding if finding.text else None)
    first = min((each for each in found if each is not None), key=lambda each: each.order)
    if first.outcome == Outcome.NON_FINITE:
        raise NonFiniteError(f"{step}: {first.text}; without=['NonFinite'] trains on")
    is_of_user = first.text.startswith(("pipe.module", "optimizer"))  # and of no step
    raise RefusedError(first.text if is_of_user else f"{step}: {first.text}")


@dataclass
class Known:
    """What earlier steps have shown of a stage with inputs of one form.

    Attributes:
        call: of the engine, a step or an evaluation, in which such inputs came first.
        checked: the call in which F first went without a graph.
        requires: which outputs require a gradient, once an F with a graph has shown it.
        needs_graph: whether F computes other bits without a graph.
    """

    call: int
    checked: int = 0
    requires: list[bool] | None = None
    needs_graph: bool = False


@dataclass(eq=False)
class Pass:
    """One micro-batch on one stage, from F to B: what is kept, and what guards look at.

    Attributes:
        first: whether this is the first step with inputs of this form, where guards look closely.
        recomputed: whether R follows; if not, F keeps its graph.
        had_graph: whether F had a graph.
        close: whether R is compared with F in every micro-batch of this step.
        leaves: the inputs as leaves of the last run's graph.
        given: what the layers get: the leaves, or what a guard puts there.
        outputs, loss: of the last run, with their graph; the loss is None if that had none.
        requires: which outputs of F require a gradient.
        notes: what guards keep from F to R.
    """

    stage: int
    micro_batch: int
    inputs: Message
    first: bool
    recomputed: bool
    known: Known
    seeds: Sequence[int]
    had_graph: bool = True
    close: bool = True
    leaves: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    loss: Tensor | None = None
    requires: list[bool] = field(default_factory=list)
    notes: dict["Guard", Any] = field(default_factory=dict)

    @property
    def made(self) -> list[Tensor]:
        """The outputs, and the loss if there is one, without their graph."""
        made = self.outputs if self.loss is None else [*self.outputs, self.loss]
        return [tensor.detach() for tensor in made]

    def free(self, *, graph: bool) -> None:
        """Drop what B does not need; with `graph` also the graph, since R will build another."""
        self.given = []
        if graph:
            self.leaves, self.loss = [], None
        if graph or self.loss is not None:
            self.outputs = []


class Guard:
    """A rule of exactness.

    The first line of its docstring is what happens without it, and a row of docs/notes/guards.md.
    Then come how that is found, and when. In an evaluation only `begin_step`, `before_forward` and
    `after_forward` are called.
    """

    def __init__(self, layers: Any, runner: Any, gather: Gather | None) -> None:
        """`layers` are this rank's `RankLayers`, which a `LayerRunner` runs.

        `gather` collects a tensor of all replicas.
        """
        self._layers, self._runner, self._gather = layers, runner, gather
        self._device: torch.device = runner.device

    def begin_step(self, step: Any) -> None:
        """Before the first action of a step."""

    def before_forward(self, p: Pass) -> None:
        """Before the layers run in F; may replace `p.given`."""

    def after_forward(self, p: Pass) -> None:
        """`p.outputs` have their graph, whose saved tensors are gone if R follows."""

    def before_recompute(self, p: Pass) -> None:
        """Before the layers run in R; may replace `p.given`."""

    def after_recompute(self, p: Pass) -> None:
        """`p.outputs` are those of R, `p.requires` is of F."""

    def before_vote(self) -> None:
        """After the last F, where this rank waits: what needs no gradient."""

    def end_step(self, step: Any) -> Finding | None:
        """After the last B."""

    def commit(self) -> None:
        """All ranks found the step good: change what changes once a step."""

    def undo(self) -> None:
        """The step does not count, or an error ended it: leave nothing behind."""


class Guards:
    """The guards of one rank, in the order in which they are called.

    Attributes:
        learned: set by whoever has learned something for which this step must be taken again.
    """

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards, self.learned = guards, False

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all guards."""
        for guard in self._guards:
            getattr(guard, hook)(*arguments)

    def end_step(self, step: Any) -> Finding:
        """The worst finding of all guards."""
        found = [finding for guard in self._guards if (finding := guard.end_step(step))]
        found += [Finding(Outcome.AGAIN)] * self.learned
        return max(found, key=lambda finding: finding.outcome, default=Finding(Outcome.GOOD))
