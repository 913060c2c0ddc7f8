"""Layers without memory: each distinct layer is built once, on fake tensors, which have no values.

Fake CUDA tensors do not work where torch finds no GPU, so they are of the CPU unless a GPU is asked
for. Bytes and operators are the same, except for kernels that differ: dropout, for example, keeps a
mask of bytes on a GPU and of floats on the CPU.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode  # private: the one place that imports it

from repro.gpipe.core.layers import Layer
from repro.gpipe.tree import Tree, map_leaves
from repro.io.untrusted import message
from repro.models.own import OWN_DATA

# `refusing` reports failures.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


class FakeLayers:
    """The distinct layers of any number of models, each built once, and what was found of them.

    `modules` has one for each kind of layer. A process has one of these for each device, "cpu" or
    "cuda": `fake_layers`.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.modules: dict[Hashable, nn.Module] = {}
        # Recipe -> layer, loss or optimizer, which is kept, since the recipe may be its id.
        self._known: dict[Hashable, Any] = {}
        self._found: dict[Hashable, Any] = {}

    @contextmanager
    def inside(self) -> Iterator[None]:
        on_device = torch.device(self.device) if self.device != "cpu" else nullcontext()
        with self._mode, on_device:
            yield

    def once(self, key: Hashable, find: Callable[[], Any]) -> Any:
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def same(self, function: Any) -> Hashable:
        """A key that is equal for layers, losses or optimizers that are known to do the same."""
        recipe = _recipe(function)
        self._known.setdefault(recipe, function)
        return recipe

    def kinds(self, layers: Sequence[Layer]) -> list[Hashable]:
        """The kind of each layer; factories that are known to do the same have the same kind."""
        kinds = []
        for index, layer in enumerate(layers):
            # A module is not kept, since it may have weights, and each is a kind of its own.
            kind = object() if isinstance(layer, nn.Module) else self.same(layer)
            if kind not in self.modules:
                self.modules[kind] = self._fake(layer, index)
            kinds.append(kind)
        return kinds

    def _fake(self, layer: Layer, index: int) -> nn.Module:
        """The layer on fake tensors."""
        with refusing(f"layers[{index}]", layer, "cannot be built without memory"):
            with torch.device("meta"):  # where initial values cost nothing
                module = layer if isinstance(layer, nn.Module) else layer()
            with self.inside():
                # A deep copy in which every tensor is replaced by a fake one.
                tensors = (*module.parameters(), *module.buffers())
                memo: dict[int, Any] = {id(t): _faked(t, self.device) for t in tensors}
                return deepcopy(module, memo)


@cache
def fake_layers(device: str) -> FakeLayers:
    return FakeLayers(device)


def _faked(tensor: Tensor, device: str) -> Tensor:
    """A fake tensor with the same shape; called in the fake mode."""
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


@contextmanager
def refusing(where: str, layer: object, what: str) -> Iterator[None]:
    """Around a layer, or the loss, that may not work on fake tensors: its error is one line."""
    try:
        yield
    except Exception as error:
        name = getattr(getattr(layer, "func", layer), "__name__", type(layer).__name__)
        raise ValueError(
            f"{where} ({name}) {what}: {type(error).__name__}: {message(error)[:160]}; counting "
            "needs shapes that do not depend on the data, and layers of torch operators alone; "
            f"does it work on a real mini-batch? ({OWN_DATA})"
        ) from error


def mini_batch(tree: Tree, examples: int) -> Tree:
    """A mini-batch of N examples as meta tensors, with the shapes and types of `tree`."""

    def resized(tensor: Tensor) -> Tensor:
        return torch.empty((examples, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

    return map_leaves(Tensor, resized, tree)


def _recipe(layer: Layer) -> Hashable:
    """A key that is equal for factories with equal arguments; of other layers, their identity."""
    if not isinstance(layer, partial):
        return id(layer)
    key = (layer.func, layer.args, tuple(sorted(layer.keywords.items())))
    try:
        hash(key)
    except TypeError:
        return id(layer)
    return key
