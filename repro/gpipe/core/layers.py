"""A model as a sequence of layers: modules, or factories, which are called only where they run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

from repro.gpipe.exact import rng
from repro.io.untrusted import short

Layer = nn.Module | Callable[[], nn.Module]
_RUNS = ("forward", "__call__", "__iter__")  # methods by which a container runs its layers


def as_layers(layers: Any) -> list[Layer]:
    """The layers of a model, checked."""
    if isinstance(layers, nn.Sequential | nn.ModuleList):
        problem = more_than_a_sequence(layers, "layers")
        if problem:
            raise ValueError(problem)
    entries: list[Any] = []
    if isinstance(layers, Sequence | nn.Sequential | nn.ModuleList):
        entries = [*layers]
    if not entries or not all(map(callable, entries)):
        wrong = next((e for e in entries if not callable(e)), layers)
        raise ValueError(
            "layers: expected an nn.Sequential or a sequence of modules or factories in order, "
            f"found {type(wrong).__name__} ({short(wrong)})"
        )
    return entries


def more_than_a_sequence(module: nn.Module, what: str) -> str:
    """Parts of a container that would not run if its layers run in order; or empty."""
    kind, extra = type(module), ""
    plain = nn.Sequential if isinstance(module, nn.Sequential) else nn.ModuleList
    hooks = [key for key, value in vars(module).items() if key.endswith("_hooks") and value]
    if any(getattr(kind, m) is not getattr(plain, m) for m in _RUNS) or "forward" in vars(module):
        extra = "a forward of its own"
    elif module._parameters or module._buffers:
        extra = f"{next(iter({**module._parameters, **module._buffers}))!r} of its own"
    elif hooks:
        extra = "hooks of its own"
    return extra and (
        f"{what}: {kind.__name__} has {extra}, and a Pipeline runs its layers one after the other "
        "without it; make that a layer of its own, or wrap the model in a layer: "
        "nn.Sequential(model)"
    )


def names(layers: Any) -> list[str]:
    """Each layer's key in the unsplit model: its name in an nn.Sequential, otherwise its index."""
    if isinstance(layers, nn.Sequential):
        return [*layers._modules]
    return [str(index) for index in range(len(as_layers(layers)))]


def build(layer: Layer, index: int, seed: int, device: torch.device) -> nn.Module:
    """The module of a layer, on its device.

    A factory initialises its module on the CPU from (seed, layer index), so with the same values
    for every K. A module is taken as it is.
    """
    cpu, others = torch.device("cpu"), rng.other_sources()
    with rng.preserved(cpu, others):
        rng.reseed(rng.hashed(seed, rng.INITIALISATION, 0, index), cpu, others.values())
        module = layer if isinstance(layer, nn.Module) else layer()
    return module.to(device)  # an error if another Pipeline trains it elsewhere


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters of these modules themselves, each once."""
    unique = {id(p): p for part in modules for p in part._parameters.values() if p is not None}
    return [*unique.values()]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and at the end each part of it into its own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        # By train(), which layers may override: LoRA's takes its product out of the weight.
        for part, training in modes:
            if part.training != training:
                part.train(training)
        for part, training in modes:
            part.training = training


def on_meta(layers: Sequence[Layer]) -> Iterator[nn.Module]:
    """Every layer as a module; those of factories are made on the meta device."""
    for layer in layers:
        # Whoever takes the layer does not run under the meta device.
        with torch.device("meta"):
            made = layer if isinstance(layer, nn.Module) else layer()
        yield made


def parameter_counts(layers: Sequence[Layer]) -> list[int]:
    """Number of parameters of each layer; factories are called on the meta device."""
    return [sum(p.numel() for p in layer.parameters()) for layer in on_meta(layers)]


def refuse_shared(layers: Sequence[Layer], balance: Sequence[int]) -> None:
    """Raise a ValueError if two stages share a parameter or buffer: each would change its own.

    A tensor of a factory that is not on the meta device exists already, so it can be shared.
    """
    if len(balance) == 1:
        return
    # Tensor -> its first layer. It is kept, so that no other one gets its id.
    first_layer: dict[int, tuple[int, Any]] = {}
    stage_of = [j for j, count in enumerate(balance) for _ in range(count)]
    for index, layer in enumerate(on_meta(layers)):
        for name, tensor in chain(layer.named_parameters(), layer.named_buffers()):
            if layer is not layers[index] and tensor.is_meta:
                continue
            first, _ = first_layer.setdefault(id(tensor), (index, tensor))
            if stage_of[first] != stage_of[index]:
                raise ValueError(
                    f"layers[{index}].{name}: shared by stages {stage_of[first]} and "
                    f"{stage_of[index]}; return it from the first with the output and hand it on "
                    "(docs/library.md, 'tied weights'), or choose a balance that joins its users"
                )


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has made it, or its own compile() was called."""
    return hasattr(module, "_orig_mod") or vars(module).get("_compiled_call_impl") is not None


def refuse_unfit(module: nn.Module, index: int, stages: int) -> None:
    """Raise a ValueError if a layer cannot be run exactly on K stages."""
    for name, part in module.named_modules():
        path = f"layers[{index}].{name}".rstrip(".")
        waits = isinstance(part, nn.SyncBatchNorm | nn.parallel.DistributedDataParallel)
        if waits and stages > 1:
            raise ValueError(
                f"{path}: {type(part).__name__} would wait for the other stages, which do not have "
                "this layer; use nn.BatchNorm1d, 2d or 3d, and replicas=D"
            )
        is_fixed = is_compiled(part) or isinstance(part, torch.jit.ScriptModule)
        if is_fixed and any(hasattr(each, "running_mean") for each in part.modules()):
            raise ValueError(
                f"{path}: a compiled or scripted layer that holds a norm with running statistics, "
                "which move once a step; compile the parts beside the norm"
            )
