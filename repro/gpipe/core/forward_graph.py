"""How much of a graph F builds where R follows, which builds the graph for B.

F goes without one, which is faster. But in the first step with inputs of a form it builds a graph
that keeps no tensors. That shows which outputs require a gradient, and torch runs the kernels that
it will run in R: without a graph it would run others, of an LSTM for example.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress

import torch
from torch import Tensor

from repro.gpipe.comm.message import Message
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.exact.guard import Guards, Known, Pass
from repro.gpipe.tree import Tree

_MOST_FORMS = 2**10  # of inputs that are remembered; a sequence's length may differ in every step


class ForwardGraph:
    """The graph of one stage's F, and what earlier steps have shown of it."""

    def __init__(self, rank: RankLayers, runner: LayerRunner, guards: Guards) -> None:
        self._rank, self._runner, self._guards = rank, runner, guards
        self._known: dict[Hashable, Known] = {}  # of inputs of each form
        self._keeps_tensors = False  # although R follows

    def forget(self) -> None:
        """After a step that failed, which has shown nothing."""
        self._known.clear()

    def known(self, inputs: Message) -> Known:
        """What is known of inputs of this form, in this mode."""
        if len(self._known) > _MOST_FORMS:
            self.forget()
        key = self._rank.modes, self._runner.autocast, torch.is_grad_enabled(), inputs.form.key
        return self._known.setdefault(key, Known(self._rank.call))

    def run(self, kept: Pass, run: Callable[..., Tree]) -> Tree:
        """Run the layers with as much of a graph as F needs: the one for B if no R follows."""
        known = kept.known
        drops = kept.recomputed and not (self._keeps_tensors or self._rank.has_compiled)
        free = drops and known.requires is not None and not (known.needs_graph or kept.first)
        if free and not known.checked:
            known.checked = self._rank.call
        kept.had_graph, kept.close = not free, kept.first or known.checked == self._rank.call
        with_loss = not kept.recomputed or bool(self._rank.of_loss)
        if not drops:
            return run(loss=with_loss)
        without_tensors = torch.autograd.graph.saved_tensors_hooks(_drop, _missed)
        with suppress(RuntimeError), torch.no_grad() if free else without_tensors:
            return run(loss=with_loss)
        # A layer may take a derivative inside its forward; then its graph must be whole.
        kept.had_graph = self._keeps_tensors = self._guards.learned = True
        return run(loss=with_loss)

    def note_requires(self, kept: Pass) -> None:
        """Note which outputs of F require a gradient; without a graph, as in earlier steps."""
        known, outputs = kept.known, kept.outputs
        kept.requires = [t.requires_grad for t in outputs]
        if kept.had_graph:
            known.requires = kept.requires
        elif known.requires is not None and len(known.requires) == len(outputs):
            kept.requires = known.requires
        else:
            known.needs_graph = self._guards.learned = True
            kept.requires = [t.is_floating_point() for t in outputs]


def _drop(_: Tensor) -> None:
    return None


def _missed(_: None) -> Tensor:
    raise RuntimeError("a layer keeps the graph of an earlier forward; detach() what it keeps")
