"""Layers without memory: built once for each distinct layer, on fake tensors, which know shapes and no values.

Fake CUDA tensors fail where torch finds no GPU, so they are the CPU's unless a GPU is asked for;
bytes and operations are the same but for kernels that only one of the two has, such as dropout,
which keeps bytes there and floats here.
"""

import logging
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode  # private: the one place that imports it

from repro.gpipe.core.layers import Layer
from repro.gpipe.core.microbatch import Tree, map_leaves
from repro.io.untrusted import message

# what fails is told by `refusal`
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
_PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.Size,
    torch.device,
    type,
)


class UncountableError(ValueError):
    """A layer works on real tensors perhaps, but fake ones cannot tell: one line."""


class Zoo:
    """Distinct layers, each built once, of as many models as one likes.

    Attributes:
        device: whose operators they run.
        modules: one for each kind of layer.

    Raises:
        ValueError: for a GPU where there is none.
    """

    def __init__(self, device: str = "cpu") -> None:
        if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
            raise ValueError(
                f"device={device!r}: counting is on 'cpu', or on 'cuda' where torch can use a GPU"
            )
        self.device = device
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.modules: list[nn.Module] = []
        # the layer too, lest its id be used again
        self._made: dict[Hashable, tuple[int, Layer]] = {}
        self._known: dict[Hashable, int] = {}
        self._functions: list[Any] = []  # lest an id be used again

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Tensors that are made here are fake ones on the device."""
        with self._mode, torch.device(self.device) if self.device != "cpu" else nullcontext():
            yield

    def same(self, function: Any) -> Hashable:
        """Equal for a loss or an optimizer that does the same."""
        self._functions.append(function)
        return _recipe(function)

    def kinds(self, layers: Sequence[Layer]) -> list[int]:
        """For each layer the number of its kind; equal layers have the same.

        Raises:
            ValueError: one line, naming a layer that cannot be built without memory.
        """
        found = []
        for index, layer in enumerate(layers):
            recipe = _recipe(layer)
            if recipe not in self._made:
                module = self._build(layer, index)
                kind = self._known.setdefault(_signature(module), len(self.modules))
                if kind == len(self.modules):
                    self.modules.append(module)
                self._made[recipe] = kind, layer
            found.append(self._made[recipe][0])
        return found

    def _build(self, layer: Layer, index: int) -> nn.Module:
        try:
            with torch.device("meta"):  # initial values cost nothing there
                module = layer if isinstance(layer, nn.Module) else layer()
            with self.inside():
                memo: dict[int, Any] = {
                    id(t): _faked(t, self.device) for t in (*module.parameters(), *module.buffers())
                }
                return deepcopy(module, memo)
        except Exception as error:
            raise refusal(
                f"layers[{index}]", layer, "cannot be built without memory", error
            ) from error


def _faked(tensor: Tensor, device: str) -> Tensor:
    """A tensor of the same shape without memory; called in the fake mode."""
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def refusal(where: str, layer: object, what: str, error: Exception) -> ValueError:
    """One line about a layer, or the loss, that does not work on fake tensors."""
    name = getattr(getattr(layer, "func", layer), "__name__", type(layer).__name__)
    reason = message(error)[:160]
    kind = type(error).__name__
    told = f"{where} ({name}) {what}: {kind}: {reason}"
    if kind.startswith(
        ("DataDependent", "DynamicOutput", "UnsupportedFake", "UnsupportedOperator", "GuardOnData")
    ):
        hint = (
            "counting needs shapes that do not depend on the data, and layers of torch operators "
            "alone"
        )
        return UncountableError(f"{told}; {hint}")
    return ValueError(f"{told}; does it work on a real mini-batch?")


def mini_batch(tree: Tree, examples: int) -> Tree:
    """The same tree as meta tensors of a mini-batch of N examples: shapes and types, no memory."""

    def resized(tensor: Tensor) -> Tensor:
        return torch.empty((examples, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

    return map_leaves(Tensor, resized, tree)


def _recipe(layer: Layer) -> Hashable:
    """Equal for layers that come out alike: a factory with equal arguments, the very same object, else nothing."""
    if isinstance(layer, partial):
        try:
            key = (layer.func, layer.args, tuple(sorted(layer.keywords.items())))
            hash(key)
        except TypeError:
            return id(layer)
        return key
    return id(layer)


def _signature(module: nn.Module) -> Hashable:
    """Equal for modules that compute alike; what is not understood counts as different unless it is the same object."""
    tensors = {**module._parameters, **module._buffers}
    shapes = tuple(
        (n, t is not None and (t.shape, t.dtype, t.requires_grad)) for n, t in tensors.items()
    )
    skipped = ("_parameters", "_buffers", "_modules")
    own = tuple(
        (name, _plain(value)) for name, value in vars(module).items() if name not in skipped
    )
    parts = tuple(
        (name, _signature(part) if part is not None else None)
        for name, part in module._modules.items()
    )
    return (type(module), shapes, own, parts)


def _plain(value: Any) -> Hashable:
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, list | tuple):
        return (type(value), *map(_plain, value))
    if isinstance(value, dict):
        return (type(value), *((key, _plain(part)) for key, part in value.items()))
    if isinstance(value, set | frozenset) and not value:
        return (type(value),)
    return id(value)
