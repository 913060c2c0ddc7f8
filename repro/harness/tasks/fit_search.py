"""A measured fit: the coordinator searches for the largest size that trains.

It starts at the size that is counted to be the largest, or at the smallest if none is. From there
it goes down until a size trains within the memory, or else up until the next size does not. Every
size is trained by fresh stages; a stage that runs out of memory is a result here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from repro.gpipe.core import memory
from repro.harness.request import Measure, Request, Result, Status
from repro.harness.schema import CutModel, FitRound, Fitted, Tried
from repro.harness.tasks.fit import counted

_STEP = 0.002  # down from a size that does not train, as a share of its memory


class _Stopped(Exception):
    """A size neither trained nor ran out of memory."""

    def __init__(self, status: Status) -> None:
        self.status = status


@dataclass
class Search:
    """A search among the sizes that fit, and those next to them.

    It counts in this process, since the workers are started afresh after each size that was too
    large.
    """

    measure: Measure  # one size by the workers
    request: Request
    deadline: float  # seconds of one size
    note: Callable[[str], object]  # takes a line about each size
    tried: list[Tried] = field(default_factory=list)

    def found(self) -> Result | Status:
        """The largest size and every size that was tried; a status where the search failed."""
        above: CutModel | None = None  # the smallest that does not train
        try:
            whole = self.counted(self.request.spec.memory)
            # Where nothing is counted to fit, the size next up is tried all the same.
            size = whole.fit.largest or whole.fit.next
            while size is not None and not self.trains(size):
                above, size = size, self.smaller(size)
            while size is not None and above is None:
                one_up = self.counted(size.fullest).fit.next
                if one_up is None:
                    break
                if self.trains(one_up):
                    size = one_up
                else:
                    above = one_up
        except _Stopped as stopped:
            return stopped.status
        except ValueError as error:  # it cannot be counted
            return Status("failed", str(error))
        trained = next((tried for tried in self.tried if size and tried.args == size.args), None)
        shown = size or above
        changed = {
            "fit": Fitted(largest=size, next=above, tried=self.tried, counted=whole.fit.largest),
            "peak_bytes": trained.peak_bytes if trained else None,
            "balance": shown.balance if shown else [0],
        }
        return Result(whole.model_copy(update=changed))

    def counted(self, memory: int | None) -> FitRound:
        """The largest size counted to fit into so many bytes, and the next one up."""
        fields = {"fidelity": "counted", "memory": memory}
        return counted(replace(self.request, spec=self.request.spec.model_copy(update=fields)))

    def smaller(self, size: CutModel) -> CutModel | None:
        """The next smaller size; None at the end.

        Cuts are even to a thousandth, so the same size may be counted to need a bit less.
        """
        memory, found = size.fullest, size
        while found is not None and found.args == size.args:
            memory = int(memory * (1 - _STEP)) - 1
            found = self.counted(memory).fit.largest if memory > 0 else None
        return found

    def trains(self, size: CutModel) -> bool:
        spec = self.request.spec.model_copy(update={"model_args": size.args})
        request = replace(self.request, spec=spec, balance=tuple(size.balance))
        found = self.measure(request, self.deadline)
        name = self.request.spec.chosen_arguments(size.args)
        if isinstance(found, Result):
            assert isinstance(found.record, FitRound)
            (tried,) = found.record.fit.tried
            self.note(f"{name}: trains")
        elif reason := memory.over_limit(found.reason):
            failed = {"args": size.args, "status": "oom", "reason": reason}
            tried = Tried.model_construct(**failed, peak_bytes=None, allocator_bytes=None)
            self.note(f"{name}: out of memory: {reason}")
        else:
            raise _Stopped(found)
        total = [stage.total for stage in size.stages]
        counts = {"parameters": size.parameters, "counted_bytes": total}
        self.tried.append(tried.model_copy(update=counts))
        return isinstance(found, Result)
