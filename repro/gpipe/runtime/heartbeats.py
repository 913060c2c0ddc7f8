"""Heartbeats and failures: what processes post in a shared store, and who reads it."""

import json
import logging
import os
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

import torch
import torch.distributed as dist

from repro.gpipe.runtime.status import Status
from repro.io.untrusted import printable

_log = logging.getLogger(__name__)

INTERVAL = 0.5  # seconds between two heartbeats, and between two looks at those of others
# Seconds without a heartbeat after which a process that does steps counts as lost, and after which
# processes that wait for each other do so for ever.
SILENCE = float(os.environ.get("GPIPE_SILENCE_S", "7"))
if not 2 * INTERVAL <= SILENCE < 1e6:
    raise ValueError(f"GPIPE_SILENCE_S={SILENCE}: must be at least {2 * INTERVAL} seconds; try 7")
# The same before its first step, where imports and drivers take long, and while a message is being
# sent, which may be large and its link slow.
SETTING_UP = max(60.0, SILENCE)
# The same before its first heartbeat: it may import what the user's program does.
STARTING = max(300.0, SILENCE)
SAME_CALLS = "every rank must make the same calls of its Pipeline, as often, with the same options"
TEXT, _TRACEBACK = 1000, 2**13  # the most characters of an error and of its traceback


@dataclass(frozen=True)
class Failure:
    """The error that ended a group."""

    rank: int  # the process that failed
    text: str  # one line that names the stage and its last action
    status: str = "failed"  # or "oom"
    traceback: str = ""  # of the exception; empty if the process died or fell silent


@dataclass(frozen=True)
class Heartbeat:
    """What a process posts of its status."""

    status: str
    in_steps: bool = False
    ended: bool = False
    is_sending: bool = False
    waiting: list[int] | None = None  # for which rank, and the number of this wait
    posted: float | None = field(default=None, compare=False)  # no two are posted at one time


class Board:
    """Where processes post heartbeats and failures, in a store, and one reader of that.

    The reader finds processes without heartbeats, and waits that can never end. It looks once each
    INTERVAL and counts looks, not time: what happens while it is stopped itself does not count.
    """

    def __init__(self, store: dist.Store) -> None:
        self._kept = store  # the C++ objects made of it do not keep it alive
        self.store = dist.PrefixStore("gpipe-health", store)
        # What the last look has found, and how many looks before have found the same.
        self._found: dict[object, tuple[object, int]] = {}

    def post_failure(self, failure: Failure) -> Failure:
        """Post a failure, unless there is one already; returns the one that is posted.

        The first failure is the cause, the others are its consequences.
        """
        text, traceback = failure.text[:TEXT], failure.traceback[-_TRACEBACK:]
        value = json.dumps(asdict(replace(failure, text=text, traceback=traceback)))
        return Failure(**json.loads(self.store.compare_set("failure", "", value)))

    def failure(self) -> Failure | None:
        return Failure(**json.loads(raw)) if (raw := self._get("failure")) else None

    def post_heartbeat(self, rank: int, status: Status) -> None:
        waiting = status.waiting  # which another thread changes
        beat = Heartbeat(
            str(status),
            in_steps=status.step is not None,
            ended=status.ended,
            is_sending=bool(status.sending),
            waiting=None if waiting is None else [*waiting],
            posted=time.monotonic(),
        )
        self.store.set(f"beat/{rank}", json.dumps(asdict(beat)))

    def heartbeat(self, rank: int) -> Heartbeat:
        """The last one of a process; before its first one nothing is known but its rank."""
        raw = self._get(f"beat/{rank}")
        return Heartbeat(**json.loads(raw)) if raw else Heartbeat(f"rank {rank}")

    def is_running(self, rank: int) -> bool:
        beat = self.heartbeat(rank)
        return beat.posted is not None and not beat.ended

    def last_seen(self, rank: int) -> str:
        """Last known status of a process: `stage 1, F3 of step 2 when last heard of`."""
        beat = self.heartbeat(rank)
        return beat.status if beat.posted is None else f"{beat.status} when last heard of"

    def _get(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _looks(self, what: object, found: object) -> int:
        """How many looks before this one have found the same."""
        before, looks = self._found.get(what, (found, -1))
        looks = looks + 1 if found == before else 0
        self._found[what] = found, looks
        return looks

    def find_silent(self, ranks: Iterable[int]) -> Failure | None:
        """Post and return the failure of one of these ranks that has sent no heartbeat for long."""
        for rank in ranks:
            beat = self.heartbeat(rank)
            patience = SILENCE if beat.in_steps else SETTING_UP
            if beat.posted is None:
                patience = STARTING
            looks = self._looks(rank, beat.posted)
            if looks * INTERVAL >= patience and not beat.ended:
                hint = "a layer that holds Python's lock for as long needs a larger GPIPE_SILENCE_S"
                text = f"{self.last_seen(rank)}: no sign of life for {patience:.0f} s ({hint})"
                return self.post_failure(Failure(rank, text))
        return None

    def find_wait_cycle(self, rank: int) -> Failure | None:
        """Post and return the failure of a chain of processes that wait for each other for ever.

        The chain begins at `rank`; each process waits for the next. It can never end where the last
        process has ended, or waits for another one of the chain. A message may still arrive, so
        nothing is concluded while the waits change, and not soon while one is being sent. A last
        process that does not wait may still go on: a warning of the process before it names it.
        """
        chain: dict[int, Heartbeat] = {}
        last, end = rank, self.heartbeat(rank)
        chain[last] = end
        while not end.ended and end.waiting and end.waiting[0] not in chain:
            last, _ = end.waiting
            chain[last] = end = self.heartbeat(last)
        beats = [*chain.values()]
        looks, texts = self._looks("chain", beats), [beat.status for beat in beats]
        if len(beats) == 1:
            return None
        if not end.ended and end.waiting is None:
            if len(beats) == 2 and looks == round(SETTING_UP / INTERVAL):
                text = f"{' has waited for '.join(texts)}, for {SETTING_UP:.0f} s"
                _log.warning("%s: %s; or is it only slow?", text, SAME_CALLS)
            return None
        is_sending = not end.ended and any(beat.is_sending for beat in beats)
        if looks * INTERVAL < (SETTING_UP if is_sending else SILENCE):
            return None
        text = " waits for ".join(texts) + ("" if end.ended else ", which waits for one of these")
        return self.post_failure(Failure(last, f"{text}: {SAME_CALLS}"))


def status_of(error: BaseException) -> str:
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "oom" if out_of_memory or "can't allocate memory" in error_line(error) else "failed"


def error_line(error: BaseException) -> str:
    """Type and message of an error on one line, also where the message itself raises."""
    return printable("".join(traceback.format_exception_only(error)))
