"""The largest model that fits, as one run: counted in one process, or measured size by size.

A measured fit starts at the size that is counted to be the largest, and goes up or down from there until one size has
trained within the memory and the next one up has not. Every size is trained by fresh stages; a stage that runs out of
memory is a result here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from repro.gpipe.core import memory
from repro.harness.spec import ENOUGH, RunSpec
from repro.harness.workers import Outcome

if TYPE_CHECKING:
    from repro.costs.fit import Search
    from repro.harness.runner import Measurer
    from repro.harness.tasks.train import Job
    from repro.methods.own import Own

Line = dict[str, Any]
Count = Callable[[RunSpec, str], Line]  # of a fit, on "cpu" or "cuda"
_last: "Search | None" = None  # of this process: whose traces the next one uses


def counted(spec: RunSpec, device: str) -> Line:
    """Count: in one process, for all stages, the operators of this device."""
    global _last
    from repro.costs.fit import Search, Step
    from repro.costs.size_ladder import families
    from repro.costs.stage_memory import Messages
    from repro.harness.tasks.train import OPTIMIZERS
    from repro.models import build

    began = time.perf_counter()
    optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
    under_way = Messages(0, 0) if spec.transport == "shm" else Messages()
    step = Step(spec.K, spec.M, spec.N, spec.checkpoint, spec.schedule, optimizer, under_way, device)
    assert spec.memory is not None
    _last = Search(partial(build, spec.model), step, spec.memory, _last)
    sizes = families(spec.model, spec.arguments, None)
    found = _last.largest(sizes)
    cuts = {"largest": found.best and found.best.plain(), "next": found.above and found.above.plain()}
    peaks = [stage.total for stage in found.best.stages] if found.best else None
    shown = found.best or found.above
    model = build(spec.model, **(shown.args if shown else sizes[0][0]))
    balance = list(shown.balance) if shown else [0]
    return line(cuts, peaks, balance, time.perf_counter() - began, model.unit, model.labels)


def attempt(spec: RunSpec, method: "Own", batch: tuple[Any, Any], device: str) -> Line:
    """Train one size within the memory: peak bytes of each stage, and where that is cheap also what its allocator says.

    Two steps: before the first there are no gradients, and the optimizer has no state. A given size is small enough for
    a third one under torch's profiler.

    Raises:
        MemoryError, torch.OutOfMemoryError: on the stage that needs more.
    """
    method.peak_bytes(*batch, limit=spec.memory)
    found: Line = {"peak_bytes": method.peak_bytes(*batch, limit=spec.memory)}
    if spec.memory == ENOUGH and device == "cpu":
        from repro.harness import allocator

        before = method.resident(*batch)
        peak = allocator.measure(lambda: method.train_step(*batch))
        found["allocator_bytes"] = method.gather([before + peak.visible, before + peak.everything])
    return found


def line(
    fit: Mapping[str, Any],
    peaks: Sequence[int] | None,
    balance: list[int],
    seconds: float,
    unit: str,
    labels: Mapping[str, Any],
) -> Line:
    """A line of metrics.jsonl without steps."""
    nothing = {"step_s": [], "loss": [], "breakdown": {}}
    nothing |= {"bubble_idle_over_total": [None], "bubble_idle_over_work": [None]}
    found = {"fit": dict(fit), "peak_bytes": peaks, "balance": balance, "setup_s": seconds}
    return {**nothing, **found, "unit": unit, "labels": dict(labels)}


def search(
    crew: "Measurer", job: "Job", deadline: float, tell: Callable[[str], object], count: Count = counted
) -> Outcome:
    """Measure a fit; what became of it, and every size that was tried.

    Args:
        crew: trains the sizes.
        job: the fit.
        deadline: in seconds, of each size.
        tell: takes a line about each.
        count: counts in this process, since the crew's are started afresh after each size that was too large.
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

    crew: "Measurer"
    job: "Job"
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
        peaks = next((tried["peak_bytes"] for tried in self.tried if size and tried["args"] == size["args"]), None)
        found = {"largest": size, "next": above, "tried": self.tried, "counted": fit["largest"]}
        balance = (size or above or {"balance": [0]})["balance"]
        return Outcome("done", metrics=line(found, peaks, balance, first["setup_s"], first["unit"], first["labels"]))

    def _counted(self, size: int | None) -> Line:
        """The largest size counted to fit into so many bytes, and the next one up."""
        return self.count(self.job.spec.model_copy(update={"fidelity": "counted", "memory": size}), self.job.device)

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
        outcome = self.crew.measure(replace(self.job, spec=spec, balance=tuple(cut["balance"])), self.deadline)
        if outcome.status != "done" and not memory.over_limit(outcome.reason):
            raise _Stopped(outcome)
        ran = outcome.metrics.get("fit", {}) if outcome.status == "done" else {}
        peaks = ran.get("peak_bytes")
        counts = {"counted_bytes": [stage["total"] for stage in cut["stages"]], "parameters": cut["parameters"]}
        entry = {"args": cut["args"], "status": outcome.status, "reason": outcome.reason, "peak_bytes": peaks}
        self.tried.append({"allocator_bytes": None} | ran | entry | counts)
        self.tell(f"{self.job.spec.grown(cut['args'])}: {'trains' if peaks else 'out of memory: ' + outcome.reason}")
        return peaks is not None
