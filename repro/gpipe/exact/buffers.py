"""Buffers and plain numbers that a forward changes, such as the vectors of a spectral norm.

R must compute with what F saw, and must not change a buffer a second time. Plain attributes of a
module that are numbers or strings, such as a counter, are treated as buffers. The running
statistics that `batchnorm` updates do not change in a forward.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.exact.attributes import OWN_KEYS
from repro.gpipe.exact.batchnorm import owns

_Number = bool | int | float | complex | str | None
# The module, the name of a buffer or a plain attribute in it, and a copy of that.
Snapshot = list[tuple[nn.Module, str, Any]]


@dataclass
class _Constant:
    """A buffer that no forward has changed so far, with a copy of it."""

    module: nn.Module
    name: str
    buffer: Tensor
    version: int
    copy: Tensor

    @classmethod
    def of(cls, module: nn.Module, name: str) -> "_Constant":
        buffer = getattr(module, name)
        return cls(module, name, buffer, buffer._version, buffer.clone())

    @property
    def changed(self) -> bool:
        """Whether it was replaced or written to since it was copied; `.data` hides writes."""
        now = getattr(self.module, self.name)
        return now is not self.buffer or now._version != self.version


class Changing:
    """The buffers and numbers of modules, and which of them a forward changes.

    An F that is looked at closely shows which change, see `learning`. What is known to change is
    copied before each F. All other buffers are copied once; where one changes for the first time,
    that copy is from before the F.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._names: list[tuple[nn.Module, str]] = []
        # Plain tensors that change. They are put back if a step is refused, and not for R: a layer
        # that computes with one is refused, see `attributes`.
        self._tensors: list[tuple[nn.Module, str]] = []
        self._constants: list[_Constant] | None = None
        self._before_step: list[tuple[nn.Module, str, Any, Any]] = []  # with the object itself

    def begin_step(self) -> None:
        """Copy what a step may change, for `undo`."""
        if self._constants is None:
            self._constants = [
                _Constant.of(module, name)
                for module in self._modules
                for name, _ in module.named_buffers(recurse=False)
                if not owns(module, name)
            ]
        # The user may have changed some between two steps.
        self._constants = [
            _Constant.of(c.module, c.name) if c.changed else c for c in self._constants
        ]
        self._before_step = []
        for module, name in self._names + self._tensors:
            value = getattr(module, name, None)
            self._before_step.append((module, name, value, _copied(value)))

    def undo(self) -> None:
        """Put back what was there before the step, in the same objects."""
        with torch.no_grad():
            for module, name, value, copy in self._before_step:
                setattr(module, name, value.copy_(copy) if isinstance(value, Tensor) else copy)

    def snapshot(self) -> Snapshot:
        """Copies of what is known to change, for an F that will be recomputed."""
        return [(m, name, _copied(getattr(m, name, None))) for m, name in self._names]

    def first_changes(self) -> Snapshot:
        """After an F: what was changed for the first time, as it was before."""
        if not self._constants:
            return []
        first = [constant for constant in self._constants if constant.changed]
        if not first:
            return []
        self._constants = [constant for constant in self._constants if not constant.changed]
        for c in first:
            self._note(c.module, c.name, c.buffer, c.copy)
        return [(c.module, c.name, _copied(c.copy)) for c in first]

    @contextmanager
    def learning(self) -> Iterator[Snapshot]:
        """Around an F: find out what it changes, also through `.data`, which leaves no trace.

        Afterwards the list holds what was changed for the first time, as it was before.
        """
        before = [
            (module, name, value, _version(value), _copied(value))
            for module, name, value in self._all()
        ]
        first: Snapshot = []
        yield first
        known = {*self._names, *self._tensors}
        for module, name, value, version, copy in before:
            now = getattr(module, name, None)
            changed = now is not value or _version(now) != version
            if isinstance(copy, Tensor) and not changed:
                changed = not torch.equal(value, copy)
            elif not isinstance(copy, Tensor):
                changed = now != copy
            if changed and (module, name) not in known:
                self._note(module, name, value, copy)
                if (module, name) in self._names:
                    first.append((module, name, _copied(copy)))
        changing = set(self._names)
        self._constants = [c for c in self._constants or () if (c.module, c.name) not in changing]

    def _note(self, module: nn.Module, name: str, value: Any, copy: Any) -> None:
        """From now on something is known to change; before this step it was a copy."""
        is_plain = isinstance(copy, Tensor) and name not in module._buffers
        (self._tensors if is_plain else self._names).append((module, name))
        self._before_step.append((module, name, value, copy))

    def _all(self) -> Iterator[tuple[nn.Module, str, Any]]:
        """All buffers, and all plain attributes that are numbers or tensors."""
        for module in self._modules:
            for name, buffer in module.named_buffers(recurse=False):
                yield module, name, buffer
            for name, value in vars(module).items():
                if name not in OWN_KEYS and isinstance(value, _Number | Tensor):
                    yield module, name, value


def copies(snapshot: Snapshot) -> Snapshot:
    """Once more, since a forward may change them."""
    return [(module, name, _copied(copy)) for module, name, copy in snapshot]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _version(value: object) -> int:
    """How often a tensor was written to."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


@contextmanager
def as_before(snapshot: Snapshot) -> Iterator[None]:
    """Let a forward see and change the copies, while the buffers stay as they are."""
    now = [(module, name, getattr(module, name)) for module, name, _ in snapshot]
    for module, name, copy in snapshot:
        setattr(module, name, copy)
    try:
        yield
    finally:
        for module, name, buffer in now:
            setattr(module, name, buffer)
