"""What a callable, such as a loss, names and holds."""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

_MOST_MEMBERS = 1000  # of a container that are looked at


def reachable(value: Any) -> Iterator[Any]:
    """Yield a value, what it names and holds, and so on; see `_parts_of`."""
    todo: deque[Any] = deque([value])
    seen: dict[object, Any] = {}  # kept, so that no other object gets the id of one
    while todo:
        value = todo.popleft()
        is_method = isinstance(value, MethodType)  # made anew each time
        key = (id(value.__self__), id(value.__func__)) if is_method else id(value)
        if key not in seen:
            seen[key] = value
            yield value
            todo += _parts_of(value)


def _parts_of(value: Any) -> list[Any]:
    """The values that a function's code names, or that a container or a callable holds.

    Those are globals, closures and defaults; of a method also the attributes of its object and the
    other methods that its code names. Modules and functions of torch have no parts.
    """
    if isinstance(value, FunctionType):
        if (value.__module__ or "").startswith("torch."):
            return []
        variables = value.__globals__
        named = [variables[name] for name in names_in(value.__code__) & variables.keys()]
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return [*named, *cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, MethodType):
        return [value.__func__, *_named_of(value.__self__, value.__func__)]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple | set | deque | dict):
        members = value.values() if isinstance(value, dict) else value
        return [*islice(members, _MOST_MEMBERS)]
    if isinstance(value, nn.Module):
        return []
    # An object that is called like a function.
    call = getattr(type(value), "__call__", None)  # noqa: B004
    return [MethodType(call, value)] if isinstance(call, FunctionType) else []


def _named_of(held: Any, function: Any) -> list[Any]:
    """The object of a method if it is a module, and its attributes and methods that code names."""
    own = [held] if isinstance(held, nn.Module) else []
    names = names_in(function.__code__) if isinstance(function, FunctionType) else set()
    attributes = getattr(held, "__dict__", {})
    of_class = [getattr(type(held), name, None) for name in names - attributes.keys()]
    methods = [MethodType(f, held) for f in of_class if isinstance(f, FunctionType)]
    return [*own, *(attributes[name] for name in names & attributes.keys()), *methods]


def names_in(code: CodeType) -> set[str]:
    """Globals and attributes that a function's code names, functions inside it included."""
    inside = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inside)
