"""An optimizer's state by the names of its parameters, so that another K can load it.

torch numbers parameters by their position in the optimizer, which has no meaning in stages that
another K has cut. So each parameter is saved with its own state and the options of its group.
"""

import copy
from collections.abc import Sequence
from typing import Any, TypedDict

from torch import nn
from torch.optim import Optimizer

from repro.io.untrusted import short

# Options that belong to a process and not to the training: the members, and the implementation.
_PROCESS_OPTIONS = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")


class NamedState(TypedDict):
    """The class of an optimizer, and of each parameter its "options" and its "state"."""

    kind: str
    parameters: dict[str, dict[str, dict[str, Any]]]


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
    refuse_no_optimizer(optimizer)
    state_dict = optimizer.state_dict()
    named: NamedState = {"kind": type(optimizer).__qualname__, "parameters": {}}
    for members, group in zip(_names(optimizer, module), state_dict["param_groups"], strict=True):
        options = {key: value for key, value in group.items() if key not in _PROCESS_OPTIONS}
        for name, position in zip(members, group["params"], strict=True):
            state = state_dict["state"].get(position, {})
            named["parameters"][name] = {"options": options, "state": state}
    return named


def positional_state(
    stages: Sequence[NamedState], optimizer: Optimizer, module: nn.Module
) -> dict[str, Any]:
    """The argument of `optimizer.load_state_dict`, copied from the states that stages saved.

    A group's options are those that its parameters were saved with. Options that were not saved,
    because a scheduler or another version of torch added them since, stay as they are. So do the
    options of a group without parameters.
    """
    refuse_no_optimizer(optimizer)
    kind = type(optimizer).__qualname__
    for stage in stages:
        if stage["kind"] != kind:
            raise ValueError(f"optimizer: saved with {stage['kind']}, not {kind}; load it as saved")
    saved = {name: value for stage in stages for name, value in stage["parameters"].items()}
    of_module = {name for name, _ in module.named_parameters()}
    names = _names(optimizer, module)
    order = [name for members in names for name in members]
    for name in sorted({*order} ^ (saved.keys() & of_module)):
        raise ValueError(
            f"optimizer: {name} is in only one of the saved optimizer and this one; make it as it "
            "was, or load without an optimizer"
        )
    groups: list[dict[str, Any]] = []
    positions = iter(range(len(order)))
    for group, members in zip(optimizer.param_groups, names, strict=True):
        options = group
        for name in members:
            options = saved[name]["options"]
            first = saved[members[0]]["options"]
            if options != first:
                raise ValueError(
                    f"optimizer: {members[0]} and {name} are in one group, but were saved with "
                    f"{short(first)} and {short(options)}; make the groups as they were"
                )
        groups.append(group | options | {"params": [next(positions) for _ in members]})
    state = {n: copy.deepcopy(saved[name]["state"]) for n, name in enumerate(order)}
    return {"state": {n: each for n, each in state.items() if each}, "param_groups": groups}


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
