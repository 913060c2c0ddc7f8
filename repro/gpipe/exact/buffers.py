"""Buffers that a forward changes, such as the vectors of a spectral norm's power iteration.

R must compute with what F saw, and must not change a buffer a second time. Running statistics are
handled in `batchnorm`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repro.gpipe.exact.batchnorm import owns

Snapshot = list[tuple[nn.Module, str, Tensor]]  # the module, the buffer's name in it, a copy


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
    """The buffers of a stage, and which of them its forward changes.

    Which ones change is learnt in one step. From then on those are copied in every step. All others
    are copied once, so that a step in which one changes for the first time can be undone and learnt
    from.

    Args:
        module: the module that has the buffers, in its submodules too.
        besides: (module, name of a buffer) -> whether the buffer is handled elsewhere.
    """

    def __init__(self, module: nn.Module, besides: Callable[[nn.Module, str], bool] = owns) -> None:
        self.module = module
        self._besides = besides
        self._names: list[tuple[nn.Module, str]] = []
        # None until a step begins that does not learn.
        self._constants: list[_Constant] | None = None

    def snapshot(self) -> Snapshot:
        """Copies of the buffers that are known to change, for an F that will be recomputed."""
        return [(module, name, getattr(module, name).clone()) for module, name in self._names]

    def before_step(self, *, learning: bool) -> Snapshot:
        """What is needed to undo a step: a copy of every buffer."""
        if learning:
            self._constants = None
            return [(module, name, buffer.clone()) for module, name, buffer in self._all()]
        if self._constants is None:
            self._constants = [
                _Constant(module, name, buffer, buffer._version, buffer.clone())
                for module, name, buffer in self._all()
                if (module, name) not in self._names
            ]
        for constant in self._constants:
            if constant.changed:  # between two steps, by the user
                constant.buffer = getattr(constant.module, constant.name)
                constant.version = constant.buffer._version
                constant.copy = constant.buffer.clone()
        constants = [(c.module, c.name, c.copy) for c in self._constants]
        return self.snapshot() + constants

    def newly_changed(self) -> str | None:
        """The name of a buffer that this step was the first to change; None if there is none."""
        return next((constant.name for constant in self._constants or () if constant.changed), None)

    def _all(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for module in self.module.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if not self._besides(module, name):
                    yield module, name, buffer

    @contextmanager
    def learning(self) -> Iterator[Snapshot]:
        """Find out which buffers the forward inside changes.

        Afterwards the list holds copies from before the forward.
        """
        before = [
            (module, name, buffer, buffer._version, buffer.clone())
            for module, name, buffer in self._all()
        ]
        snapshot: Snapshot = []
        yield snapshot
        for module, name, buffer, version, copy in before:
            now = getattr(module, name)
            # The values are compared too, since a write to `.data` leaves the version as it was.
            changed = now is not buffer or now._version != version or not torch.equal(now, copy)
            if changed and (module, name) not in self._names:
                self._names.append((module, name))
            if (module, name) in self._names:
                snapshot.append((module, name, copy))


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
