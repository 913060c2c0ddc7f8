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
    """A buffer that no forward has changed so far, with a copy to undo a first change."""

    module: nn.Module
    name: str
    buffer: Tensor
    version: int
    copy: Tensor

    @property
    def changed(self) -> bool:
        """Whether it was replaced or written to since it was copied; `.data` hides writes."""
        now = getattr(self.module, self.name)
        return now is not self.buffer or now._version != self.version


class Changing:
    """The buffers and numbers of modules, and which of them a forward changes.

    Which ones change is learnt in one step. From then on those are copied in every step. All other
    buffers are copied once, so that a step in which one changes for the first time can be undone
    and learnt from.

    Args:
        modules: their submodules are not looked at.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._names: list[tuple[nn.Module, str]] = []
        # Plain tensors that change. They are put back if a step is undone, and not for R: a layer
        # that computes with one is refused, see `attributes`.
        self._tensors: list[tuple[nn.Module, str]] = []
        # None until a step begins that does not learn.
        self._constants: list[_Constant] | None = None

    def snapshot(self) -> Snapshot:
        """Copies of what is known to change, for an F that will be recomputed."""
        return _copies(self._names)

    def before_step(self, *, learning: bool) -> Snapshot:
        """What is needed to undo a step: copies of all that may change."""
        if learning:
            self._constants = None
            return [(module, name, _copied(value)) for module, name, value in self._all()]
        if self._constants is None:
            self._constants = [
                _Constant(module, name, buffer, buffer._version, buffer.clone())
                for module in self._modules
                for name, buffer in module.named_buffers(recurse=False)
                if (module, name) not in self._names and not owns(module, name)
            ]
        for constant in self._constants:
            if constant.changed:  # between two steps, by the user
                constant.buffer = getattr(constant.module, constant.name)
                constant.version = constant.buffer._version
                constant.copy = constant.buffer.clone()
        constants = [(c.module, c.name, c.copy) for c in self._constants]
        return self.snapshot() + _copies(self._tensors) + constants

    def newly_changed(self) -> str | None:
        """The name of a buffer that this step was the first to change; None if there is none."""
        return next((constant.name for constant in self._constants or () if constant.changed), None)

    def _all(self) -> Iterator[tuple[nn.Module, str, Any]]:
        """All buffers, and all plain attributes that are numbers or tensors."""
        for module in self._modules:
            for name, buffer in module.named_buffers(recurse=False):
                yield module, name, buffer
            for name, value in vars(module).items():
                if name not in OWN_KEYS and isinstance(value, _Number | Tensor):
                    yield module, name, value

    @contextmanager
    def learning(self) -> Iterator[Snapshot]:
        """Find out what the forward inside changes.

        Afterwards the list holds copies from before the forward, for R.
        """
        before = [
            (module, name, value, _version(value), _copied(value))
            for module, name, value in self._all()
        ]
        snapshot: Snapshot = []
        yield snapshot
        for module, name, value, version, copy in before:
            now = getattr(module, name, None)
            changed = now is not value or _version(now) != version
            if isinstance(copy, Tensor) and not changed:
                changed = not torch.equal(value, copy)  # a write to `.data` leaves the version
            elif not isinstance(copy, Tensor):
                changed = now != copy
            known = self._names
            if isinstance(copy, Tensor) and name not in module._buffers:
                known = self._tensors
            if changed and (module, name) not in known:
                known.append((module, name))
            if (module, name) in self._names:
                snapshot.append((module, name, copy))


def _copies(names: Iterable[tuple[nn.Module, str]]) -> Snapshot:
    return [(module, name, _copied(getattr(module, name, None))) for module, name in names]


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
