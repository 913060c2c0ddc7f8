"""What modules, losses and objects hold besides parameters: to see a change, and to put it back."""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
_SEQUENCES = list | deque
_GENERATORS = random.Random | torch.Generator
_ABSENT: Any = object()  # the value of a key that a dict does not have
# A dict, such as the attributes or buffers of a module, and a key; or a list or a generator, whose
# content counts as one value, and None.
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
        """Take a snapshot of the dicts, lists and generators among what is given."""
        every = [each for each in held if isinstance(each, dict | _SEQUENCES | _GENERATORS)]
        every = [each for each in every if isinstance(each, _GENERATORS) or len(each) <= _MOST]
        self._dicts: list[dict[Any, Any]] = [each for each in every if isinstance(each, dict)]
        self._lengths = [*map(len, self._dicts)]
        others = [(each, None) for each in every if not isinstance(each, dict)]
        self.places: list[Place] = [*_places(self._dicts), *others]
        self.index = {key(place): k for k, place in enumerate(self.places)}
        self.values: list[Any] = [_ABSENT] * len(self.places)
        self._copies: dict[int, Tensor] = {}  # of tensors, by place
        self.take(range(len(self.places)))

    def take(self, which: Iterable[int], *, copies: bool = True) -> None:
        """Take the values that some places have now; without copies by identity alone."""
        for k in which:
            value = self.values[k] = read(self.places[k])
            self._copies.pop(k, None)
            if copies and isinstance(value, Tensor):
                self._copies[k] = value.detach().clone()
        self._versions = versions([self.values[k] for k in self._copies])

    def has_all_keys(self) -> bool:
        """Whether no dict has got or lost a key."""
        return [*map(len, self._dicts)] == self._lengths

    def changed(self, *, closely: bool = False) -> list[int]:
        """The numbers of places that have another value now; `closely` compares all tensors."""
        now = [read(place) for place in self.places]
        both = zip(self.places, now, self.values, strict=True)
        found = [k for k, (at, a, b) in enumerate(both) if a is not b and not _is_equal(at, a, b)]
        of_tensors = versions([self.values[k] for k in self._copies])
        both_versions = zip(self._copies, of_tensors, self._versions, strict=True)
        found += [k for k, version, before in both_versions if version != before]
        if closely:
            pairs = self._copies.items()
            found += [k for k, copy in pairs if not _has_values_of(self.values[k], copy)]
        return [*dict.fromkeys(found)]

    def made(self) -> list[Place]:
        """Places that the dicts did not have then."""
        return [place for place in _places(self._dicts) if key(place) not in self.index]

    @torch.no_grad()
    def restore(self, which: Iterable[int] | None = None) -> None:
        """Put the values at some places back, or at all, and remove what was made since."""
        for k in self.changed(closely=True) if which is None else which:
            if k in self._copies:
                self.values[k].copy_(self._copies[k])
            write(self.places[k], self.values[k])
        for place in self.made():
            write(place, _ABSENT)


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
        elif isinstance(value, _SEQUENCES | tuple):
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
    if isinstance(holder, _SEQUENCES):
        return [*holder]
    return holder.getstate() if isinstance(holder, random.Random) else holder.get_state()


def write(place: Place, value: Any) -> None:
    """Put a value that was read at this place."""
    holder, name = place
    if isinstance(holder, dict):
        if value is _ABSENT:
            holder.pop(name, None)
        else:
            holder[name] = value
    elif isinstance(holder, _SEQUENCES):
        holder.clear()
        holder.extend(value)
    elif isinstance(holder, random.Random):
        holder.setstate(value)
    else:
        holder.set_state(value)


def _places(dicts: Iterable[dict[Any, Any]]) -> Iterator[Place]:
    """Yield the keys under which something lies that can be put back; parameters cannot."""
    for each in dicts:
        for name, value in each.items():
            kept = isinstance(value, _PLAIN | Tensor | dict | _SEQUENCES | _GENERATORS)
            if kept and name not in OWN_KEYS and not isinstance(value, nn.Parameter):
                yield each, name


def _is_equal(place: Place, a: Any, b: Any) -> bool:
    """Whether two values, which are not one object, are equal; a list has members by identity."""
    holder, _ = place
    if isinstance(holder, dict):
        return isinstance(a, _PLAIN) and type(a) is type(b) and a == b
    if isinstance(holder, _SEQUENCES):
        return len(a) == len(b) and all(map(is_, a, b))
    return rng.same(a, b)


def _has_values_of(tensor: Tensor, copy: Tensor) -> bool:
    """Whether the values are those of a copy; of other layouts only the version is known."""
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    return not is_plain or torch.equal(tensor, copy)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]
