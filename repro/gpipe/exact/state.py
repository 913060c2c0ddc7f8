"""What layers hold besides parameters: buffers, numbers, tensors, generators, small containers."""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from copy import copy
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from repro.gpipe.exact import rng
from repro.gpipe.exact.guard import Finding, Guard, Outcome, Pass

OWN_KEYS = frozenset(vars(nn.Module()))  # attributes that every module has
_PLAIN = bool | int | float | complex | str | None
_CONTAINERS = list | dict | set | deque
_MOST = 1000  # members of a container that is looked at
_ABSENT: Any = object()  # an attribute that is made in a forward
_Place = tuple[MutableMapping[str, Any], str]  # a module's attributes or buffers, and a name


class LayerState(Guard):
    """R computes with state of a layer that F has moved, and moves it once more.

    Buffers, numbers, tensors, generators and small containers that a layer or the loss holds are
    put back for R if they are known to change. Found by comparing all of them over a whole step:
    by identity and version, which costs two list comprehensions, in the first step with inputs of
    a form also by value. What changes for the first time is known from then on, and the step is
    taken again. A step that does not count leaves all of it as it was.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tree: tuple[Any, ...] = ()
        self._places: list[_Place] = []
        self._moving: dict[tuple[int, str], _Place] = {}

    def begin_step(self, step: Any) -> None:
        tree = self._layers.tree_number, *self._layers.of_loss  # losses may take turns
        if self._tree != tree:
            self._tree = tree
            self._places = [*self._all()]
            self._known = {(id(values), name) for values, name in self._places}
            self._values: list[Any] = [_ABSENT] * len(self._places)
            self._frozen: list[Any] = [_ABSENT] * len(self._places)
            self._tensors: dict[int, int] = {}  # place -> version
            self._shared: list[int] = []  # places of what is changed in place, and no tensor
            if len(self._moving) > 2 * len(self._places):
                self._moving = {k: place for k, place in self._moving.items() if k in self._known}
        self._first = self._recomputes = False
        memo: dict[int, Any] = {}
        for k in self._changed():  # by the user, or by a step that counted
            mapping, name = self._places[k]
            value = self._values[k] = mapping.get(name, _ABSENT)
            self._frozen[k] = _freeze(value, memo)
            self._tensors.pop(k, None)
            if isinstance(value, Tensor):
                self._tensors[k] = _version(value)
            elif _access(value) is not None and k not in self._shared:
                self._shared.append(k)

    def before_forward(self, p: Pass) -> None:
        self._first |= p.first
        self._recomputes |= p.recomputed
        if p.recomputed and self._moving:
            p.notes[self] = self._snapshot()

    def before_recompute(self, p: Pass) -> None:
        found = p.notes.get(self)
        if found:
            p.notes[self] = self._snapshot(copies=False)
            for place, value, frozen in found:
                _put(place, value, frozen)

    def after_recompute(self, p: Pass) -> None:
        for place, value, frozen in p.notes.pop(self, ()):
            _put(place, value, frozen)

    def end_step(self, step: Any) -> Finding | None:
        changed = [self._places[k] for k in self._changed(closely=self._first)]
        changed += self._made() if self._first else []
        new = {(id(mapping), name): (mapping, name) for mapping, name in changed}
        new = {key: place for key, place in new.items() if key not in self._moving}
        if not (new and self._recomputes):
            return None
        self._moving |= new
        made = [place for key, place in new.items() if key not in self._known]
        self._known |= new.keys()
        self._places += made
        self._values += [_ABSENT for _ in made]
        self._frozen += [_ABSENT for _ in made]
        return Finding(Outcome.AGAIN)

    @torch.no_grad()
    def undo(self) -> None:
        for k in self._changed(closely=True):
            mapping, name = self._places[k]
            value, frozen = self._values[k], self._frozen[k]
            if isinstance(value, Tensor) and value.shape == frozen.shape:
                value.copy_(frozen)
                self._tensors[k] = _version(value)
            _put((mapping, name), value, value if isinstance(value, Tensor) else frozen)
        for mapping, name in self._made():
            mapping.pop(name, None)

    def _all(self) -> Iterator[_Place]:
        for module in dict.fromkeys([*self._layers.modules, *self._layers.of_loss]):
            buffers = module._buffers
            for name in buffers.keys() if isinstance(buffers, dict) else ():
                yield buffers, name
            for name, value in vars(module).items():
                moves = isinstance(value, _PLAIN | Tensor) or _access(value) is not None
                if name not in OWN_KEYS and moves:
                    yield vars(module), name

    def _made(self) -> list[_Place]:
        """Those that were not there when the step began."""
        return [place for place in self._all() if (id(place[0]), place[1]) not in self._known]

    def _changed(self, *, closely: bool = False) -> list[int]:
        """Places that hold something else than at the beginning of the step."""
        values = self._values
        now = [mapping.get(name, _ABSENT) for mapping, name in self._places]
        changed = [
            k for k, (a, b) in enumerate(zip(now, values, strict=True)) if not _is_equal(a, b)
        ]
        for k, version in self._tensors.items():
            if now[k] is values[k] and not is_lazy(now[k]):
                written = _version(now[k]) != version
                if written or (closely and not torch.equal(now[k], self._frozen[k])):
                    changed.append(k)
        changed += [k for k in self._shared if not _is_as_before(now[k], self._frozen[k])]
        return changed

    def _snapshot(self, *, copies: bool = True) -> list[tuple[_Place, Any, Any]]:
        """Of each place known to move: its value, and a copy of it."""
        memo: dict[int, Any] = {}
        found = []
        for place in self._moving.values():
            value = place[0].get(place[1], _ABSENT)
            keeps = not copies and isinstance(value, Tensor)
            found.append((place, value, value if keeps else _freeze(value, memo)))
        return found


def _put(place: _Place, value: Any, frozen: Any) -> None:
    mapping, name = place
    if value is _ABSENT:
        mapping.pop(name, None)
        return
    access = _access(value)
    if access is not None:
        access[1](frozen)
    mapping[name] = value if access is not None else frozen


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How to copy and to restore what is changed in place, since others may hold it, too."""
    if isinstance(value, _CONTAINERS):
        return (partial(copy, value), partial(_fill, value)) if len(value) <= _MOST else None
    numpy: Any = sys.modules.get("numpy")  # nothing else could have made one of its objects
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if isinstance(value, torch.Generator) or (
        numpy and isinstance(value, numpy.random.RandomState)
    ):
        return value.get_state, value.set_state
    if numpy and isinstance(value, numpy.random.Generator):
        bits: Any = value.bit_generator
        return lambda: bits.state, partial(setattr, bits, "state")
    return None


def _fill(container: Any, members: Any) -> None:
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(members)


def _freeze(value: Any, memo: dict[int, Any]) -> Any:
    """A copy that does not move; one of a tensor that is held twice."""
    if isinstance(value, Tensor):
        if is_lazy(value):
            return value
        return memo.setdefault(id(value), value.detach().clone())
    access = _access(value)
    return value if access is None else access[0]()


def _is_as_before(value: Any, frozen: Any) -> bool:
    """Whether what is changed in place is as it was; members are compared by identity."""
    if isinstance(value, dict):
        return [*value] == [*frozen] and all(map(is_, value.values(), frozen.values()))
    if isinstance(value, set):
        return value == frozen
    if isinstance(value, list | deque):
        return len(value) == len(frozen) and all(map(_is_equal, value, frozen))
    access = _access(value)
    return access is not None and rng.same(access[0](), frozen)


def _is_equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, _PLAIN) and type(a) is type(b) and a == b)
