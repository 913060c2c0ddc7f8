"""A model as a sequence of layers: modules, or zero-argument factories that build them where they run."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

import torch
from torch import nn

from repro.gpipe import rng

Layer = nn.Module | Callable[[], nn.Module]


def as_layers(layers: object) -> list[Layer]:
    """Check that this is a sequence of layers.

    Raises:
        ValueError: one line that says what it is instead.
    """
    if isinstance(layers, nn.Sequential):
        return list(layers)
    entries = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else None
    if entries is None or not entries or not all(callable(entry) for entry in entries):
        wrong = next((e for e in entries if not callable(e)), "nothing") if entries is not None else layers
        raise ValueError(
            f"layers: expected an nn.Sequential or a sequence of modules or factories, found {type(wrong).__name__} "
            f"({str(wrong)[:40]}); list the model's layers in order, each taking one value and returning one"
        )
    return cast("list[Layer]", entries)


def build(layer: Layer, index: int, seed: int, device: torch.device) -> nn.Module:
    """The module; a factory initialises it from (seed, layer index), on the CPU, so that no K changes it."""
    if not isinstance(layer, nn.Module):
        with rng.preserved(torch.device("cpu")):
            rng.reseed(rng.hashed(seed, rng.INITIALISATION, 0, index), torch.device("cpu"))
            made = layer()
        if not isinstance(made, nn.Module):
            raise ValueError(f"layers[{index}]: the factory returned {type(made).__name__}, not an nn.Module")
        layer = made
    return layer.to(device)


def parameter_counts(layers: Sequence[Layer]) -> list[int]:
    """Number of parameters of each layer; factories are only built on the meta device."""

    def count(layer: Layer) -> int:
        if not isinstance(layer, nn.Module):
            with torch.device("meta"):
                layer = layer()
        return sum(p.numel() for p in layer.parameters())

    return [count(layer) for layer in layers]


def refuse_shared(layers: Sequence[Layer], balance: Sequence[int]) -> None:
    """Raise a ValueError if two stages share a parameter: each would train its own copy."""
    owner: dict[int, int] = {}
    stages = chain.from_iterable([j] * n for j, n in enumerate(balance))
    for index, (j, layer) in enumerate(zip(stages, layers, strict=True)):
        if not isinstance(layer, nn.Module):
            continue
        for name, parameter in layer.named_parameters():
            first = owner.setdefault(id(parameter), j)
            if first != j:
                raise ValueError(
                    f"layers[{index}].{name}: shared by stages {first} and {j}; a shared parameter must lie within "
                    "one stage: choose a balance that keeps its users together, or untie it"
                )
