"""Heartbeats and failures: what processes post in a shared store, and who reads it."""

import json
import logging
import math
import os
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from repro.gpipe.runtime.status import Status, Wait, user_collective
from repro.io.untrusted import printable

_log = logging.getLogger(__name__)

INTERVAL = 0.5  # seconds between two heartbeats
# Seconds without a heartbeat after which a process that has begun a step counts as lost.
SILENCE = float(os.environ.get("GPIPE_SILENCE_S", "7"))
if not 2 * INTERVAL <= SILENCE < 1e6:
    raise ValueError(f"GPIPE_SILENCE_S={SILENCE}: must be at least {2 * INTERVAL} seconds; try 7")
NO_ANSWER = f"no answer from the launcher for {SILENCE:.0f} s"
UNANSWERED = 94  # exit code of a process that leaves for that reason
# The same before its first step and its first heartbeat, since imports and drivers take long.
SETTING_UP = max(60.0, SILENCE)
# Seconds of waiting for a message of a process that has ended. A message that it had sent would
# have arrived by then.
_ENDED = 3.0
# Seconds of waiting for a process that is in no call of its Pipeline until a warning names it.
_OUTSIDE = 10.0
_LARGE = 2**20  # bytes; a larger message may take long on a slow link
SAME_CALLS = "every rank must make the same calls of its Pipeline, as often, with the same options"
COLLECTIVE = (
    "a collective waits for all ranks of its group, which do not come to it; call it outside of "
    "train_step, on all of them"
)
TEXT, _TRACEBACK = 1000, 2**13  # the most characters of an error and of its traceback


@dataclass(frozen=True)
class Failure:
    """The error that ended a group."""

    rank: int  # the process that failed
    text: str  # one line that names the stage and its last action
    status: str = "failed"  # or "oom"
    traceback: str = ""  # of the exception; empty if the process died or fell silent


class Board:
    """Where processes post heartbeats and failures, in a store, and one reader of that.

    The reader finds processes without heartbeats, and waits that can never end.
    """

    def __init__(self, store: dist.Store) -> None:
        self._kept = store  # the C++ objects made of it do not keep it alive
        self.store = dist.PrefixStore("gpipe-health", store)
        self.launches = 0  # that this program has returned from, under torchrun
        # The last heartbeat of each rank, and when it was first seen.
        self._beats: dict[int, tuple[str, float]] = {}
        self._looked = time.monotonic()
        # The chain of waits that was seen last, and when it was first seen.
        self._chain: tuple[object, float] = (None, 0.0)
        self._warned: set[int] = set()  # ranks that were named in a warning

    def post_failure(self, failure: Failure) -> Failure:
        """Post a failure, unless there is one already; returns the one that is posted.

        The first failure is the cause, the others are its consequences.
        """
        text, traceback = failure.text[:TEXT], failure.traceback[-_TRACEBACK:]
        value = json.dumps(asdict(replace(failure, text=text, traceback=traceback)))
        return Failure(**json.loads(self.store.compare_set("failure", "", value)))

    def failure(self) -> Failure | None:
        return Failure(**json.loads(raw)) if (raw := self._get("failure")) else None

    def post_heartbeat(self, rank: int, status: Status) -> bool:
        """Post the status of a process; return whether it waits."""
        # Other threads change both while they are read.
        waiting, sending = status.waiting, [*status.sending.values()]
        if waiting is None and status.flushing:
            waiting = min(sending, key=lambda wait: wait.number, default=None)
        place, group, ranks = "", "", []
        if waiting is None:
            with suppress(Exception):  # whatever the user's code does, this is a sign of life
                place, group, ranks = user_collective()
        if group:
            waiting = self._awaited(rank, group, ranks)
        sizes = [wait.nbytes for wait in (*sending, *([waiting] if waiting else []))]
        heartbeat = {
            "time": time.monotonic(),  # no two heartbeats are the same
            "who": status.who,
            "status": f"{status}{place}",
            "in_steps": status.warm,
            "in_call": status.calls > 0,
            "waiting": [waiting.rank, waiting.number] if waiting is not None else None,
            "collective": group,
            "control": waiting.control if waiting is not None else "",
            "in_transit": max(sizes, default=0),
        }
        self.store.set(f"beat/{rank}", json.dumps(heartbeat))
        return waiting is not None

    def _awaited(self, rank: int, group: str, ranks: Sequence[int]) -> Wait | None:
        """The wait in a collective of this group for one of these ranks that is in none of it.

        One that waits itself goes first, since only that one may wait for this rank.
        """
        beats = {other: self.heartbeat(other) for other in ranks if other != rank}
        missing = [other for other, beat in beats.items() if beat.get("collective") != group]
        missing.sort(key=lambda other: not beats[other].get("waiting"))
        return Wait(missing[0], 0, 0, "") if missing else None

    def heartbeat(self, rank: int) -> dict[str, Any]:
        return json.loads(self._get(f"beat/{rank}") or "{}")

    def post_returned(self, rank: int, launches: float) -> None:
        """Post from how many launches a process has returned; inf if it ends, in order."""
        self.store.set(f"returned/{rank}", str(launches))

    def returned(self, rank: int) -> float:
        """From how many launches a process has returned: it makes no more calls in these."""
        return float(self._get(f"returned/{rank}") or 0)

    def has_ended(self, rank: int) -> bool:
        return self.returned(rank) == math.inf

    def is_running(self, rank: int) -> bool:
        return self.store.check([f"beat/{rank}"]) and not self.has_ended(rank)

    def last_seen(self, rank: int) -> str:
        """Last known status of a process: `stage 1, F3 of step 2 when last heard of`."""
        beat = self.heartbeat(rank)
        return f"{beat['status']} when last heard of" if beat else f"rank {rank}"

    def _get(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def find_silent(self, ranks: Iterable[int]) -> Failure | None:
        """Post and return the failure of one of these ranks that has sent no heartbeat for long."""
        now = time.monotonic()
        if now - self._looked > SILENCE / 2:  # this process was stopped, not the others
            self._beats = {rank: (raw, now) for rank, (raw, _) in self._beats.items()}
        self._looked = now
        for rank in ranks:
            raw = self._get(f"beat/{rank}")
            before, since = self._beats.setdefault(rank, (raw, now))
            if raw != before:
                self._beats[rank] = raw, now
                continue
            slowness = 1.0 if raw else crowding()  # it may import what the user's program does
            patience = SILENCE if self.heartbeat(rank).get("in_steps") else SETTING_UP * slowness
            if now - since >= patience:
                hint = "a layer that holds Python's lock for as long needs a larger GPIPE_SILENCE_S"
                text = f"{self.last_seen(rank)}: no sign of life for {patience:.0f} s ({hint})"
                return self.post_failure(Failure(rank, text))
        return None

    def find_wait_cycle(self, rank: int) -> Failure | None:
        """Post and return the failure of a chain of processes that wait for each other for ever.

        The chain begins at `rank`; each process waits for the next. It can never end where the last
        process has ended, or waits for another one of the chain. A message in transit may still
        arrive, so nothing is concluded while the waits change, and not soon while a large message
        is sent or the host is crowded. A last process that is merely in no call of its Pipeline may
        still go on: a warning names it.
        """
        chain: dict[int, int] = {}  # rank -> number of its wait; -1 where it has ended
        texts: list[str] = []
        beats: list[dict[str, Any]] = []
        patience = SILENCE
        while rank not in chain:
            beat = self.heartbeat(rank)
            beats.append(beat)
            texts.append(beat.get("status", f"rank {rank}"))
            if self.returned(rank) > self.launches:
                chain[rank] = -1
                patience = _ENDED
                texts[-1] = f"{beat.get('who', f'rank {rank}')}, which has ended"
                break
            if not beat.get("waiting"):
                self._warn(rank, texts, beats)
                return None
            awaited, chain[rank] = beat["waiting"]
            rank = awaited
        *_, last = chain
        has_cycle = chain[last] >= 0
        waits = beats[[*chain].index(rank) :] if has_cycle else beats[:-1]
        # A process in a collective takes and sends no messages but those that it sends already.
        collectives = [beat for beat in waits if beat["collective"]]
        if any(beat["in_transit"] > _LARGE for beat in collectives or waits):
            patience = SETTING_UP
        # One sends what the other receives: their connection is made at the first message, which
        # takes long on a busy machine.
        if has_cycle and sorted(beat["control"] for beat in waits) == ["receive", "send"]:
            patience = SETTING_UP
        # No message, however late, brings the others to a collective.
        slowness = 1.0 if collectives else crowding()
        if self._unchanged_for((chain, texts)) < patience * slowness:
            return None
        text = " waits for ".join(texts) + (", which waits for one of these" if has_cycle else "")
        advice = COLLECTIVE if collectives else SAME_CALLS
        return self.post_failure(Failure(last, f"{text}: {advice}"))

    def _unchanged_for(self, chain: object) -> float:
        """Seconds for which the chain of waits has been this one."""
        now = time.monotonic()
        if self._chain[0] != chain:
            self._chain = chain, now
        return now - self._chain[1]

    def _warn(self, last: int, texts: list[str], beats: list[dict[str, Any]]) -> None:
        """Warn once, where a wait is long for a process that is in no call of its Pipeline."""
        unchanged_for, end = self._unchanged_for(texts), beats[-1]
        # Before its first step a process may still load its layers or data.
        patience = _OUTSIDE if end.get("in_steps") else SETTING_UP
        # Of a longer chain, the process next to the last one warns.
        is_told = len(beats) == 2 and not end.get("in_call")
        if unchanged_for < patience or not is_told or last in self._warned:
            return
        self._warned.add(last)
        text = f"{' has waited for '.join(texts)} for {patience:.0f} s"
        advice = f"which is in no call of its Pipeline: {SAME_CALLS}; or is it only slow?"
        _log.warning("%s, %s", text, advice)


def status_of(error: BaseException) -> str:
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "oom" if out_of_memory or "can't allocate memory" in error_line(error) else "failed"


def error_line(error: BaseException) -> str:
    """Type and message of an error on one line, also where the message itself raises."""
    return printable("".join(traceback.format_exception_only(error)))


def crowding() -> float:
    """Load average of the last minute for each core of this host, at least 1.

    A message takes about that many times as long, since gloo's threads wait for a core too.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
