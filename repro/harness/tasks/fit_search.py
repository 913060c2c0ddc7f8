"""A measured fit: the coordinator searches for the largest size that trains.

It starts at the size that is counted to be the largest, and goes up or down from there until one
size has trained within the memory and the next one up has not. On the way down steps double, since
a GPU's kernels take workspace that is not counted; then the sizes between are bisected. Every size
is trained by fresh stages; a stage that runs out of memory is a result here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from repro.gpipe.core import memory
from repro.harness.job import Job, Measured, Measurer, Outcome
from repro.harness.schema import CutModel, FitRound, Fitted, Tried
from repro.harness.spec import RunSpec
from repro.harness.tasks.fit import counted

Count = Callable[[RunSpec, str], FitRound]  # of a fit, on "cpu" or "cuda"
_FIRST_STEP = 0.002  # down from a size that does not train, as a share of its memory


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
    """Up and down the sizes."""

    crew: Measurer
    job: Job
    deadline: float
    tell: Callable[[str], object]
    count: Count
    tried: list[Tried] = field(default_factory=list)

    def run(self) -> Outcome:
        """Bracket the largest size that trains."""
        try:
            first = self._counted(self.job.spec.memory)
            size, above = first.fit.largest, first.fit.next
            step = _FIRST_STEP
            while size is not None and not self._trains(size):
                size, above = self._smaller(size, step), size
                step *= 2
            while (middle := self._untried(size, above)) is not None:
                if not self._trains(middle):
                    above = middle
                    continue
                size = middle
                if middle == above:
                    above = self._counted(middle.fullest).fit.next
        except _Stopped as stopped:
            return stopped.outcome
        except ValueError as error:  # it cannot be counted
            return Outcome("failed", str(error))
        trained = next((t for t in self.tried if size and t.args == size.args), None)
        shown = size or above
        record = first.model_copy(
            update={
                "fit": Fitted(
                    largest=size, next=above, tried=self.tried, counted=first.fit.largest
                ),
                "peak_bytes": trained.peak_bytes if trained else None,
                "balance": shown.balance if shown else [0],
            }
        )
        return Outcome("done", measured=Measured(record))

    def _counted(self, memory: int | None) -> FitRound:
        """The largest size counted to fit into so many bytes, and the next one up."""
        return self.count(
            self.job.spec.model_copy(update={"fidelity": "counted", "memory": memory}),
            self.job.device,
        )

    def _untried(self, size: CutModel | None, above: CutModel | None) -> CutModel | None:
        """A size to try next, between one that trains and one that is larger; None at the end."""
        if above is None or not self._known(above):
            return above
        if size is None:  # not even the smallest size trains
            return None
        middle = self._counted((size.fullest + above.fullest) // 2).fit.largest
        if middle is None or self._known(middle):
            # Halves of a step may end at a size that was tried: then the next one up is left.
            middle = self._counted(size.fullest).fit.next
        return None if middle is None or self._known(middle) else middle

    def _smaller(self, size: CutModel, step: float) -> CutModel | None:
        """A smaller size, by a step that is a share of the memory.

        Cuts are even to a thousandth, so the same size may be counted to need a bit less.
        """
        memory = size.fullest
        while True:
            memory = int(memory * (1 - step)) - 1
            smaller = self._counted(memory).fit.largest if memory > 0 else None
            if smaller is None or not self._known(smaller):
                return smaller

    def _known(self, size: CutModel) -> bool:
        return any(tried.args == size.args for tried in self.tried)

    def _trains(self, size: CutModel) -> bool:
        spec = self.job.spec.model_copy(update={"model_args": size.args})
        job = replace(self.job, spec=spec, balance=tuple(size.balance))
        outcome = self.crew.measure(job, self.deadline)
        name = self.job.spec.chosen_arguments(size.args)
        counts = {
            "parameters": size.parameters,
            "counted_bytes": [stage.total for stage in size.stages],
        }
        if outcome.measured is not None:
            record = outcome.measured.record
            assert isinstance(record, FitRound)
            self.tried.append(record.fit.tried[0].model_copy(update=counts))
            self.tell(f"{name}: trains")
            return True
        if not memory.over_limit(outcome.reason):
            raise _Stopped(outcome)
        self.tried.append(
            Tried(
                args=size.args,
                status="oom",
                reason=outcome.reason,
                peak_bytes=None,
                allocator_bytes=None,
                **counts,
            )
        )
        self.tell(f"{name}: out of memory: {outcome.reason}")
        return False
