"""F, R and B of one stage, and what is kept between them (section 2.3 of arXiv:1811.06965v5).

F runs the layers on a micro-batch and keeps only what entered the stage. R runs them once more to
have the graph. B differentiates, adds to the parameters' gradients, and returns the gradients of
the inputs for the stage before. Where no R follows, F keeps its graph. A schedule may have B in two
parts, I and W, see `split`.

Everything else that training with the same bits for every K needs is a guard (`exact/`), or in how
layers are run one after the other (`run_layers`), or in how much of a graph F builds
(`forward_graph`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from repro.gpipe.comm.message import Message
from repro.gpipe.core import split
from repro.gpipe.core.forward_graph import ForwardGraph
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.exact.guard import Guards, Pass
from repro.gpipe.exact.inputs import versions
from repro.gpipe.tree import Tree, flatten, refuse_unplain, unflatten

Loss = Callable[[int, Tree], Tensor]  # (micro-batch, outputs) -> its share of the mini-batch loss


class Stage:
    """A run of consecutive layers, and the loss behind the model's last one.

    Attributes:
        kept: of each micro-batch between F and B: its inputs, and its graph where there is one.
        later: of each micro-batch between I and W: what W does.
        loss: follows the last layer if this is the model's last stage.
        whole: whether each micro-batch is the whole mini-batch of all replicas.
    """

    def __init__(
        self, index: int, rank: RankLayers, runner: LayerRunner, guards: Guards, *, whole: bool
    ) -> None:
        self.index, self.whole = index, whole
        self.kept: dict[int, Pass] = {}
        self.later: dict[int, split.Later] = {}
        self.loss: Loss | None = None
        self._rank, self._runner, self._guards = rank, runner, guards
        self._graph = ForwardGraph(rank, runner, guards)

    def begin_step(self, loss: Loss | None) -> None:
        """Before the first action of a step."""
        self.loss = loss
        if self.kept or self.later:
            self.forget()

    def forget(self) -> None:
        """After a step that failed, which has shown nothing."""
        self._graph.forget()
        self.kept.clear()
        self.later.clear()

    def forward(
        self, i: int, inputs: Message, *, recompute: bool
    ) -> tuple[Message | None, Tensor | None]:
        """F: the message for the next stage, or on the last stage the micro-batch's loss.

        The other one is None, and so is a loss that is left to R, which computes it. Tensors have
        no graph, and require a gradient where B will need one.
        """
        kept = self.kept[i] = self._pass(i, inputs, recompute=recompute)
        skeleton = self._graph.run(kept, partial(self._run, kept, "before_forward"))
        self._graph.note_requires(kept)
        self._guards.call("after_forward", kept)
        made, loss = [t.detach() for t in kept.outputs], kept.loss
        kept.free(graph=recompute)
        if self.loss is not None:
            return None, None if loss is None else loss.detach()
        for tensor, requires in zip(made, kept.requires, strict=True):
            tensor.requires_grad_(requires)
        return Message.of(made, skeleton), None

    def recompute(self, i: int) -> Tensor | None:
        """R: run the layers again, now with a graph; it needs no gradient.

        Returned is the micro-batch's share of the loss, if that follows.
        """
        kept = self.kept[i]
        self._run(kept, "before_recompute", loss=True)
        self._guards.call("after_recompute", kept)
        kept.free(graph=False)
        return None if kept.loss is None else kept.loss.detach()

    def backward(
        self, i: int, gradients: Sequence[Tensor | None], *, weights_later: bool = False
    ) -> list[Tensor | None]:
        """B: add to the parameters' gradients, and return those of the inputs that require one.

        There is a gradient for each output that required one in F, or one for the loss. It is None
        where the loss does not depend on the output. With `weights_later` this is I, which leaves
        gradients of parameters to W.
        """
        kept = self.kept.pop(i)
        if kept.loss is not None:
            outputs = [kept.loss]
        else:
            required = zip(kept.outputs, kept.requires, strict=True)
            outputs = [tensor for tensor, requires in required if requires]
        both = zip(outputs, gradients, strict=True)
        pairs = [(t, g) for t, g in both if t.requires_grad and g is not None]
        if pairs:
            roots, their_gradients = zip(*pairs, strict=True)
            with self._parameters_unchanged():
                if weights_later:
                    later = split.backward_to_inputs(roots, their_gradients, kept.leaves)
                    self.later[i] = later
                else:
                    torch.autograd.backward(roots, their_gradients)
        return [leaf.grad for leaf in kept.leaves if leaf.requires_grad]

    def backward_to_weights(self, i: int) -> None:
        """W: add to those gradients of the parameters that I has left out."""
        with self._parameters_unchanged():
            split.backward_to_weights(self.later.pop(i, []))

    @contextmanager
    def _parameters_unchanged(self) -> Iterator[None]:
        """Wrap a backward: raise a ValueError if a hook in it updates."""
        before = versions(self._rank.parameters)
        yield
        if not self.whole and versions(self._rank.parameters) != before:
            raise ValueError(
                "a hook changed parameters before the gradient of the mini-batch was complete, "
                "as an optimizer does that steps in register_post_accumulate_grad_hook; give "
                "train_step the optimizer, or take micro_batches=1 and replicas=1"
            )

    def evaluate(self, i: int, inputs: Message) -> tuple[Message, Tensor | None]:
        """Outputs and loss without gradients; keeps nothing."""
        with torch.no_grad():
            kept = self._pass(i, inputs)
            skeleton = self._run(kept, "before_forward", loss=True)
            self._guards.call("after_forward", kept)
        return Message.of(kept.outputs, skeleton), kept.loss

    def _pass(self, i: int, inputs: Message, *, recompute: bool = False) -> Pass:
        known = self._graph.known(inputs)
        first = known.call == self._rank.call
        layers = [*(n for n, _ in self._rank.layers[self.index]), self._rank.end]
        return Pass(self.index, i, inputs, first, recompute, known, self._runner.seeds(i, layers))

    def _run(self, p: Pass, before: str, *, loss: bool = False) -> Tree:
        """Run the layers on what is kept of the inputs, and the loss behind them.

        The outputs and the loss are in `p`; the skeleton of the outputs is returned.
        """
        # Fresh leaves for each run, so that hooks set by a layer do not accumulate.
        p.leaves = [t.detach().requires_grad_(t.requires_grad) for t in p.inputs.tensors]
        p.given = p.leaves
        self._guards.call(before, p)
        value = unflatten(p.given, p.inputs.form.skeleton)
        value = self._runner.run(value, self._rank.layers[self.index], p.seeds)
        if self.loss is None:
            refuse_unplain(value, f"stage {self.index}: what its last layer returns")
        (p.outputs, skeleton), p.loss = flatten(value), None
        if self.loss is not None and loss:
            call = self._rank.end, partial(self.loss, p.micro_batch)
            p.loss = self._runner.run(value, [call], p.seeds[-1:])
        return skeleton
