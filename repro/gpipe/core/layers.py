"""A model as a sequence of layers: modules, or what is built only where it runs.

That is a zero-argument factory, or a module on the meta device, which has shapes but no memory.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from repro.gpipe.exact import rng

Layer = nn.Module | Callable[[], nn.Module]
# the second is nn.MultiheadAttention's
_RESETS = ("reset_parameters", "_reset_parameters", "reset_running_stats")


def as_layers(layers: Any) -> list[Layer]:
    """The layers of a model, checked.

    Raises:
        ValueError: one line, if this is no sequence of layers, or if two layers on the meta device
            share a parameter.
    """
    if isinstance(layers, nn.Sequential):
        layers = list(layers)
    entries: list[Any] = []
    if isinstance(layers, Sequence | nn.ModuleList) and not isinstance(layers, str):
        entries = [*layers]
    if not entries or not all(callable(entry) for entry in entries):
        wrong = next((e for e in entries if not callable(e)), layers)
        shown = " ".join(str(wrong).split())[:40]
        raise ValueError(
            "layers: expected an nn.Sequential or a sequence of modules or factories, found "
            f"{type(wrong).__name__} ({shown}); list the model's layers in order, each taking one "
            "value and returning one"
        )
    _refuse_shared_on_meta(entries)
    return cast("list[Layer]", entries)


def names(layers: Any) -> list[str]:
    """Each layer's own key in the unsplit model: the child's name in an nn.Sequential, else its index."""
    if isinstance(layers, nn.Sequential):
        found = (name for name, _ in layers.named_modules(remove_duplicate=False))
        return [name for name in found if name and "." not in name]
    return [str(index) for index in range(len(as_layers(layers)))]


def build(layer: Layer, index: int, seed: int, device: torch.device) -> nn.Module:
    """The module on its device: a user's own as it is, anything else made and initialised here.

    Initialised on the CPU from (seed, layer index), so that no K changes it.

    Raises:
        ValueError: if a factory makes no module, or a module on the meta device cannot initialise
            itself.
    """
    others = [*rng.other_sources().values()]
    with rng.preserved(torch.device("cpu"), others):
        rng.reseed(rng.hashed(seed, rng.INITIALISATION, 0, index), torch.device("cpu"), others)
        module = layer if isinstance(layer, nn.Module) else _made(layer, index)
        if any(tensor.is_meta for _, tensor in _tensors(module)):
            module = _materialised(module, index)
    return module.to(device)


def _made(factory: Callable[[], nn.Module], index: int) -> nn.Module:
    """What a factory makes.

    Raises:
        ValueError: if it needs arguments, or makes no module.
    """
    if not _takes_nothing(factory):
        name = getattr(factory, "__name__", type(factory).__name__)
        raise ValueError(
            f"layers[{index}]: {name} needs arguments, and a factory gets none; write lambda: "
            f"{name}(...)"
        )
    made = factory()
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"layers[{index}]: the factory returned {type(made).__name__}, not an nn.Module"
        )
    return made


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments; a builtin that does not tell counts as no."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _tensors(module: nn.Module, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, with their names; without `recurse` only the module's own."""
    return chain(module.named_parameters(recurse=recurse), module.named_buffers(recurse=recurse))


def _materialised(layer: nn.Module, index: int) -> nn.Module:
    """A copy of a module on the meta device, with memory, initialised by its own submodules' reset methods.

    These run as constructors do, submodules first: nn.MultiheadAttention sets its projection's bias
    after that has drawn one. The draws are those of a factory where the constructors do no more
    than call them.

    Raises:
        ValueError: if part of the module is not on the meta device, or would be left without a
            value.
    """
    if real := next((name for name, tensor in _tensors(layer) if not tensor.is_meta), None):
        raise ValueError(
            f"layers[{index}].{real}: not on the meta device as other parts of this layer are, and "
            "initialising the layer would overwrite it; give a factory that makes the whole layer"
        )
    blank = {id(tensor): _blank(tensor) for _, tensor in _tensors(layer)}
    untouched = {id(tensor): tensor._version for tensor in blank.values()}
    # takes the blanks for copies already made: what was tied stays tied
    module = deepcopy(layer, dict(blank))
    for name, part in _parts_first(module):
        reset = next((getattr(part, method) for method in _RESETS if hasattr(part, method)), None)
        if reset is not None and _takes_nothing(reset):
            reset()
        elif own := next((key for key, _ in _tensors(part, recurse=False)), None):
            why = "has no reset_parameters() without arguments"
            raise _not_initialised(index, f"{name}.{own}".lstrip("."), part, why)
    for name, tensor in _tensors(module):
        # No value can mark an integer or a boolean as unset, so there it is that nothing wrote to
        # the tensor.
        if (
            tensor.isnan().any()
            if _has_nan(tensor)
            else untouched.get(id(tensor)) == tensor._version
        ):
            part = module.get_submodule(name.rpartition(".")[0])
            raise _not_initialised(
                index, name, part, "leaves it unset when it resets its parameters"
            )
    return module


def _not_initialised(index: int, name: str, part: nn.Module, why: str) -> ValueError:
    return ValueError(
        f"layers[{index}].{name}: on the meta device, and {type(part).__name__} {why}; "
        "give a factory instead, for example lambda: MyLayer(...)"
    )


def _has_nan(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _blank(tensor: Tensor) -> Tensor:
    """Room for a tensor on the meta device, NaN wherever there is one."""
    room = torch.empty_like(tensor, device="cpu", requires_grad=False)
    if _has_nan(room):
        room.fill_(float("nan"))
    return nn.Parameter(room, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else room


def _parts_first(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """A module's submodules, and theirs, before itself."""
    for name, child in module.named_children():
        yield from _parts_first(child, f"{prefix}{name}.")
    yield prefix.removesuffix("."), module


def on_meta(layers: Sequence[Layer]) -> Iterator[nn.Module]:
    """Every layer; what factories make is made without memory, unless it exists already."""
    for index, layer in enumerate(layers):
        with torch.device("meta"):
            yield layer if isinstance(layer, nn.Module) else _made(layer, index)


def parameter_counts(layers: Sequence[Layer]) -> list[int]:
    """Number of parameters of each layer; factories are only built on the meta device.

    Raises:
        ValueError: if a layer is lazy, so that its parameters have no shape before it has seen
            data.
    """
    for index, layer in enumerate(on_meta(layers)):
        if lazy := next(
            (key for key, p in layer.named_parameters() if nn.parameter.is_lazy(p)), None
        ):
            raise ValueError(
                f"layers[{index}].{lazy}: has no shape before the layer's first forward, so "
                "balance='parameters' cannot count it; give balance='uniform' or a list of layers "
                "per stage, or a layer with sizes, such as nn.Linear in place of nn.LazyLinear"
            )
    return [sum(p.numel() for p in layer.parameters()) for layer in on_meta(layers)]


def refuse_shared(layers: Sequence[Layer], balance: Sequence[int]) -> None:
    """Raise a ValueError if two stages share a parameter or a buffer: each would change its own copy.

    A factory that hands out what exists already is found out by its tensors, which are not on the
    meta device.
    """
    if len(balance) == 1:
        return
    owner: dict[int, tuple[int, Tensor]] = {}  # the tensor too, lest its id be used again
    stages = chain.from_iterable([j] * n for j, n in enumerate(balance))
    for index, (j, layer) in enumerate(zip(stages, on_meta(layers), strict=True)):
        for name, tensor in _tensors(layer):
            if tensor.is_meta and not isinstance(layers[index], nn.Module):
                continue
            first, _ = owner.setdefault(id(tensor), (j, tensor))
            if first != j:
                raise ValueError(
                    f"layers[{index}].{name}: shared by stages {first} and {j}; what is shared "
                    "must lie within one stage: choose a balance that keeps its users together, "
                    "or untie it"
                )


def _refuse_shared_on_meta(layers: Sequence[Any]) -> None:
    """Raise a ValueError if two layers share what is still to be made: each is made on its own."""
    owner: dict[int, int] = {}
    for index, layer in enumerate(layers):
        for name, tensor in _tensors(layer) if isinstance(layer, nn.Module) else ():
            if tensor.is_meta and (first := owner.setdefault(id(tensor), index)) != index:
                raise ValueError(
                    f"layers[{index}].{name}: on the meta device and shared with layers[{first}], "
                    "but each layer there is built on its own; untie it, put both into one layer, "
                    "or give modules that are built already"
                )


def refuse_sync_batchnorm(module: nn.Module, index: int) -> None:
    """Raise a ValueError if a layer waits for ranks that do not have it: they are other stages, not replicas."""
    for name, part in module.named_modules():
        if isinstance(part, nn.SyncBatchNorm):
            raise ValueError(
                f"layers[{index}]{name and '.' + name}: SyncBatchNorm would wait for the other "
                "stages, which do not have this layer; use nn.BatchNorm1d, 2d or 3d"
            )
