"""Clocks: spans of what this stage does, in seconds that all stages of a host share.

`time.perf_counter` reads the system-wide monotonic clock. On a GPU, CUDA events are recorded around the kernels and
placed on that clock after the step.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from repro.gpipe.timeline import Span


class Recorder:
    """Collects the spans of one step on one stage."""

    def __init__(self, stage: int, device: torch.device) -> None:
        self.stage = stage
        self.device = device
        self.start(0)

    def start(self, step: int) -> None:
        """Begin a step; on a GPU everything before it is finished first, so that the clocks can be tied."""
        self.step = step
        self._spans: list[Span] = []
        self._events: list[tuple[str, int, torch.cuda.Event, torch.cuda.Event]] = []
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._zero = torch.cuda.Event(enable_timing=True)
            self._zero.record()
        self.began = time.perf_counter()

    @contextmanager
    def span(self, kind: str, micro_batch: int = -1) -> Iterator[None]:
        """Record what happens inside."""
        if self.device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._events.append((kind, micro_batch, first, last))
            return
        start = time.perf_counter()
        yield
        self._spans.append(Span(kind, self.stage, micro_batch, start, time.perf_counter(), self.step))

    def finish(self) -> list[Span]:
        """All spans of the step, in the order in which they began."""
        if self._events:
            torch.cuda.synchronize(self.device)
            for kind, i, first, last in self._events:
                start, end = (self.began + 1e-3 * self._zero.elapsed_time(e) for e in (first, last))
                self._spans.append(Span(kind, self.stage, i, start, end, self.step))
            self._events.clear()
        return sorted(self._spans, key=lambda s: (s.start, s.end))
