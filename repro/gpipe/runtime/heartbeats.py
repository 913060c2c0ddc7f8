"""What the processes of a group post about themselves in a store that none of them holds, and what follows from it."""

import json
import logging
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from repro.gpipe.runtime.status import Here
from repro.io.untrusted import printable

_log = logging.getLogger(__name__)

INTERVAL = 0.5  # seconds between two reports


def _silence() -> float:
    given = os.environ.get("GPIPE_SILENCE_S", "7")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 2 * INTERVAL <= seconds < 1e6:
        raise ValueError(
            f"GPIPE_SILENCE_S={given!r}: must be a number of seconds from {2 * INTERVAL} up; try 7"
        )
    return seconds


SILENCE = _silence()  # without a report, from a process that is in a step
# the same before its first step: imports and drivers may hold Python's lock for long
SETTING_UP = max(60.0, SILENCE)
# seconds of waiting for a message of a process that has ended; what it had sent would be here
_ENDED = 3.0
# seconds of waiting for a process that is in no call of its Pipeline, until a warning says so
_OUTSIDE = 10.0
_LARGE = 2**20  # bytes of a message that may take its time on a slow link
SAME_CALLS = "every rank must make the same calls of its Pipeline, as often, with the same options"
_FAILURE = "failure"
_LONGEST = 2**16  # characters of a traceback: a store takes no values of many megabytes


@dataclass(frozen=True)
class Failure:
    """What ended a group.

    Attributes:
        rank: where it happened.
        status: "failed" or "oom".
        text: one line that names the stage and its last action.
        traceback: of what was raised, if that was it.
    """

    rank: int
    status: str
    text: str
    traceback: str = ""


def board(store: dist.Store) -> dist.Store:
    """The part of a store where failures and signs of life are posted."""
    return dist.PrefixStore("gpipe-health", store)


def post(board: dist.Store, failure: Failure) -> Failure:
    """Make a failure known, unless there is one: the first is the cause, the others its consequences. Returns it."""
    said = asdict(failure) | {
        "text": failure.text[:1000],
        "traceback": failure.traceback[-_LONGEST:],
    }
    return Failure(**json.loads(board.compare_set(_FAILURE, "", json.dumps(said))))


def posted(board: dist.Store) -> Failure | None:
    """The failure that is known."""
    return Failure(**json.loads(board.get(_FAILURE))) if board.check([_FAILURE]) else None


def post_beat(board: dist.Store, rank: int, number: int, here: Here) -> None:
    """Report where a process is."""
    beat: dict[str, object] = {"number": number, "who": here.who, "here": str(here)}
    beat |= {"in_steps": here.warm, "in_call": here.calls > 0}
    # Other threads change both while they are read here.
    waiting, sending = here.waiting, [*here.sending.values()]
    if waiting is None and here.flushing:
        waiting = min(sending, key=lambda one: one[1], default=None)
    in_transit = max((size for _, _, size, _ in sending), default=0)
    beat |= {"waiting": waiting and waiting[:2], "control": waiting[3] if waiting else ""}
    beat |= {"in_transit": max(in_transit, waiting[2] if waiting else 0)}
    board.set(f"beat/{rank}", json.dumps(beat))


def post_farewell(board: dist.Store, rank: int) -> None:
    """Report that a process is done: it is not missed from now on, and sends nothing any more."""
    board.set(f"farewell/{rank}", "")


def said_farewell(board: dist.Store, rank: int) -> bool:
    """Whether it is done."""
    return board.check([f"farewell/{rank}"])


def running(board: dist.Store, world: int) -> list[int]:
    """The ranks that have begun and not ended."""
    return [
        rank
        for rank in range(world)
        if board.check([f"beat/{rank}"]) and not said_farewell(board, rank)
    ]


def post_returned(board: dist.Store, rank: int, launch: int) -> None:
    """Report that what a process does in this launch, one of several in a program, has returned."""
    board.set(f"returned/{launch}/{rank}", "")


def has_ended(board: dist.Store, rank: int, launch: int) -> bool:
    """Whether a process is done, or at least with this launch: it makes no call of a Pipeline any more."""
    return said_farewell(board, rank) or board.check([f"returned/{launch}/{rank}"])


def last_seen(board: dist.Store, rank: int) -> str:
    """`stage 1, F3 of step 2 when last heard of`."""
    if not board.check([f"beat/{rank}"]):
        return f"rank {rank}"
    return f"{json.loads(board.get(f'beat/{rank}'))['here']} when last heard of"


def post_death(board: dist.Store, rank: int, how: str) -> Failure:
    """Make known that a process was seen to end, and how; what caused that, if it is known already, comes back."""
    return post(board, Failure(rank, "failed", f"{last_seen(board, rank)}: died ({how})"))


def status_of(error: BaseException) -> str:
    """The status word for a run that ends in this error."""
    full = isinstance(
        error, torch.OutOfMemoryError | MemoryError
    ) or "can't allocate memory" in words(error)
    return "oom" if full else "failed"


def words(error: BaseException) -> str:
    """Its type and message on one line, also where the message raises."""
    return printable("".join(traceback.format_exception_only(error)))


class Watch:
    """One reader of a board, who notices silence, and waits that can never end."""

    def __init__(self, board: dist.Store) -> None:
        self._board = board
        self._beats: dict[int, tuple[str, float]] = {}  # the last one of each rank, and since when
        self._looked = time.monotonic()
        # the chain of waits seen last, and since when
        self._knot: tuple[object, float] = (None, 0.0)
        self._warned: set[int] = set()  # ranks that were named in a warning

    def silence(self, ranks: Sequence[int]) -> Failure | None:
        """The failure of one of these ranks, which have begun and not ended, that reports no more."""
        now = time.monotonic()
        if now - self._looked > SILENCE / 2:  # it is this process that was stopped
            self._beats = {rank: (raw, now) for rank, (raw, _) in self._beats.items()}
        self._looked = now
        for rank in ranks:
            raw = self._board.get(f"beat/{rank}").decode()
            before, since = self._beats.get(rank, ("", now))
            if raw != before:
                self._beats[rank] = raw, now
                continue
            patience = SILENCE if json.loads(raw)["in_steps"] else SETTING_UP
            if now - since >= patience:
                hint = "a layer that holds Python's lock for as long needs a larger GPIPE_SILENCE_S"
                text = (
                    f"{last_seen(self._board, rank)}: no sign of life for {patience:.0f} s ({hint})"
                )
                return post(self._board, Failure(rank, "failed", text))
        return None

    def knot(self, rank: int, launch: int) -> Failure | None:
        """The failure of a chain of processes, `rank` the first, each of which waits for the next one and for ever.

        That is so where the last one has ended, or waits for another one of the chain. A message in
        transit may still come, so nothing is concluded while waits change, nor soon while a large
        message is on its way. A last one that is merely in no call of its Pipeline may still make
        one: a warning names it.
        """
        chain: list[tuple[int, int]] = []  # rank, number of its wait; -1 where it has ended
        texts: list[str] = []
        # what each one does with a small message of the runtime, if it waits for that
        control: list[str] = []
        patience = SILENCE
        while rank not in (known for known, _ in chain):
            beat = (
                json.loads(self._board.get(f"beat/{rank}"))
                if self._board.check([f"beat/{rank}"])
                else {}
            )
            texts.append(beat.get("here", f"rank {rank}"))
            if has_ended(self._board, rank, launch):
                chain.append((rank, -1))
                patience = _ENDED
                texts[-1] = f"{beat.get('who', texts[-1])}, which has ended"
                break
            if not beat.get("waiting"):
                self._warn([*chain, (rank, 0)], texts, in_call=beat.get("in_call", False))
                return None
            if beat["in_transit"] > _LARGE:
                patience = SETTING_UP
            control.append(beat["control"])
            following, number = beat["waiting"]
            chain.append((rank, number))
            rank = following
        # One sends what the other receives. Their connection is made at the first message, which
        # takes its time on a busy machine.
        if chain[-1][1] >= 0 and sorted(control) == ["receive", "send"]:
            patience = SETTING_UP
        if self._unchanged_for(chain) < patience:
            return None
        text = f"{' waits for '.join(texts)}{'' if chain[-1][1] < 0 else ', which waits for one of these'}"
        return post(self._board, Failure(chain[-1][0], "failed", f"{text}: {SAME_CALLS}"))

    def _unchanged_for(self, chain: object) -> float:
        """Seconds for which this has been the chain of waits."""
        now = time.monotonic()
        if self._knot[0] != chain:
            self._knot = chain, now
        return now - self._knot[1]

    def _warn(self, chain: list[tuple[int, int]], texts: list[str], *, in_call: bool) -> None:
        """Say once which process another one waits for, where the chain is these two; their waits may still end."""
        last = chain[-1][0]
        if (
            self._unchanged_for(chain) < _OUTSIDE
            or in_call
            or len(chain) != 2
            or last in self._warned
        ):
            return
        self._warned.add(last)
        _log.warning(
            "%s has waited for %s for %.0f s, which is in no call of its Pipeline: %s; or is it "
            "only slow?",
            *texts,
            _OUTSIDE,
            SAME_CALLS,
        )
