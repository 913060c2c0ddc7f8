"""A step as spans on a common clock, and the numbers that follow from them.

The engine, emulation and `replay` all yield a `Timeline`. Pure: no torch, no clock. Sources: the
idle time of section 2.3 of arXiv:1811.06965v5, Figure 2 (b) and (c).
"""

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import Any, NamedTuple

WORK = ("F", "R", "B", "I", "W", "U")  # a stage that is in one of these is not idle


class Span(NamedTuple):
    """One thing that a stage did.

    Attributes:
        kind: "F" forward, "R" recompute, "B" backward or its parts "I" (gradient of the input) and
            "W" (of the weights), "U" optimizer update, or "setup", in which the mini-batch is cut
            and the stages agree on shapes.
        stage: j, from 0.
        micro_batch: i, from 0; -1 for what belongs to the whole mini-batch.
        start: seconds on a clock that all stages share.
        end: seconds on the same clock.
        step: which optimizer step.
    """

    kind: str
    stage: int
    micro_batch: int
    start: float
    end: float
    step: int = 0

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """The spans of one step on all stages.

    Attributes:
        spans: in no particular order.
        stages: how many there are, on all ranks together.
        stages_per_rank: how many each rank holds; a rank holds every K-th one.
    """

    spans: tuple[Span, ...]
    stages: int
    stages_per_rank: int = 1

    @property
    def ranks(self) -> int:
        """K, which is the number of stages if each rank holds one."""
        return self.stages // self.stages_per_rank

    @cached_property
    def start(self) -> float:
        """Start of the first span, in seconds."""
        return min((s.start for s in self.spans), default=0.0)

    @cached_property
    def step_time(self) -> float:
        """Seconds from the first start to the last end on any stage."""
        return max((s.end for s in self.spans), default=0.0) - self.start

    def busy(self) -> float:
        """Seconds of work, summed over all stages."""
        return sum(s.seconds for s in self.spans if s.kind in WORK)

    @property
    def idle_over_total(self) -> float:
        """Idle / total: the share of K x step time without work; in theory (K-1)/(M+K-1)."""
        total = self.ranks * self.step_time
        return 1.0 - self.busy() / total if total else 0.0

    def on(self, rank: int) -> list[Span]:
        """The spans of one rank, on all its stages, in the order in which they began."""
        return self._by_rank[rank]

    @cached_property
    def _by_rank(self) -> list[list[Span]]:
        by_rank: list[list[Span]] = [[] for _ in range(self.ranks)]
        for span in sorted(self.spans, key=lambda s: (s.start, s.end)):
            by_rank[span.stage % self.ranks].append(span)
        return by_rank

    def to_chrome(self, label: str = "pipeline", pid: int = 0) -> dict[str, Any]:
        """A Chrome trace for ui.perfetto.dev, as a JSON object: one track a rank, microseconds."""
        names = [("process_name", 0, label)]
        names += [("thread_name", rank, self.row_name(rank)) for rank in range(self.ranks)]
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": what, "pid": pid, "tid": rank, "args": {"name": name}}
            for what, rank, name in names
        ]
        for s in self.spans:
            event = {
                "ph": "X",
                "name": self._label(s),
                "cat": s.kind,
                "pid": pid,
                "tid": s.stage % self.ranks,
                "ts": 1e6 * (s.start - self.start),
                "dur": 1e6 * s.seconds,
                "args": {"stage": s.stage, "micro_batch": s.micro_batch, "step": s.step},
            }
            events.append(event)
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def to_text(self) -> str:
        """The timeline as text: one line a rank, one cell for each second, `.` is idle.

        Where ranks hold several stages, a letter names the stage: F0a on the first that the rank
        holds, F0b on the second.
        """
        width = max([2, *(len(self._label(s)) for s in self.spans if s.micro_batch >= 0)])
        lines = []
        for rank in range(self.ranks):
            cells = ["."] * round(self.step_time)
            for s in self.on(rank):
                first, last = round(s.start - self.start), round(s.end - self.start)
                cells[first:last] = [self._label(s)] * (last - first)
            row = " ".join(cell.ljust(width) for cell in cells).rstrip()
            lines.append(f"{self.row_name(rank)} | {row}")
        return "\n".join(lines)

    def row_name(self, rank: int) -> str:
        """Name of a rank in drawings: that of its stage where it holds one."""
        return f"stage {rank}" if self.stages_per_rank == 1 else f"rank {rank}"

    def _label(self, span: Span) -> str:
        number = span.micro_batch if span.micro_batch >= 0 else ""
        held = self.stages_per_rank > 1 and span.micro_batch >= 0
        letter = ascii_lowercase[span.stage // self.ranks % 26] if held else ""
        return f"{span.kind}{number}{letter}"
