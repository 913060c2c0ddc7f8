"""Buffers and plain numbers that a forward changes, such as the vectors of a spectral norm.

R must compute with what F saw, and must not change a buffer a second time. Plain attributes of a
module that are numbers or strings, such as a counter, are treated as buffers. The running
statistics that `batchnorm` updates do not change in a forward.

A step that is refused leaves nothing behind: buffers and gradients are as they were before it.
Weights, optimizer state and running statistics need no undoing, because they change only once a
step is good.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.exact.attributes import OWN_KEYS
from repro.gpipe.exact.batchnorm import owns

_Number = bool | int | float | complex | str | None
_ABSENT: Any = object()  # in place of an attribute that is made in a forward
# The module, the name of a buffer or a plain attribute in it, and a copy of that.
Snapshot = list[tuple[nn.Module, str, Any]]


@dataclass
class _Seen:
    """A buffer or a plain attribute as it was before a forward, with a copy."""

    module: nn.Module
    name: str
    value: Any
    version: int
    copy: Any

    @classmethod
    def of(cls, module: nn.Module, name: str) -> "_Seen":
        value = getattr(module, name, _ABSENT)
        return cls(module, name, value, _version(value), _copied(value))

    def changed(self, *, closely: bool = False) -> bool:
        """Whether the value differs now; `closely` also detects a write through `.data`."""
        now = getattr(self.module, self.name, _ABSENT)
        if not isinstance(self.value, Tensor):
            return isinstance(now, Tensor) or now != self.value
        if now is not self.value or _version(now) != self.version:
            return True
        return closely and not torch.equal(self.value, self.copy)


class Changing:
    """The buffers and numbers of modules, and which of them a forward changes.

    What is known to change is copied before each F. All other buffers are copied once; where one
    changes for the first time, that copy is from before the F.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._names: list[tuple[nn.Module, str]] = []
        # Plain tensors that change. They are put back if a step is refused, and not for R: a layer
        # that computes with one is refused, see `attributes`.
        self._tensors: list[tuple[nn.Module, str]] = []
        self._constants: list[_Seen] | None = None
        self._before_step: list[_Seen] = []

    def begin_step(self) -> None:
        """Copy what a step may change, for `undo`."""
        if self._constants is None:
            buffers = ((m, name) for m in self._modules for name in _buffers_of(m))
            self._constants = [_Seen.of(*named) for named in buffers if not owns(*named)]
        # The user may have changed some between two steps.
        self._constants = [
            _Seen.of(c.module, c.name) if c.changed() else c for c in self._constants
        ]
        self._before_step = [_Seen.of(*named) for named in self._names + self._tensors]

    @torch.no_grad()
    def undo(self) -> None:
        """Put back what was there before the step, in the same objects."""
        for s in self._before_step:
            same = isinstance(s.value, Tensor) and s.value.shape == s.copy.shape
            _put(s.module, s.name, s.value.copy_(s.copy) if same else s.copy)

    def snapshot(self) -> Snapshot:
        """Copies of what is known to change, for an F that will be recomputed."""
        return [(m, name, _copied(getattr(m, name, _ABSENT))) for m, name in self._names]

    def before_forward(self, *, closely: bool) -> list[_Seen]:
        """Values not known to change; `closely` adds numbers, and tensors that are no buffers."""
        if not closely:
            return self._constants or []
        known = {*self._names, *self._tensors}
        return [_Seen.of(*named) for named in self._all() if named not in known]

    def after_forward(self, before: Sequence[_Seen], *, closely: bool) -> Snapshot:
        """Values that a forward changed for the first time, as they were before, for R."""
        first = [seen for seen in before if seen.changed(closely=closely)]
        if closely:
            known = {*self._names, *self._tensors, *((seen.module, seen.name) for seen in before)}
            made = (named for named in self._all() if named not in known)
            first += [_Seen(*named, _ABSENT, 0, _ABSENT) for named in made]
        if not first:
            return []
        for seen in first:
            value = getattr(seen.module, seen.name, None)
            is_plain = isinstance(value, Tensor) and seen.name not in _buffers_of(seen.module)
            (self._tensors if is_plain else self._names).append((seen.module, seen.name))
        self._before_step += first
        names = {*self._names}
        self._constants = [c for c in self._constants or () if (c.module, c.name) not in names]
        return [(s.module, s.name, s.copy) for s in first if (s.module, s.name) in names]

    def _all(self) -> Iterator[tuple[nn.Module, str]]:
        """All buffers, and all plain attributes that are numbers or tensors."""
        for module in self._modules:
            for name in _buffers_of(module):
                yield module, name
            for name, value in vars(module).items():
                if name not in OWN_KEYS and isinstance(value, _Number | Tensor):
                    yield module, name


def _buffers_of(module: nn.Module) -> list[str]:
    """Names of buffers, also of those that are None; a scripted module has no plain dict."""
    return [*module._buffers.keys()]


def copies(snapshot: Snapshot) -> Snapshot:
    """Copies of a snapshot, since a forward may change them."""
    return [(module, name, _copied(copy)) for module, name, copy in snapshot]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _version(value: object) -> int:
    """How often a tensor was written to."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


@contextmanager
def as_before(snapshot: Snapshot) -> Iterator[None]:
    """Let a forward see and change the copies, while the buffers stay as they are."""
    now = [(module, name, getattr(module, name, _ABSENT)) for module, name, _ in snapshot]
    for named in snapshot:
        _put(*named)
    try:
        yield
    finally:
        for named in now:
            _put(*named)


def _put(module: nn.Module, name: str, value: Any) -> None:
    if value is not _ABSENT:
        setattr(module, name, value)
    elif name in vars(module) or name in _buffers_of(module):  # its class may have one, too
        delattr(module, name)


@contextmanager
def undone_if_refused(parameters: Sequence[Tensor], changing: Changing) -> Iterator[list[Tensor]]:
    """Wrap a step: undo it if it raises; yield the gradients of earlier steps.

    Those that the caller accumulates over several steps are put aside meanwhile. That takes memory
    for a second set of gradients, but only if a caller accumulates.
    """
    changing.begin_step()
    accumulated = [(p, p.grad) for p in parameters if p.grad is not None]
    for parameter, _ in accumulated:
        parameter.grad = None
    try:
        yield [gradient for _, gradient in accumulated]
    except BaseException:
        for parameter in parameters:
            parameter.grad = None
        for parameter, before in accumulated:
            parameter.grad = before
        changing.undo()
        raise
    with torch.no_grad():
        for parameter, before in accumulated:
            added = parameter.grad
            if added is None:
                parameter.grad = before
            else:  # in its memory, but that torch adds a dense tensor to no sparse one
                parameter.grad = added + before if before.is_sparse else before.add_(added)
