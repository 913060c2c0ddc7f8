"""What belongs to which stage: each layer and what it learns to one, and nothing to none.

A stage trains its own parameters. What else its graph ends in would get a gradient that nobody
uses, or would be another stage's weight, of which this process has a copy that is not trained.
"""

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_MOST = 1000  # objects of a container that are looked at


def refuse_foreign_leaves(
    outputs: Iterable[Tensor], own: Iterable[Tensor], ends: Iterable[Any] = ()
) -> None:
    """Raise a ValueError if the outputs' graph would give a gradient to a tensor besides `own`."""
    found = {id(t): t for t in outputs if t.requires_grad and t.grad_fn is None}
    todo: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(ends)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad"):
            found[id(node.variable)] = node.variable
        todo += [before for before, _ in node.next_functions if before is not None]
    for tensor in own if found else ():
        found.pop(id(tensor), None)
    for tensor in found.values():
        if len(gc.get_referrers(tensor)) == 1:  # `found`: a layer has made it, and dropped it
            continue
        raise ValueError(
            f"a layer or the loss uses a tensor of shape {tuple(tensor.shape)} that requires a "
            "gradient and is no parameter of this stage's layers; make it an nn.Parameter here, or "
            "hand it on from the stage that has it; for a penalty over parameters use weight_decay"
        )


def reachable(value: Any) -> Iterator[Any]:
    """The modules and tensors that a function names, or that a container holds.

    Looked at are closures, globals and defaults that the function's code names, the attributes of
    its object that it names, `partial` objects, callable objects, lists, tuples and dicts, and
    functions in all of these.
    """
    todo: deque[Any] = deque([value])
    seen: dict[int, Any] = {}
    while todo:
        value = todo.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Module | Tensor):
            yield value
        else:
            todo += _parts(value)


def _parts(value: Any) -> list[Any]:
    """What an object that is no module holds; a function only holds what its code names."""
    if isinstance(value, MethodType):
        held, function = value.__self__, value.__func__
        if isinstance(held, nn.Module) or not isinstance(function, FunctionType):
            return [held]
        attributes = getattr(held, "__dict__", {})
        return [function, *(attributes[n] for n in names_in(function.__code__) & attributes.keys())]
    if isinstance(value, FunctionType):
        if (value.__module__ or "").startswith("torch."):
            return []
        parts = [value.__globals__[n] for n in names_in(value.__code__) & value.__globals__.keys()]
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # of a name that is not set yet
                parts.append(cell.cell_contents)
        return [*parts, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple | set | deque | dict):
        return list(value.values() if isinstance(value, dict) else value)[:_MOST]
    method = vars(type(value)).get("__call__")
    # An object that is called like a function.
    return [MethodType(method, value)] if isinstance(method, FunctionType) else []


def names_in(code: CodeType) -> set[str]:
    """Globals and attributes that a function's code names, functions inside it included."""
    inside = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inside)
