"""An optimizer's state by the names of its parameters, so that it can be cut again with the layers.

torch numbers parameters by their place in the optimizer, which says nothing once another K cuts the
model elsewhere.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# What belongs to a process and not to the training: the members, and how to run on its device.
_OWN = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")


class Group(TypedDict):
    """The options of one parameter group and whose they are."""

    names: list[str]
    options: dict[str, Any]


class Named(TypedDict):
    """An optimizer's groups, and each parameter's state under the parameter's first name."""

    groups: list[Group]
    state: dict[str, dict[str, Any]]


def refuse_no_optimizer(value: object) -> None:
    """Raise a ValueError unless it can be used as one of torch.optim's optimizers."""
    needed = ("step", "zero_grad", "state_dict", "param_groups")
    if isinstance(value, type) or not all(hasattr(value, name) for name in needed):
        found = (
            f"the class {value.__name__}"
            if isinstance(value, type)
            else f"a {type(value).__name__}"
        )
        raise ValueError(
            f"optimizer: {found}, which is no optimizer; make one of torch.optim from "
            "pipe.parameters()"
        )


def named(optimizer: Optimizer, module: nn.Module) -> Named:
    """The state of an optimizer of this module's parameters; tensors are not copied.

    Raises:
        ValueError: if it holds a parameter or a state that is not of this module, or a value that
            cannot be saved.
    """
    names = [_names(group, module) for group in optimizer.param_groups]
    order = [name for group in names for name in group]
    found = optimizer.state_dict()
    if strange := [key for key in found["state"] if not isinstance(key, int)]:
        raise ValueError(
            f"optimizer: state {strange[0]!r} belongs to no parameter and cannot be cut into stages"
        )
    return {
        "groups": [
            {"names": group, "options": {k: plain(v, k) for k, v in saved.items() if k not in _OWN}}
            for group, saved in zip(names, found["param_groups"], strict=True)
        ],
        "state": {order[n]: plain(state, order[n]) for n, state in found["state"].items()},
    }


def positional(saved: Sequence[Named], optimizer: Optimizer, module: nn.Module) -> dict[str, Any]:
    """What `optimizer.load_state_dict` takes, copied from the states that several stages saved.

    A group's options come from the saved groups of its parameters. Options that were not saved,
    because a scheduler or another version of torch added them since, stay as they are; so do those
    of a group without parameters.

    Raises:
        ValueError: if the two optimizers do not have the same ones of this module's parameters, or
            the parameters of one group were saved with different options.
    """
    options = {
        name: group["options"]
        for part in saved
        for group in part["groups"]
        for name in group["names"]
    }
    states = {name: state for part in saved for name, state in part["state"].items()}
    names = [_names(group, module) for group in optimizer.param_groups]
    order = [name for group in names for name in group]
    if missing := [name for name in order if name not in options]:
        raise ValueError(
            f"optimizer: {missing[0]} was not in the saved optimizer; load without one and start "
            "afresh"
        )
    own = {name for name, _ in module.named_parameters()}
    if dropped := [name for name in options if name in own and name not in order]:
        raise ValueError(
            f"optimizer: {dropped[0]} was in the saved optimizer and is not in this one; add it"
        )
    groups, start = [], 0
    for group, members in zip(optimizer.param_groups, names, strict=True):
        own_options = {k: v for k, v in group.items() if k != "params"}
        places = list(range(start, start := start + len(members)))
        groups.append(own_options | _agreed(members, options) | {"params": places})
    _refuse_other_groups(saved, names)
    state = {n: copy.deepcopy(states[name]) for n, name in enumerate(order) if name in states}
    return {"state": state, "param_groups": groups}


def plain(value: Any, where: str) -> Any:
    """The value in types that load without running code: tensors, numbers, strings, lists, tuples and dicts.

    Raises:
        ValueError: if it holds anything else; `where` names it.
    """
    if value is None or type(value) in (bool, int, float, str, Tensor, nn.Parameter):
        return value
    if isinstance(value, Mapping):
        return {plain(k, where): plain(v, where) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(plain(v, where) for v in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()  # a learning rate that was computed with numpy
    raise ValueError(
        f"{where}: a {type(value).__name__} cannot be saved; use tensors, numbers, strings, lists, "
        "tuples and dicts"
    )


def _names(group: Mapping[str, Any], module: nn.Module) -> list[str]:
    """The names of a group's parameters; a parameter with two names goes by its first."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    for parameter in group["params"]:
        if parameter not in names:
            raise ValueError(
                f"optimizer: a parameter of shape {tuple(parameter.shape)} is not of this stage's "
                "layers; make the optimizer from pipe.parameters()"
            )
    return [names[parameter] for parameter in group["params"]]


def _refuse_other_groups(saved: Sequence[Named], names: Sequence[Sequence[str]]) -> None:
    """Raise a ValueError if a saved group would be split here, or two groups of one stage be joined.

    torch refuses another number of groups, too: their options would be taken over in silence.
    """
    places = {
        name: (j, n)
        for j, part in enumerate(saved)
        for n, group in enumerate(part["groups"])
        for name in group["names"]
    }
    group_of: dict[tuple[int, int], int] = {}
    for here, members in enumerate(names):
        stages: dict[int, int] = {}
        for name in members:
            j, n = places[name]
            if group_of.setdefault((j, n), here) != here or stages.setdefault(j, n) != n:
                raise ValueError(
                    f"optimizer: its parameter groups are not those that were saved (see {name}), "
                    "and loading would change their options; make the groups as they were, or "
                    "load without an optimizer"
                )


def _agreed(names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The options that all these parameters were saved with."""
    agreed = options[names[0]] if names else {}
    for name in names:
        for key in agreed.keys() | options[name].keys():
            ours, theirs = agreed.get(key), options[name].get(key)
            if not _same(ours, theirs):
                raise ValueError(
                    f"optimizer: {names[0]} and {name} are in one group, but were saved with "
                    f"{key}={ours!r} and {key}={theirs!r}; make the groups as they were"
                )
    return dict(agreed)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Tensor) or isinstance(theirs, Tensor):
        return isinstance(ours, Tensor) and isinstance(theirs, Tensor) and torch.equal(ours, theirs)
    return ours == theirs
