"""Records the spans of one rank, in seconds on a clock that all processes of a host share.

`time.perf_counter` reads the system-wide monotonic clock. On a GPU, CUDA events are recorded around
the kernels and placed on that clock after the step. A span costs about a microsecond.
"""

import time
from typing import Any

import torch

from repro.gpipe.schedule.timeline import Span


class Recorder:
    """Collects the spans of one step on one rank.

    Attributes:
        began: when this rank was ready for the step, in seconds.
        ended: when its last action was done, also on its device; known after `finish`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start(0, enabled=False)

    def start(self, step: int, *, enabled: bool) -> None:
        """Begin a step; if enabled, a GPU first finishes earlier work, to align the clocks."""
        self.step, self.enabled = step, enabled
        self._marks: list[tuple[str, int, int, Any, Any]] = []  # between two results of `now`
        if self.device.type == "cuda" and enabled:
            torch.cuda.synchronize(self.device)
            self._zero = self.now()
        self.began = self.ended = time.perf_counter()

    def now(self) -> Any:
        """The start of a span, for `span`; without meaning when not enabled."""
        if not self.enabled:
            return 0.0
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def span(self, kind: str, stage: int, micro_batch: int, start: Any) -> None:
        """Record what was done since `start`."""
        if self.enabled:
            self._marks.append((kind, stage, micro_batch, start, self.now()))

    def finish(self) -> list[Span]:
        """End the step, and return its spans in the order in which they began."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.ended = time.perf_counter()
        spans = [
            Span(kind, stage, i, self._seconds(start), self._seconds(end), self.step)
            for kind, stage, i, start, end in self._marks
        ]
        return sorted(spans, key=lambda s: (s.start, s.end))

    def _seconds(self, mark: Any) -> float:
        if isinstance(mark, float):
            return mark
        return self.began + 1e-3 * self._zero.elapsed_time(mark)
