"""A measured fit: the largest size that trains, searched by the coordinator.

It starts at the size that is counted to be the largest, and goes up or down from there until one
size has trained within the memory and the next one up has not. Every size is trained by fresh
stages; a stage that runs out of memory is a result here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from repro.gpipe.core import memory
from repro.harness.job import Job, Measurer, Outcome
from repro.harness.spec import RunSpec
from repro.harness.tasks.fit import Line, counted, line

Count = Callable[[RunSpec, str], Line]  # of a fit, on "cpu" or "cuda"


def search(
    crew: Measurer, job: Job, deadline: float, tell: Callable[[str], object], count: Count = counted
) -> Outcome:
    """Measure a fit; what became of it, and every size that was tried.

    Args:
        crew: trains the sizes.
        job: the fit.
        deadline: in seconds, of each size.
        tell: takes a line about each.
        count: counts in this process, since the crew's are started afresh after each size that was
            too large.
    """
    return _Climb(crew, job, deadline, tell, count).run()


class _Stopped(Exception):
    """A size neither trained nor ran out of memory."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass
class _Climb:
    """Up and down the sizes; a cut is as `repro.costs.fit.Cut.plain` gives it."""

    crew: Measurer
    job: Job
    deadline: float
    tell: Callable[[str], object]
    count: Count
    tried: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> Outcome:
        """Bracket the largest size that trains."""
        try:
            first = self._counted(self.job.spec.memory)
            fit = first["fit"]
            size, above = fit["largest"], fit["next"]
            while size is not None and not self._trains(size):
                size, above = self._smaller(size), size
            while above is not None and not self._known(above) and self._trains(above):
                size, above = above, self._counted(above["fullest"])["fit"]["next"]
        except _Stopped as stopped:
            return stopped.outcome
        except ValueError as error:  # it cannot be counted
            return Outcome("failed", str(error))
        peaks = next(
            (tried["peak_bytes"] for tried in self.tried if size and tried["args"] == size["args"]),
            None,
        )
        found = {"largest": size, "next": above, "tried": self.tried, "counted": fit["largest"]}
        balance = (size or above or {"balance": [0]})["balance"]
        return Outcome(
            "done",
            metrics=line(found, peaks, balance, first["setup_s"], first["unit"], first["labels"]),
        )

    def _counted(self, size: int | None) -> Line:
        """The largest size counted to fit into so many bytes, and the next one up."""
        return self.count(
            self.job.spec.model_copy(update={"fidelity": "counted", "memory": size}),
            self.job.device,
        )

    def _smaller(self, cut: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The next size down: cuts are even to a thousandth, so the same size may be counted to need a bit less."""
        size = cut["fullest"]
        while True:
            size = size * 998 // 1000 - 1
            found = self._counted(size)["fit"]["largest"] if size > 0 else None
            if found is None or not self._known(found):
                return found

    def _known(self, cut: Mapping[str, Any]) -> bool:
        return any(tried["args"] == cut["args"] for tried in self.tried)

    def _trains(self, cut: Mapping[str, Any]) -> bool:
        """Whether this size trains within the memory."""
        spec = self.job.spec.model_copy(update={"model_args": cut["args"]})
        outcome = self.crew.measure(
            replace(self.job, spec=spec, balance=tuple(cut["balance"])), self.deadline
        )
        if outcome.status != "done" and not memory.over_limit(outcome.reason):
            raise _Stopped(outcome)
        ran = outcome.metrics.get("fit", {}) if outcome.status == "done" else {}
        peaks = ran.get("peak_bytes")
        counts = {
            "counted_bytes": [stage["total"] for stage in cut["stages"]],
            "parameters": cut["parameters"],
        }
        entry = {
            "args": cut["args"],
            "status": outcome.status,
            "reason": outcome.reason,
            "peak_bytes": peaks,
        }
        self.tried.append({"allocator_bytes": None} | ran | entry | counts)
        self.tell(
            f"{self.job.spec.grown(cut['args'])}: "
            f"{'trains' if peaks else 'out of memory: ' + outcome.reason}"
        )
        return peaks is not None
