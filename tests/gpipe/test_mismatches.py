"""Ranks that make different calls wait for each other: all learn of it within ten seconds."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from failing import agent_store
from mismatches import elsewhere, part, replicas

from repro.gpipe import launch
from repro.gpipe.runtime import heartbeats
from repro.gpipe.runtime.launch import StageError
from repro.gpipe.runtime.status import Status, Wait

# Seconds, of the README. A rank that has ended is reported after 3 to 4 s, ranks that wait for each
# other after 7 to 8 s, a call of another kind at once. All are later on a crowded machine.
LIMIT = 10.0

ENDED = (
    "stage {}, .* waits for (stage|rank) {}, which has ended: every rank must make the same calls "
    "of its Pipeline"
)
EXPECTED = {
    "the last rank builds no Pipeline": (
        "rank 1 ended, and never built the Pipeline that stage 0 waits for"
    ),
    "the first rank alone trains": ENDED.format(0, 1),
    "the last rank evaluates": (
        "rank 1 waits for an evaluation, rank 0 sent a training step: every rank must make"
    ),
    "the last rank builds another Pipeline": (
        "stage [01], .* waits for stage [01], .*, which waits for one of these"
    ),
    "the last rank saves while others train": (
        "rank 1 waits for an object|which waits for one of these: every rank"
    ),
}


def since(when: Path) -> float:
    return time.time() - float(when.read_text())


def limit() -> float:
    return LIMIT * heartbeats.crowding()


@pytest.mark.slow
@pytest.mark.parametrize(("what", "words"), EXPECTED.items())
def test_two_ranks(tmp_path: Path, what: str, words: str):
    when = tmp_path / "when"
    with pytest.raises(StageError, match=words) as caught:
        launch(part, what, 2, str(when), stages=2)
    assert since(when) < limit()
    assert "\n" not in caught.value.failure.text


@pytest.mark.slow
@pytest.mark.parametrize("what", ["checked"])
def test_replicas(tmp_path: Path, what: str):
    """They meet in sums of gradients, and where a step is checked in a vote."""
    when = tmp_path / "when"
    with pytest.raises(
        StageError,
        match=r"replica 0, stage 0, .* waits for replica 1, stage 0, which has ended: "
        "every rank must make",
    ):
        launch(replicas, what, str(when), stages=2)
    assert since(when) < limit()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["the first rank alone trains"])
def test_a_launch_that_has_returned_under_torchrun(tmp_path: Path, what: str):
    """The process waits for the results of the others, so no connection shows that it is done."""
    store, when = agent_store(), tmp_path / "when"
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    command = [sys.executable, str(Path(__file__).with_name("mismatches.py")), what, "2", str(when)]
    ranks = [
        subprocess.Popen(
            command, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = ranks[0].communicate(timeout=120)[1]
        assert since(when) < limit() + 3  # and the end of the process
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert re.search(EXPECTED[what], said), said
    assert ranks[0].returncode == 1


class Clock:
    """In place of `time` in `repro.gpipe.runtime.heartbeats`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(heartbeats, "time", fake)
    monkeypatch.setattr(heartbeats, "crowding", lambda: 1.0)
    return fake


def posted_by(*ranks: Status) -> dist.Store:
    posts = heartbeats.board(dist.HashStore())
    for rank, status in enumerate(ranks):
        heartbeats.post_heartbeat(posts, rank, 1, status)
    return posts


def test_two_ranks_that_both_send_wait_for_ever(clock: Clock):
    """Neither receives: one sends a step's first message, the other its part of a checkpoint."""
    watch = heartbeats.SilenceDetector(
        posted_by(
            Status("stage 0", waiting=Wait(1, 0, 32, "send")),
            Status("stage 1", waiting=Wait(0, 0, 32, "send")),
        )
    )
    assert watch.find_wait_cycle(0, 0) is None
    clock.now = heartbeats.SILENCE + 0.1
    failure = watch.find_wait_cycle(0, 0)
    assert failure is not None
    assert failure.text.startswith(
        "stage 0, before its first step waits for stage 1, before its first step, which"
    )


def test_a_rank_that_computes_while_another_thread_sends_is_no_reason(clock: Clock):
    """Slow layers on both sides: both send a message that the other takes when it has computed."""
    first, second = (
        Status("stage 0", sending={7: Wait(1, 0, 32, "")}),
        Status("stage 1", sending={7: Wait(0, 0, 32, "")}),
    )
    watch = heartbeats.SilenceDetector(posted_by(first, second))
    for clock.now in (0.0, 1000.0):
        assert watch.find_wait_cycle(0, 0) is None
    first.flushing = second.flushing = True  # now both wait
    watch = heartbeats.SilenceDetector(posted_by(first, second))
    assert watch.find_wait_cycle(0, 0) is None
    clock.now += heartbeats.SILENCE + 0.1
    assert watch.find_wait_cycle(0, 0) is not None


def test_a_message_that_is_awaited_may_take_a_minute(clock: Clock):
    """One rank sends, the other receives; on a busy machine their connection takes its time."""
    watch = heartbeats.SilenceDetector(
        posted_by(
            Status("stage 0", waiting=Wait(1, 0, 32, "send")),
            Status("stage 1", waiting=Wait(0, 0, 32, "receive")),
        )
    )
    assert watch.find_wait_cycle(0, 0) is None
    clock.now = heartbeats.SETTING_UP - 0.1
    assert watch.find_wait_cycle(0, 0) is None
    clock.now = heartbeats.SETTING_UP + 0.1
    assert watch.find_wait_cycle(0, 0) is not None


def in_collective(
    posts: dist.Store, rank: int, ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Post that a rank's loss is in a collective of these ranks."""
    with monkeypatch.context() as patched:
        place = "all_reduce of loss (program.py, line 3)"
        patched.setattr(heartbeats, "user_call", lambda: (place, "group", ranks))
        heartbeats.post_heartbeat(posts, rank, 2, Status(f"stage {rank}", calls=1))


def test_a_collective_ends_the_run_only_if_it_can_never_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog
):
    """Ranks 0 and 1 are a pipeline, 2 and 3 its replica; the losses of 1 and 3 have a collective.

    Without the ranks 0 and 2 it can go on as soon as rank 2 has computed.
    """
    posts = posted_by(
        Status("stage 0", waiting=Wait(1, 0, 2**21, "")),
        Status("stage 1"),
        Status("stage 2", calls=1),
        Status("stage 3", waiting=Wait(2, 0, 0, "")),
    )
    in_collective(posts, 1, [1, 3], monkeypatch)
    watch = heartbeats.SilenceDetector(posts)
    for clock.now in (0.0, 1000.0, 2000.0):
        assert watch.find_wait_cycle(1, 0) is None
    (told,) = caplog.messages
    assert told.startswith(
        "stage 1, before its first step in all_reduce of loss (program.py, line 3) has waited for "
        "stage 3, before its first step has waited for stage 2"
    )
    monkeypatch.setattr(heartbeats, "crowding", lambda: 100.0)
    in_collective(posts, 1, [0, 1, 2, 3], monkeypatch)
    assert watch.find_wait_cycle(0, 0) is None
    clock.now += heartbeats.SILENCE + 0.1
    failure = watch.find_wait_cycle(0, 0)
    assert failure is not None
    assert "waits for stage 1, before its first step in all_reduce of loss" in failure.text
    assert failure.text.endswith(heartbeats.COLLECTIVE)


def test_a_rank_that_does_something_else_is_named_once():
    """It may still make the call, so no process is ended; there is no warning while it computes."""
    (said, busy), (other, _) = launch(elsewhere, stages=2)
    assert other == []
    assert busy == []
    (warning,) = said
    assert re.match(
        r"stage 0, .* of step 2 has waited for stage 1, start or end of step 1 for 1 s", warning
    )
    assert "in no call of its Pipeline: every rank must make the same calls" in warning


def test_a_beat_can_be_read_while_messages_are_sent():
    """JSON with the wait of the computing thread; sends of other threads count while it flushes."""
    posts = posted_by(
        Status("stage 0", sending={7: Wait(1, 3, 100, ""), 8: Wait(1, 2, 50, "")}, flushing=True)
    )
    assert json.loads(posts.get("beat/0"))["waiting"] == [1, 2]
