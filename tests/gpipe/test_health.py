"""When a stage fails, or waits for ever, all ranks learn within ten seconds which one and where."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from failing import STAGES, call, train
from leftovers import processes, program, until

from repro.gpipe import launch
from repro.gpipe.runtime import heartbeats
from repro.gpipe.runtime.health import NO_ANSWER
from repro.gpipe.runtime.heartbeats import INTERVAL, SETTING_UP, SILENCE, Board
from repro.gpipe.runtime.launch import StageError
from repro.gpipe.runtime.status import Status, Wait

# Seconds, of the README. Ranks that wait for each other, or for one that has ended, are reported
# after 7 to 8 s, a call of another kind at once. Waits last longer on a crowded machine.
LIMIT = 10.0


def limit() -> float:
    return LIMIT * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def seconds_since(when: Path) -> float:
    return time.time() - float(when.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "stage", "words"),
    [
        ("raise", "B", 0, "stage 0, B1 of step 1: RuntimeError: layer is broken"),
        ("oom", "B", 3, "stage 3, B1 of step 1: .*can't allocate memory"),
        ("kill", "F", 3, r"stage 3, .* of step [01] when last heard of: died \(SIGKILL, probably"),
        ("kill", "I", 2, r"stage 2, .* of step [01] when last heard of: died \(SIGKILL, probably"),
        ("stop", "F", 2, "stage 2, .* of step [01] when last heard of: no sign of life for 7 s"),
    ],
)
def test_a_stage_that_fails_in_a_step(tmp_path: Path, how: str, kind: str, stage: int, words: str):
    when = tmp_path / "when"
    with pytest.raises(StageError, match=words) as caught:
        launch(train, how, kind, stage, str(when), stages=STAGES)
    assert seconds_since(when) < LIMIT
    failure = caught.value.failure
    assert (failure.rank, failure.status) == (stage, "oom" if how == "oom" else "failed")
    assert str(caught.value).count("Traceback") == (how in ("raise", "oom"))
    assert len(str(caught.value)) < 12000, "a message may have any length"


ENDED = "stage 0, .* waits for (stage|rank) 1, which has ended: every rank must make the same calls"
OTHER_CALL = "rank 1 waits for an evaluation, rank 0 sent a training step: every rank must make"
OTHER_OBJECT = "rank 1 waits for an object, rank 0 sent a training step: every rank must make"
STOPPED = r"stage 0, .* of step 0 when last heard of: no sign of life for 7 s"
IN_LOSS = "stage 1, R1 of step 0: RuntimeError: .* Timed out waiting 7000ms (.|\n)*, in loss\n"
WAITING = {  # the calls of each rank, and what is said of them
    "a rank without a Pipeline": (("nothing", ""), ENDED),
    "a rank that ends": (("train", "nothing"), ENDED),
    "a rank that evaluates": (("train", "evaluate"), OTHER_CALL),
    "a rank that saves": (("train train", "train save train"), OTHER_OBJECT),
    "a collective in the loss": (("collective", "collective"), IN_LOSS),
    "a stop of all": (("train rest stop",), STOPPED),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[StageError, float]]:
    """The error of each, and the seconds until then; all of them wait at the same time."""

    def one(name: str) -> tuple[StageError, float]:
        calls, when = WAITING[name][0], folder / name
        with pytest.raises(StageError) as caught:
            launch(call, str(when), *calls, stages=len(calls))
        return caught.value, seconds_since(when)

    folder = tmp_path_factory.mktemp("when")
    with ThreadPoolExecutor(len(WAITING)) as pool:
        return dict(zip(WAITING, pool.map(one, WAITING), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", WAITING)
def test_ranks_that_would_wait_for_ever(name: str, ended: dict[str, tuple[StageError, float]]):
    error, seconds = ended[name]
    assert re.search(WAITING[name][1], str(error)), error
    assert seconds < limit()
    assert "\n" not in error.failure.text


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
FAILING = [sys.executable, str(Path(__file__).with_name("failing.py"))]


@contextmanager
def ranks(mark: Path, *arguments: str, world: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes as torchrun starts them, with its agent's store and no launcher."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(world),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    command = [*FAILING, *arguments]
    with ExitStack() as ends:
        yield [
            ends.enter_context(
                program(mark, command, env=environment | {"RANK": str(n)}, stderr=subprocess.PIPE)
            )
            for n in range(world)
        ]


GONE = {
    "kill": "it closed its connection: it ended, or was killed",
    "stop": "no sign of life for 7 s",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", GONE)
def test_without_a_launcher_that_looks_after_them_all_ranks_know(tmp_path: Path, how: str):
    """As on several hosts. Nobody reads what rank 0 says, as behind `torchrun ... 2>&1 | head`."""
    when = tmp_path / "when"
    with ranks(tmp_path, "train", how, "F", "2", str(when), world=STAGES) as started:
        unread, second, _, last = started
        assert unread.stderr is not None
        unread.stderr.close()
        told = [process.communicate(timeout=50)[1] for process in (second, last)]
        assert [process.wait(10) for process in (unread, second, last)] == [1, 1, 1]
        assert seconds_since(when) < LIMIT
    for text in told:
        found = rf"leaving, because stage 2, .* of step [01] when last heard of: {GONE[how]}"
        assert len(re.findall(found, text)) == 1, text


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_torchrun_restarts_and_a_script_goes_on_from_its_checkpoint(tmp_path: Path, how: str):
    """The agent's store keeps what the ranks before have posted."""
    folder = tmp_path / "checkpoint"
    command = [*TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", FAILING[1], "resumed", how]
    with program(tmp_path, [*command, folder], stderr=subprocess.PIPE) as torchrun:
        printed = torchrun.communicate(timeout=140)[1]
    assert torchrun.returncode == 0, printed
    index = torch.load(folder / "index.pt", weights_only=True)
    assert index["content"]["extra"] == {"steps": 4}


@pytest.mark.slow
def test_a_launch_that_has_returned_under_torchrun(tmp_path: Path):
    """The process waits for the results of the others, so no connection shows that it is done."""
    when = tmp_path / "when"
    with ranks(tmp_path, "call", str(when), "train", "nothing", world=2) as (first, _):
        said = first.communicate(timeout=50)[1]
        assert seconds_since(when) < limit() + 3  # and the process's end
    assert re.search(ENDED, said), said
    assert first.returncode == 1


@pytest.mark.slow
def test_stages_leave_with_their_launcher_even_a_stopped_one(tmp_path: Path):
    when = tmp_path / "when"
    command = [*FAILING, "train", "stop", "F", "2", when]
    with program(tmp_path, command, stderr=subprocess.DEVNULL) as launcher:
        until(when.exists, 50)
        launcher.kill()
        until(lambda: processes(tmp_path) == [], LIMIT)


@pytest.mark.slow
def test_ranks_whose_store_no_longer_answers_leave(tmp_path: Path):
    """As on a host whose link is cut."""
    when, log = tmp_path / "when", tmp_path / "log"
    command = [*TORCHRUN, f"--nproc-per-node={STAGES}", FAILING[1], "endless", when]
    with log.open("w") as out, program(tmp_path, command, stderr=out) as agent:
        until(when.exists, 50)
        agent.send_signal(signal.SIGSTOP)
        until(lambda: log.read_text().count(NO_ANSWER) == STAGES, limit())


# Which waits can never end, and which silence is too long, as one reader looks again and again.


def posted_by(*statuses: dict[str, Any]) -> Board:
    board = Board(dist.HashStore())
    for rank, fields in enumerate(statuses):
        board.post_heartbeat(rank, Status(f"stage {rank}", **fields))
    return board


def seconds_until(look: Callable[[], object]) -> float:
    """By the looks that find nothing; inf after two minutes of them."""
    found = (n * INTERVAL for n in range(round(120 / INTERVAL)) if look())
    return next(found, math.inf)


RECEIVING: list[dict[str, Any]] = [{"waiting": Wait(1, 0)}, {"waiting": Wait(0, 0)}]


@pytest.mark.parametrize(
    ("statuses", "patience"),
    [
        (RECEIVING, SILENCE),
        # A message may be large, and a connection takes its time on a busy machine.
        ([RECEIVING[0], RECEIVING[1] | {"sending": {7}}], SETTING_UP),
        # Other threads of both ranks send; each takes the other's message when it has computed.
        ([{"sending": {7}}, {"sending": {7}}], math.inf),
        ([RECEIVING[0] | {"sending": {7}}, {"ended": True}], SILENCE),
        ([{}, {"ended": True}], math.inf),
    ],
)
def test_ranks_that_wait_for_each_other_have_so_many_seconds(
    statuses: list[dict[str, Any]], patience: float
):
    board = posted_by(*statuses)
    assert seconds_until(lambda: board.find_wait_cycle(0)) == patience
    failure = board.failure()
    assert bool(failure) == (patience < math.inf)
    words = "stage 0, before its first step waits for stage 1, (before its first step, )?which"
    assert failure is None or re.match(words, failure.text)


def test_waits_that_change_are_no_cycle():
    board = posted_by(*RECEIVING)
    for n in range(100):
        board.post_heartbeat(0, Status("stage 0", waiting=Wait(1, n // 10)))
        assert board.find_wait_cycle(0) is None


@pytest.mark.parametrize(
    ("statuses", "words", "patience"),
    [
        ([{"step": 1}], "stage 0, start or end of step 1 when last heard of", SILENCE),
        ([{}], "stage 0, before its first step when last heard of", SETTING_UP),
        ([{"ended": True}], "", math.inf),
    ],
)
def test_a_silent_rank_has_so_many_seconds(
    statuses: list[dict[str, Any]], words: str, patience: float
):
    board = posted_by(*statuses)
    assert seconds_until(lambda: board.find_silent([0])) == patience
    assert bool(failure := board.failure()) == bool(words)
    assert not failure or failure.text.startswith(f"{words}: no sign of life for {patience:.0f} s")


def test_a_process_counts_before_its_first_heartbeat(monkeypatch: pytest.MonkeyPatch):
    """One that is stopped as soon as it is started."""
    monkeypatch.setattr(heartbeats, "STARTING", 90.0)
    board = posted_by()
    assert seconds_until(lambda: board.find_silent([0])) == 90.0


def test_a_rank_that_does_not_wait_is_named(caplog: pytest.LogCaptureFixture):
    """It may compute, load its data, or be in a collective, so no process is ended."""
    board = posted_by({"waiting": Wait(1, 0)}, {})
    assert seconds_until(lambda: board.find_wait_cycle(0) or caplog.messages) == SETTING_UP
    assert seconds_until(lambda: board.find_wait_cycle(0)) == math.inf
    words = "stage 0, before its first step has waited for stage 1, before its first step, for 60 s"
    assert caplog.messages == [f"{words}: {heartbeats.SAME_CALLS}; or is it only slow?"]
