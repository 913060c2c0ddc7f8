"""What layers hold besides parameters: buffers, numbers, tensors, generators, small containers."""

import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
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
_MOST, _DEPTH = 1000, 3  # members of a container that is looked at, and of how many in each other
_ABSENT: Any = object()  # an attribute that is made in a forward
_PASSES = (
    "of an object that layers of two stages hold: a forward leaves a tensor there, which the other "
    "stage would not get for the same micro-batch; return it with the output"
)
_Place = tuple[MutableMapping[str, Any], str]  # a module's attributes or buffers, and a name


class LayerState(Guard):
    """R computes with state of a layer that F has moved, and moves it once more.

    Buffers, numbers, tensors, generators and small containers that a layer, the loss, or an object
    of theirs holds are put back for R if they are known to change. Found by comparing all of them
    over a whole step: by identity and version, which costs two list comprehensions, in the first
    step with inputs of a form also by value. What changes for the first time is known from then on,
    and the step is taken again. A step that does not count leaves all of it as it was. A tensor
    that a layer leaves anew for each micro-batch in what layers of other stages hold is refused.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tree: tuple[Any, ...] = ()
        self._dicts: list[dict[str, Any]] = []  # of modules, and of what they hold
        self._places: list[_Place] = []
        self._moving: dict[tuple[int, str], _Place] = {}
        self._elsewhere: dict[int, Any] = {}  # by id, what layers of two stages hold

    def begin_step(self, step: Any) -> None:
        # Losses may take turns, and a user or a good step may have added attributes and buffers.
        self._first = self._tree != self._tree_now()
        if self._first:
            held = _held(self._holders())
            self._dicts = [each for holds in held for each in holds if isinstance(each, dict)]
            self._tree = self._tree_now()
            self._places = [*_places(self._holders())]
            self._elsewhere = self._held_by_two_stages()
            self._known = {(id(values), name) for values, name in self._places}
            self._values: list[Any] = [_ABSENT] * len(self._places)
            self._frozen: list[Any] = [_ABSENT] * len(self._places)
            self._versions: dict[int, int] = {}  # of tensors by place; those of inference have none
            self._shared: list[int] = []  # places of what is changed in place, and no tensor
            self._found: list[int] = []  # places that a comparison of values has found
            if len(self._moving) > 2 * len(self._places):
                self._moving = {k: place for k, place in self._moving.items() if k in self._known}
        self._recomputes = False
        self._left: dict[int, dict[tuple[int, str], Tensor]] = {}
        self._passed = ""
        memo: dict[int, Any] = {}
        written: list[tuple[Tensor, Tensor]] = []
        # By the user, or by a step that counted. A write through .data is no change of version.
        for k in dict.fromkeys([*self._changed(), *self._found]):
            mapping, name = self._places[k]
            value, frozen = mapping.get(name, _ABSENT), self._frozen[k]
            if value is self._values[k] and k in self._versions and _is_alike(value, frozen):
                written.append((frozen, value))
                self._versions[k] = value._version
                continue
            self._values[k], self._frozen[k] = value, _freeze(value, memo)
            self._versions.pop(k, None)
            if isinstance(value, Tensor):
                if not value.is_inference():
                    self._versions[k] = value._version
            elif _access(value) is not None and k not in self._shared:
                self._shared.append(k)
        _copy_all(written)

    def before_forward(self, p: Pass) -> None:
        self._first |= p.first
        self._recomputes |= p.recomputed
        if p.recomputed and self._moving:
            p.notes[self] = self._snapshot()

    def after_forward(self, p: Pass) -> None:
        if p.first and self._elsewhere:
            left = {
                (key, name): value
                for key, attributes in self._elsewhere.items()
                for name, value in attributes.items()
                if isinstance(value, Tensor)
            }
            before = self._left.get(p.stage, left)  # a cache is filled once
            self._left[p.stage] = left
            others = [key for key in left.keys() & before.keys() if left[key] is not before[key]]
            self._passed = next((f"{name!r} {_PASSES}" for _, name in others), self._passed)

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
        self._left.clear()
        if self._passed:
            return Finding(Outcome.REFUSED, self._passed)
        found = self._changed(closely=self._first)
        self._found += [k for k in found if self._first and k not in self._found]
        made = self._made() if self._first else []
        changed = [self._places[k] for k in found] + made
        new = {(id(mapping), name): (mapping, name) for mapping, name in changed}
        new = {key: place for key, place in new.items() if key not in self._moving}
        # What the first step makes is there when a later one begins.
        self._known |= {(id(mapping), name) for mapping, name in made}
        self._places += made
        self._values += [_ABSENT for _ in made]
        self._frozen += [_ABSENT for _ in made]
        if not (new and self._recomputes):
            return None
        self._moving |= new
        return Finding(Outcome.AGAIN)

    @torch.no_grad()
    def undo(self) -> None:
        for k in self._changed(closely=True):
            mapping, name = self._places[k]
            value, frozen = self._values[k], self._frozen[k]
            if isinstance(value, Tensor) and value.shape == frozen.shape:
                value.copy_(frozen)  # the next step finds this write by its version
            _put((mapping, name), value, value if isinstance(value, Tensor) else frozen)
        for mapping, name in self._made():
            mapping.pop(name, None)

    def _holders(self) -> list[Any]:
        return [*self._layers.modules, *self._layers.of_loss]

    def _tree_now(self) -> tuple[Any, ...]:
        return self._layers.tree_number, *self._layers.of_loss, *map(len, self._dicts)

    def _held_by_two_stages(self) -> dict[int, Any]:
        """Attributes of objects, and dicts, that layers of more than one stage hold."""
        stages: list[Any] = [[layer for _, layer in of] for of in self._layers.layers.values()]
        found: dict[int, Any] = {}
        twice: dict[int, Any] = {}
        for holders in (*stages, self._layers.foreign):
            every = (each for holds in _held(holders) for each in holds)
            held = {id(each): each for each in every if isinstance(each, dict)}
            twice |= {key: each for key, each in held.items() if key in found}
            found |= held
        return twice

    def _made(self) -> list[_Place]:
        """Those that were not there when the step began."""
        return [p for p in _places(self._holders()) if (id(p[0]), p[1]) not in self._known]

    def _changed(self, *, closely: bool = False) -> list[int]:
        """Places that hold something else than at the beginning of the step."""
        values = self._values
        now = [mapping.get(name, _ABSENT) for mapping, name in self._places]
        # Most are the same objects, of which there are thousands: no call for each.
        changed = [
            k
            for k, (a, b) in enumerate(zip(now, values, strict=True))
            if a is not b and not _is_equal(a, b)
        ]
        versions = self._versions
        written = [k for k, version in versions.items() if values[k]._version != version]
        if closely:
            tensors = [k for k, value in enumerate(values) if isinstance(value, Tensor)]
            written += [k for k in tensors if not _has_values_of(values[k], self._frozen[k])]
        found = dict.fromkeys(written)
        changed += [k for k in found if now[k] is values[k] and not is_lazy(now[k])]
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


def _held(holders: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the dicts of modules, and the dicts, lists and attributes of objects that they hold."""
    todo, seen = [*holders], dict[int, Any]()
    packages = {_package(holder) for holder in todo} - {"torch", "builtins"}
    while todo:
        holder = todo.pop()
        if id(holder) in seen:
            continue
        seen[id(holder)] = holder
        holds: list[Any] = []
        if isinstance(holder, nn.Module):
            holds = [holder._buffers, vars(holder), holder._modules]
        elif isinstance(holder, list | tuple | dict):
            holds = [holder] if len(holder) <= _MOST else []
        elif _package(holder) in packages and not isinstance(holder, type):
            holds = [getattr(holder, "__dict__", {})]
        holds = [each for each in holds if isinstance(each, list | tuple | dict)]
        yield holds
        for each in holds:
            members = enumerate(each) if not isinstance(each, dict) else each.items()
            todo += [member for name, member in members if name not in OWN_KEYS]


def _places(holders: Iterable[Any]) -> Iterator[_Place]:
    """Yield the places of modules and of what they hold. Lists are looked at as a whole."""
    for holds in _held(holders):
        for mapping in holds:
            for name, value in mapping.items() if isinstance(mapping, dict) else ():
                if name not in OWN_KEYS and _moves(value):
                    yield mapping, name


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _moves(value: Any) -> bool:
    """Whether it can be put back. An optimizer moves parameters."""
    is_kept = isinstance(value, _PLAIN | Tensor) and not isinstance(value, nn.Parameter)
    return is_kept or _access(value) is not None


def _put(place: _Place, value: Any, frozen: Any) -> None:
    mapping, name = place
    if value is _ABSENT:
        mapping.pop(name, None)
        return
    access = _access(value)
    if access is not None:
        access[1](frozen)
    mapping[name] = value if access is not None else frozen


def _has_values_of(tensor: Tensor, copy: Tensor) -> bool:
    """Whether the values are those of a copy; of other layouts only the version is known."""
    is_plain = tensor.layout == torch.strided and not (tensor.is_nested or is_lazy(tensor))
    return not is_plain or torch.equal(tensor, copy)


def _is_alike(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a plain tensor can be copied into an earlier copy of it."""
    same = type(tensor) is Tensor and tensor.shape == copy.shape and tensor.dtype == copy.dtype
    return same and tensor.device == copy.device and tensor.layout == copy.layout


@torch.no_grad()
def _copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy into the first tensor of each pair: on a GPU with few kernels for each dtype."""
    groups: defaultdict[torch.dtype, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for pair in pairs:
        groups[pair[0].dtype].append(pair)
    for members in groups.values():
        to, values = zip(*members, strict=True)
        torch._foreach_copy_(to, values)


def _access(
    value: Any, depth: int = _DEPTH
) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How to copy and to restore what is changed in place, since others may hold it, too."""
    if isinstance(value, _CONTAINERS):
        if depth and len(value) <= _MOST:
            return partial(_copied, value, depth - 1), partial(_fill, value)
        return None
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


def _copied(container: Any, depth: int) -> Any:
    """A copy of a container, and of those in it."""
    members = container.values() if isinstance(container, dict) else container
    inner = [(m, access) for m in members if (access := _access(m, depth)) is not None]
    return copy(container), [(m, *access, access[0]()) for m, access in inner]


def _fill(container: Any, frozen: Any) -> None:
    members, inner = frozen
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(members)
    for _, _, restore, content in inner:
        restore(content)


def _freeze(value: Any, memo: dict[int, Any]) -> Any:
    """A copy that does not move; one of a tensor that is held twice."""
    if isinstance(value, Tensor):
        if is_lazy(value):
            return value
        return memo.setdefault(id(value), value.detach().clone())
    access = _access(value)
    return value if access is None else access[0]()


def _is_as_before(value: Any, frozen: Any) -> bool:
    """Whether what is changed in place is as it was; other members are compared by identity."""
    if isinstance(value, _CONTAINERS):
        members, inner = frozen
        return _has(value, members) and all(_is_as_before(m, content) for m, _, _, content in inner)
    access = _access(value)
    return access is not None and rng.same(access[0](), frozen)


def _has(container: Any, members: Any) -> bool:
    if isinstance(container, dict):
        same_keys = [*container] == [*members]
        return same_keys and all(map(is_, container.values(), members.values()))
    if isinstance(container, set):
        return container == members
    return len(container) == len(members) and all(map(_is_equal, container, members))


def _is_equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, _PLAIN) and type(a) is type(b) and a == b)
