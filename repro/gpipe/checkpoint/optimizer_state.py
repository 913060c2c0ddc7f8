"""An optimizer's state by the names of its parameters, so that another K can load it.

torch numbers parameters by their position in the optimizer, which has no meaning in stages that
another K has cut.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor, nn
from torch.optim import Optimizer

from repro.io.untrusted import short

# Options that belong to a process and not to the training: the members, and the implementation.
_PROCESS_OPTIONS = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")


class NamedState(TypedDict):
    """An optimizer's groups, and each parameter's state under the parameter's first name."""

    groups: list[dict[str, Any]]  # of each the "names" of its parameters and its "options"
    state: dict[str, dict[str, Any]]


def refuse_no_optimizer(value: object) -> None:
    """Raise a ValueError unless it can be used as one of torch.optim's optimizers."""
    needed = ("step", "zero_grad", "state_dict", "param_groups")
    if isinstance(value, type) or not all(hasattr(value, name) for name in needed):
        raise ValueError(
            f"optimizer: {short(value)} is no optimizer; make one of torch.optim from "
            "pipe.parameters()"
        )


def named_state(optimizer: Optimizer, module: nn.Module) -> NamedState:
    """The state of an optimizer of this module's parameters; tensors are not copied."""
    names = _names(optimizer, module)
    order = [name for group in names for name in group]
    state_dict = optimizer.state_dict()
    groups: list[dict[str, Any]] = []
    for members, saved in zip(names, state_dict["param_groups"], strict=True):
        options = {k: plain(v, k) for k, v in saved.items() if k not in _PROCESS_OPTIONS}
        groups.append({"names": members, "options": options})
    state = {order[n]: plain(value, order[n]) for n, value in state_dict["state"].items()}
    return {"groups": groups, "state": state}


def positional_state(
    saved: Sequence[NamedState], optimizer: Optimizer, module: nn.Module
) -> dict[str, Any]:
    """The argument of `optimizer.load_state_dict`, copied from the states that stages saved.

    A group's options come from the saved groups of its parameters. Options that were not saved,
    because a scheduler or another version of torch added them since, stay as they are. So do the
    options of a group without parameters.
    """
    group_of = {
        name: group for part in saved for group in part["groups"] for name in group["names"]
    }
    states = {name: state for part in saved for name, state in part["state"].items()}
    names = _names(optimizer, module)
    order = [name for group in names for name in group]
    of_module = {name for name, _ in module.named_parameters()}
    for name in sorted({*order} ^ (group_of.keys() & of_module)):
        raise ValueError(
            f"optimizer: {name} is in only one of the saved optimizer and this one; make it as it "
            "was, or load without an optimizer"
        )
    groups: list[dict[str, Any]] = []
    positions = iter(range(len(order)))
    for group, members in zip(optimizer.param_groups, names, strict=True):
        present = {k: v for k, v in group.items() if k != "params"}
        params = [next(positions) for _ in members]
        options = _saved_options([group_of[name] for name in members], members, order)
        groups.append(present | options | {"params": params})
    state = {n: copy.deepcopy(states[name]) for n, name in enumerate(order) if name in states}
    return {"state": state, "param_groups": groups}


def plain(value: Any, where: str) -> Any:
    """The value in types that torch loads without running code.

    These are tensors, numbers, strings, lists, tuples and dicts.
    """
    if value is None or type(value) in (bool, int, float, str, Tensor, nn.Parameter):
        return value
    if isinstance(value, Mapping):
        return {plain(k, where): plain(v, where) for k, v in value.items()}
    if isinstance(value, list | tuple):
        members = [plain(member, where) for member in value]
        return tuple(members) if isinstance(value, tuple) else members
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()  # such as a learning rate that was computed with NumPy
    raise ValueError(
        f"{where}: a {type(value).__name__} cannot be saved; use tensors, numbers, strings, lists, "
        "tuples and dicts"
    )


def _names(optimizer: Optimizer, module: nn.Module) -> list[list[str]]:
    """For each group the names of its parameters; one with two names goes by its first."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter not in names:
            raise ValueError(
                f"optimizer: a parameter of shape {tuple(parameter.shape)} is not of this stage's "
                "layers; make the optimizer from pipe.parameters()"
            )
    return [[names[p] for p in group["params"]] for group in optimizer.param_groups]


def _saved_options(
    groups: Sequence[dict[str, Any]], members: Sequence[str], order: Sequence[str]
) -> dict[str, Any]:
    """The options with which the members of a group were saved; `groups` has the one of each.

    A ValueError if a group is split, or if groups with other options are joined: options would
    change silently.
    """
    saved_together = {name for group in groups for name in group["names"]}
    if not saved_together.intersection(order).issubset(members):
        raise ValueError(
            "optimizer: its parameter groups are not those that were saved, and loading would "
            "change their options; make the groups as they were, or load without an optimizer"
        )
    for name, group in zip(members, groups, strict=True):
        if group["options"] != groups[0]["options"]:
            raise ValueError(
                f"optimizer: {members[0]} and {name} are in one group, but were saved with "
                f"{short(groups[0]['options'])} and {short(group['options'])}; make the groups as "
                "they were"
            )
    return groups[0]["options"] if groups else {}
