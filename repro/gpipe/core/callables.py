"""What a callable, such as a loss, names and holds."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

_MOST_MEMBERS = 1000  # of a container that are looked at


def reachable(value: Any, more: Callable[[Any], Sequence[Any]] = lambda _: ()) -> Iterator[Any]:
    """Yield a value, what it names and holds, and so on; see `parts_of`.

    Modules have no parts; `more` gives additional parts of a value.
    """
    todo: deque[Any] = deque([value])
    seen: dict[object, Any] = {}  # kept, so that no other object gets the id of one
    while todo:
        value = todo.popleft()
        is_method = isinstance(value, MethodType)  # made anew each time
        key = (id(value.__self__), id(value.__func__)) if is_method else id(value)
        if key not in seen:
            seen[key] = value
            yield value
            todo += [*parts_of(value), *more(value)]


def parts_of(value: Any) -> list[Any]:
    """The values that a function's code names, or that a container or a callable holds.

    Those are globals, closures and defaults; of a method also the attributes of its object and the
    other methods that its code names. Functions of torch have no parts.
    """
    if isinstance(value, FunctionType):
        if (value.__module__ or "").startswith("torch."):
            return []
        cells = [cell.cell_contents for cell in cells_of(value)]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*globals_of(value).values(), *cells, *defaults]
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
    if not isinstance(function, FunctionType):
        return [held]
    names = names_in(function.__code__)
    attributes: dict[str, Any] = {**getattr(held, "__dict__", {})}
    if isinstance(held, nn.Module):
        attributes |= {**held._parameters, **held._buffers, **held._modules}
    of_class = {name: getattr(type(held), name, None) for name in names - attributes.keys()}
    methods = [MethodType(f, held) for f in of_class.values() if isinstance(f, FunctionType)]
    own = [held] if isinstance(held, nn.Module) else []
    found = [attributes[name] for name in names & attributes.keys()]
    return [*own, *found, *methods]


def names_in(code: CodeType) -> set[str]:
    """Globals and attributes that a function's code names, functions inside it included."""
    inside = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inside)


def globals_of(function: FunctionType) -> dict[str, Any]:
    """The global variables that its code names."""
    variables = function.__globals__
    return {name: variables[name] for name in names_in(function.__code__) & variables.keys()}


def cells_of(function: FunctionType) -> list[CellType]:
    """The variables of its closure that have a value."""
    return [cell for cell in function.__closure__ or () if cell != CellType()]
