"""The layers of one rank, which users may replace, freeze or thaw between two steps."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import nn

from repro.gpipe.core.layers import is_compiled, more_than_a_sequence, parameters_of
from repro.gpipe.core.loss import inner_loss


class RankLayers:
    """All layers of the stages of one rank, followed from step to step.

    Attributes:
        stages: for each of them its layers' indices in the whole model, in order.
        names: keys of all these layers in the unsplit model's state dict.
        module: all these layers; users may put another layer in the place of one.
        layers: for each stage its layers, each with its index.
        end: the index behind the last layer; to random state the loss is a layer.
        modules, parameters: of all layers.
        of_loss: the modules of the loss if it may hold state. That must move in the order of the
            micro-batches, so F computes such a loss too.
        call: number of this step or evaluation.
        tree_number: the call in which a layer was last replaced.
        foreign: modules of the layers of other ranks, without weights.
        modes: the loss, which modules are in training mode, and which parameters are trained.
    """

    def __init__(
        self,
        stages: Mapping[int, Sequence[int]],
        modules: Mapping[int, nn.Module],
        names: Sequence[str],
    ) -> None:
        self.stages, self.names, self.end = stages, names, max(modules) + 1
        self.module = nn.Sequential(OrderedDict(zip(names, modules.values(), strict=True)))
        self.layers: dict[int, list[tuple[int, nn.Module]]] = {}
        self.of_loss: list[nn.Module] = []
        self.foreign: Collection[Any] = ()
        self.call = self.tree_number = 0
        self.has_compiled = False
        self.modules: list[nn.Module] = []
        self.parameters: list[nn.Parameter] = []
        self._children: list[nn.Module | None] | None = None  # of all modules, as of the last step
        self._held: list[nn.Parameter | None] = []  # by these modules
        self.follow()

    @property
    def container_problem(self) -> str:
        """Why `module` cannot be run, such as added or removed layers; otherwise empty."""
        names = [*self.module._modules]
        if names == [*self.names]:
            return more_than_a_sequence(self.module, "pipe.module")
        return (
            f"pipe.module: its layers are {', '.join(names) or 'none'}, and the Pipeline was built "
            f"with {', '.join(self.names)}; build another one to add or remove some"
        )

    def follow(self, loss_fn: Any = None) -> None:
        """Before each step: from now on run the layers that `module` holds, and this loss.

        Without a loss, as in an evaluation, that of the last step is still followed.
        """
        self.call += 1
        # A list of what all modules hold is made in a fraction of the time of a search.
        children = [child for module in self.modules for child in module._modules.values()]
        if children != self._children and not self.container_problem:  # a module equals itself
            self.modules = [*self.module.modules()]
            self._children = [child for m in self.modules for child in m._modules.values()]
            self.tree_number = self.call
            self.has_compiled = any(map(is_compiled, self.modules))
            indices = chain.from_iterable(self.stages.values())
            layers = dict(zip(indices, self.module, strict=True))
            self.layers = {stage: [(n, layers[n]) for n in ns] for stage, ns in self.stages.items()}
        held = [each for module in self.modules for each in module._parameters.values()]
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            self._held, self.parameters = held, parameters_of(self.modules)
        if loss_fn is not None:
            loss = inner_loss(loss_fn)
            # A loss of torch has no state, and may be made anew for each step.
            is_torchs = type(loss).__module__.startswith("torch.")
            may_hold_state = isinstance(loss, nn.Module) and not is_torchs
            self.of_loss = [*loss.modules()] if may_hold_state else []
        training = [module.training for module in self.modules]
        trained = [parameter.requires_grad for parameter in self.parameters]
        self.modes = (self.tree_number, *self.of_loss, *training, *trained)

    def parameters_of(self, stage: int) -> list[nn.Parameter]:
        """The parameters of one of these stages, in layer order."""
        layers = [layer for _, layer in self.layers[stage]]
        return parameters_of(part for layer in layers for part in layer.modules())
