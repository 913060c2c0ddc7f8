"""A measured fit: the coordinator searches for the largest size that trains.

It starts at the size that is counted to be the largest, or at the smallest if none is. It goes up
or down from there until one size has trained within the memory and the next one up has not. On the
way down steps double, since a GPU's kernels take workspace that is not counted; then the sizes
between are bisected. Every size is trained by fresh stages; a stage that runs out of memory is a
result here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from repro.gpipe.core import memory
from repro.harness.job import Job, Measure, Measured, Outcome
from repro.harness.schema import CutModel, FitRound, Fitted, Tried
from repro.harness.tasks.fit import counted


class _Stopped(Exception):
    """A size neither trained nor ran out of memory."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass
class Search:
    """A search among the sizes that fit, and those next to them.

    It counts in this process, since the crew's are started afresh after each size that was too
    large.
    """

    measure: Measure  # one size by the crew
    job: Job
    deadline: float  # seconds of one size
    tell: Callable[[str], object]  # takes a line about each size
    tried: list[Tried] = field(default_factory=list)
    step: float = 0.002  # down from a size that does not train, as a share of its memory

    def outcome(self) -> Outcome:
        """What became of the fit, and every size that was tried."""
        size, above = None, None  # the largest that trains, and the smallest that does not
        try:
            whole = self.counted(self.job.spec.memory)
            # Where nothing is counted to fit, the size next up is tried all the same.
            wanted = whole.fit.largest or whole.fit.next
            while wanted is not None:
                if self.trains(wanted):
                    size = wanted
                else:
                    above = wanted
                wanted = self.next(size, above)
        except _Stopped as stopped:
            return stopped.outcome
        except ValueError as error:  # it cannot be counted
            return Outcome("failed", str(error))
        trained = next((tried for tried in self.tried if size and tried.args == size.args), None)
        above = above if self.tried else whole.fit.next
        shown = size or above
        changed = {
            "fit": Fitted(largest=size, next=above, tried=self.tried, counted=whole.fit.largest),
            "peak_bytes": trained.peak_bytes if trained else None,
            "balance": shown.balance if shown else [0],
        }
        return Outcome("done", measured=Measured(whole.model_copy(update=changed)))

    def counted(self, memory: int | None) -> FitRound:
        """The largest size counted to fit into so many bytes, and the next one up."""
        fields = {"fidelity": "counted", "memory": memory}
        return counted(replace(self.job, spec=self.job.spec.model_copy(update=fields)))

    def next(self, trains: CutModel | None, above: CutModel | None) -> CutModel | None:
        """The size to try between one that trains and one that does not; None at the end."""
        if trains is None:
            return self.smaller(above) if above else None
        one_up = self.counted(trains.fullest).fit.next
        if one_up is None or self.is_known(one_up):
            return None
        if above is None:
            return one_up
        middle = self.counted((trains.fullest + above.fullest) // 2).fit.largest
        # Halves of a step may end at a size that was tried.
        return one_up if middle is None or self.is_known(middle) else middle

    def smaller(self, size: CutModel) -> CutModel | None:
        """A smaller size; each time by a step twice as large.

        Cuts are even to a thousandth, so the same size may be counted to need a bit less.
        """
        memory, found = size.fullest, size
        while found is not None and self.is_known(found):
            memory = int(memory * (1 - self.step)) - 1
            found = self.counted(memory).fit.largest if memory > 0 else None
        self.step *= 2
        return found

    def is_known(self, size: CutModel) -> bool:
        return any(tried.args == size.args for tried in self.tried)

    def trains(self, size: CutModel) -> bool:
        spec = self.job.spec.model_copy(update={"model_args": size.args})
        job = replace(self.job, spec=spec, balance=tuple(size.balance))
        outcome = self.measure(job, self.deadline)
        name = self.job.spec.chosen_arguments(size.args)
        if outcome.measured is not None:
            record = outcome.measured.record
            assert isinstance(record, FitRound)
            (tried,) = record.fit.tried
            self.tell(f"{name}: trains")
        elif reason := memory.over_limit(outcome.reason):
            failed = {"args": size.args, "status": "oom", "reason": reason}
            tried = Tried.model_construct(**failed, peak_bytes=None, allocator_bytes=None)
            self.tell(f"{name}: out of memory: {reason}")
        else:
            raise _Stopped(outcome)
        total = [stage.total for stage in size.stages]
        counts = {"parameters": size.parameters, "counted_bytes": total}
        self.tried.append(tried.model_copy(update=counts))
        return outcome.measured is not None
