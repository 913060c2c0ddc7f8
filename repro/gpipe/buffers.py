"""Buffers that a forward changes, such as the vectors of a spectral norm's power iteration.

R must compute with what F saw, and must not change them a second time. Running statistics are not among them: these
see `batchnorm`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from repro.gpipe.batchnorm import owns

Snapshot = list[tuple[nn.Module, str, Tensor]]  # the module, the buffer's name in it, a copy


class Changing:
    """The buffers of a stage that its forward was seen to change."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._names: list[tuple[nn.Module, str]] = []

    def snapshot(self, *, known: bool = True) -> Snapshot:
        """Copies, to be taken before an F that will be recomputed; of all while it is not known which change."""
        names = self._names if known else [(module, name) for module, name, _ in self._all()]
        return [(module, name, getattr(module, name).clone()) for module, name in names]

    def _all(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        found = ((m, n, b) for m in self.module.modules() for n, b in m.named_buffers(recurse=False))
        return ((m, n, b) for m, n, b in found if not owns(m, n))

    @contextmanager
    def learning(self) -> Iterator[Snapshot]:
        """Find out what the forward inside changes; afterwards the list holds copies from before it."""
        before = [(m, n, b, b._version, b.clone()) for m, n, b in self._all()]
        found: Snapshot = []
        yield found
        for module, name, buffer, version, copy in before:
            now = getattr(module, name)
            # Values too: a change by way of `.data` leaves the version as it was.
            changed = now is not buffer or now._version != version or not torch.equal(now, copy)
            if changed and (module, name) not in self._names:
                self._names.append((module, name))
            if (module, name) in self._names:
                found.append((module, name, copy))


@contextmanager
def as_before(snapshot: Snapshot) -> Iterator[None]:
    """Let a forward see, and change, the copies; the buffers stay as they are."""
    now = [(module, name, getattr(module, name)) for module, name, _ in snapshot]
    for module, name, copy in snapshot:
        setattr(module, name, copy)
    try:
        yield
    finally:
        for module, name, buffer in now:
            setattr(module, name, buffer)
