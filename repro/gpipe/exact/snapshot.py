"""What modules, losses and objects hold besides parameters: to see a change, and to put it back."""

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.exact import rng
from repro.gpipe.exact.inputs import versions

OWN_KEYS = frozenset(vars(nn.Module()))  # attributes that every module has
_MOST = 1000  # members of a container that is looked at
_PLAIN = bool | int | float | complex | str | None
_CONTAINERS = dict | list | deque | set | tuple
_ABSENT: Any = object()  # the value of a key that a dict does not have
# A dict, such as the attributes or buffers of a module, and a key; or a collection, a generator or
# an array, whose content counts as one value, and None.
Place = tuple[Any, Any]


class Snapshot:
    """The values at places at one time, with copies of tensors.

    A change of a value is found by identity, and by the version of a tensor, or also by comparing
    all tensors with their copies, since a write through `.data` is no change of version.

    Attributes:
        places: those that can be put back.
        index: for the key of a place (see `key`) its number in `places`.
        values: those at the places.
    """

    def __init__(self, held: Iterable[Any]) -> None:
        """Take a snapshot of the dicts, collections, generators and arrays among what is given."""
        every = [each for each in held if not isinstance(each, _CONTAINERS) or len(each) <= _MOST]
        self._dicts: list[dict[Any, Any]] = [each for each in every if isinstance(each, dict)]
        self._lengths = [*map(len, self._dicts)]
        others = [(each, None) for each in every if _content_of(each)]
        self.places: list[Place] = [*_places(self._dicts), *others]
        self.index = {key(place): k for k, place in enumerate(self.places)}
        self.values: list[Any] = [_ABSENT] * len(self.places)
        self._copies: list[tuple[int, Tensor, Tensor]] = []  # places, tensors there, and copies
        self.take(range(len(self.places)))

    def take(self, which: Iterable[int], *, copies: bool = True) -> None:
        """Take the values that some places have now; without copies by identity alone."""
        numbers = {*which}
        self._copies = [each for each in self._copies if each[0] not in numbers]
        for k in numbers:
            value = self.values[k] = read(self.places[k])
            found = _tensors(value) if copies else []
            self._copies += [(k, tensor, tensor.detach().clone()) for tensor in found]
        self._versions = self._versions_now()

    def has_all_keys(self) -> bool:
        """Whether no dict has got or lost a key."""
        return [*map(len, self._dicts)] == self._lengths

    def changed(self, *, closely: bool = False) -> list[int]:
        """The numbers of places that have another value now; `closely` compares all tensors."""
        now = [read(place) for place in self.places]
        both = zip(self.places, now, self.values, strict=True)
        found = [k for k, (at, a, b) in enumerate(both) if a is not b and not _is_equal(at, a, b)]
        both_versions = zip(self._copies, self._versions_now(), self._versions, strict=True)
        found += [k for (k, _, _), version, before in both_versions if version != before]
        if closely:
            found += [k for k, tensor, copy in self._copies if not _has_values_of(tensor, copy)]
        return [*dict.fromkeys(found)]

    def made(self) -> list[Place]:
        """Places that the dicts did not have then."""
        return [place for place in _places(self._dicts) if key(place) not in self.index]

    @torch.no_grad()
    def restore(self, which: Iterable[int] | None = None) -> None:
        """Put the values at some places back, or at all, and remove what was made since."""
        numbers = {*(self.changed(closely=True) if which is None else which)}
        for k, tensor, copy in self._copies:
            if k in numbers:
                tensor.copy_(copy)
        for k in numbers:
            write(self.places[k], self.values[k])
        for place in self.made():
            write(place, _ABSENT)

    def _versions_now(self) -> list[int]:
        return versions([tensor for _, tensor, _ in self._copies])


@contextmanager
def state_preserved(*roots: Any) -> Iterator[None]:
    """Put back what calls of losses or modules change in them, but not in parameters."""
    snapshot = Snapshot(held_by(roots))
    try:
        yield
    finally:
        snapshot.restore()


def held_by(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield modules and objects, what they hold, and so on.

    Objects only of the packages of the roots and of modules in them, since others may have threads
    or files. Not the attributes of torch's own modules, which no forward changes, but their
    buffers.
    """
    todo, seen = [*roots], dict[int, Any]()
    parts = chain.from_iterable(r.modules() if isinstance(r, nn.Module) else [r] for r in todo)
    packages = {_package(part) for part in parts} - {"torch", "builtins"}
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        if isinstance(value, dict):
            todo += [each for name, each in value.items() if name not in OWN_KEYS]
        elif isinstance(value, _CONTAINERS):
            todo += value if len(value) <= _MOST else ()
        elif isinstance(value, nn.Module):
            own = [] if _package(value) == "torch" else [vars(value)]
            todo += [value._buffers, value._modules, *own]
        elif _package(value) in packages:
            todo.append(getattr(value, "__dict__", {}))


def key(place: Place) -> tuple[int, Any]:
    """What tells a place from others."""
    holder, name = place
    return id(holder), name


def read(place: Place) -> Any:
    """The value at a place."""
    holder, name = place
    if isinstance(holder, dict):
        return holder.get(name, _ABSENT)
    read_content, _ = _content_of(holder)
    return read_content()


def write(place: Place, value: Any) -> None:
    """Put a value that was read at this place."""
    holder, name = place
    if not isinstance(holder, dict):
        _, write_content = _content_of(holder)
        write_content(value)
    elif value is _ABSENT:
        holder.pop(name, None)
    else:
        holder[name] = value


def copied(value: Any, memo: dict[int, Tensor]) -> Any:
    """A copy of a tensor, or of a tuple with tensors; parameters and other values stay.

    A tensor that `memo` has by its id is copied once.
    """
    if type(value) is tuple:
        return tuple(copied(member, memo) for member in value)
    return memo.setdefault(id(value), value.detach().clone()) if _tensors(value) else value


def _tensors(value: Any) -> list[Tensor]:
    """A tensor, or those in a tuple, without parameters, which nothing puts back."""
    if type(value) is tuple:
        return [tensor for member in value for tensor in _tensors(member)]
    is_tensor = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    return [value] if is_tensor else []


def _content_of(holder: Any) -> Any:
    """Two functions, which read and write what a collection, a generator or a small array holds.

    None of other objects.
    """
    if isinstance(holder, list | deque | set):
        return partial(tuple, holder), partial(_refill, holder)
    if isinstance(holder, random.Random):
        return holder.getstate, holder.setstate
    if isinstance(holder, torch.Generator):
        return holder.get_state, holder.set_state
    kind = type(holder).__name__ if _package(holder) == "numpy" else ""
    if kind == "RandomState":
        return holder.get_state, holder.set_state
    if kind == "Generator":
        bits = holder.bit_generator
        return lambda: bits.state, partial(setattr, bits, "state")
    if kind == "ndarray" and holder.size <= _MOST and not holder.dtype.hasobject:
        return holder.copy, partial(holder.__setitem__, ...)
    return None


def _refill(collection: Any, members: Sequence[Any]) -> None:
    collection.clear()
    add = collection.update if isinstance(collection, set) else collection.extend
    add(members)


def _places(dicts: Iterable[dict[Any, Any]]) -> Iterator[Place]:
    """Yield the keys under which something lies that can be put back.

    No forward replaces parameters, and hardly one a module or a function.
    """
    for each in dicts:
        for name, value in each.items():
            if name not in OWN_KEYS and not (callable(value) or isinstance(value, nn.Parameter)):
                yield each, name


def _is_equal(place: Place, a: Any, b: Any) -> bool:
    """Whether two values, which are not one object, are equal; a collection has its members."""
    holder, _ = place
    if isinstance(holder, dict):
        return isinstance(a, _PLAIN) and type(a) is type(b) and a == b
    if isinstance(holder, _CONTAINERS):
        return len(a) == len(b) and all(map(is_, a, b))
    return rng.same(a, b)


def _has_values_of(tensor: Tensor, copy: Tensor) -> bool:
    """Whether the values are those of a copy; of other layouts only the version is known."""
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    return not is_plain or torch.equal(tensor, copy)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]
