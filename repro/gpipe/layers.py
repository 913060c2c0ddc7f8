"""A model as a sequence of layers: modules, or zero-argument factories that build them where they run."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import nn

from repro.gpipe import rng

Layer = nn.Module | Callable[[], nn.Module]


def as_layers(layers: object) -> tuple[list[Layer], list[str]]:
    """The layers, and their keys in the unsplit model's state dict.

    Raises:
        ValueError: one line that says what it is instead.
    """
    named = dict(layers.named_children()) if isinstance(layers, nn.Sequential) else {}
    if isinstance(layers, nn.Sequential):
        layers = list(layers)
    entries: list[Any] = []
    if isinstance(layers, Sequence | nn.ModuleList) and not isinstance(layers, str):
        entries = [*layers]
    if not entries or not all(callable(entry) for entry in entries):
        wrong = next((e for e in entries if not callable(e)), layers)
        shown = " ".join(str(wrong).split())[:40]
        raise ValueError(
            f"layers: expected an nn.Sequential or a sequence of modules or factories, found {type(wrong).__name__} "
            f"({shown}); list the model's layers in order, each taking one value and returning one"
        )
    return cast("list[Layer]", entries), [*named] if len(named) == len(entries) else [
        str(n) for n in range(len(entries))
    ]


def build(layer: Layer, index: int, seed: int, device: torch.device) -> nn.Module:
    """The module; a factory initialises it from (seed, layer index), on the CPU, so that no K changes it."""
    if not isinstance(layer, nn.Module):
        with rng.preserved(torch.device("cpu")):
            rng.reseed(rng.hashed(seed, rng.INITIALISATION, 0, index), torch.device("cpu"))
            layer = _made(layer, index)
    return layer.to(device)


def _made(factory: Callable[[], nn.Module], index: int) -> nn.Module:
    """What a factory makes.

    Raises:
        ValueError: if it needs arguments, or makes no module.
    """
    try:
        inspect.signature(factory).bind()
    except (TypeError, ValueError):  # ValueError: a builtin that does not tell what it takes
        name = getattr(factory, "__name__", type(factory).__name__)
        raise ValueError(
            f"layers[{index}]: {name} needs arguments, and a factory gets none; write lambda: {name}(...)"
        ) from None
    made = factory()
    if not isinstance(made, nn.Module):
        raise ValueError(f"layers[{index}]: the factory returned {type(made).__name__}, not an nn.Module")
    return made


def on_meta(layers: Sequence[Layer]) -> Iterator[nn.Module]:
    """Every layer; what factories make is made without memory, unless it exists already."""
    for index, layer in enumerate(layers):
        with torch.device("meta"):
            yield layer if isinstance(layer, nn.Module) else _made(layer, index)


def parameter_counts(layers: Sequence[Layer]) -> list[int]:
    """Number of parameters of each layer; factories are only built on the meta device."""
    return [sum(p.numel() for p in layer.parameters()) for layer in on_meta(layers)]


def refuse_shared(layers: Sequence[Layer], balance: Sequence[int]) -> None:
    """Raise a ValueError if two stages share a parameter: each would train its own copy.

    A factory that hands out what exists already is found out by its parameters, which are not on the meta device.
    """
    if len(balance) == 1:
        return
    owner: dict[int, tuple[int, nn.Parameter]] = {}  # the parameter too, lest its id be used again
    stages = chain.from_iterable([j] * n for j, n in enumerate(balance))
    for index, (j, layer) in enumerate(zip(stages, on_meta(layers), strict=True)):
        for name, parameter in layer.named_parameters():
            if parameter.is_meta and not isinstance(layers[index], nn.Module):
                continue
            first, _ = owner.setdefault(id(parameter), (j, parameter))
            if first != j:
                raise ValueError(
                    f"layers[{index}].{name}: shared by stages {first} and {j}; a shared parameter must lie within "
                    "one stage: choose a balance that keeps its users together, or untie it"
                )
