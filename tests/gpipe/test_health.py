"""When a stage fails, all ranks learn within ten seconds which stage it was and what it did."""

import gc
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from failing import STAGES, agent_store, alone, apart, collective, lingering, train
from leftovers import MARK, none_within

from repro.gpipe import launch
from repro.gpipe.runtime import heartbeats
from repro.gpipe.runtime.launch import StageError

LIMIT = 10.0  # seconds, of issue and README


def seconds_since(when: Path) -> float:
    return time.time() - float(when.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "stage", "words"),
    [
        ("raise", "B", 0, "stage 0, B1 of step 1: RuntimeError: layer is broken"),
        ("oom", "B", 3, "stage 3, B1 of step 1: .*can't allocate memory"),
        (
            "kill",
            "F",
            3,
            r"stage 3, start or end of step 0 when last heard of: died "
            r"\(SIGKILL, probably out of memory\)",
        ),
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
    if how == "raise":
        assert "in _raise\n" in failure.traceback


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (apart, r"stage [01], .* waits for stage [01], .*, which waits for one of these: every "),
        (collective, r"stage 1, F0 of step 0 in all_reduce of loss \(failing.py, line \d+\)"),
    ],
)
def test_ranks_that_wait_for_each_other_are_told(tmp_path: Path, fn: Any, words: str):
    when = tmp_path / "when"
    with pytest.raises(StageError, match=words):
        launch(fn, str(when), stages=2)
    assert seconds_since(when) < LIMIT * heartbeats.crowding()


@pytest.mark.slow
def test_a_thread_that_goes_on_is_named_and_ended(capfd: pytest.CaptureFixture[str]):
    assert launch(lingering, stages=2) == [7, 7]
    assert capfd.readouterr().err.count("with what still ran there: writer (target sleep)") == 2


def test_the_limit_of_open_files_is_named():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # files that nobody holds any more would be closed later
    taken = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 5, before[1]))
    try:
        with pytest.raises(ValueError, match=rf"stages=2: .* the limit is {taken + 5} \(`ulimit"):
            launch(lingering, stages=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_the_launcher_notices_when_all_have_stopped(tmp_path: Path):
    when = tmp_path / "when"
    with pytest.raises(
        StageError, match=r"stage 0, .* of step 0 when last heard of: no sign of life for 7 s"
    ):
        launch(alone, str(when), stages=1)
    assert seconds_since(when) < LIMIT


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


def test_errors_that_are_hard_to_tell_are_told():
    assert "Unspeakable: <exception str" in heartbeats.error_line(Unspeakable())
    assert "\n" not in heartbeats.error_line(OSError("two\nlines \udcff"))
    store = dist.HashStore()
    posted = heartbeats.post_failure(
        store, heartbeats.Failure(0, "failed", "x" * 10**7, "y" * 10**7)
    )
    assert len(posted.text) + len(posted.traceback) < 10**5


@pytest.mark.parametrize("given", ["abc", "0", "nan"])
def test_a_silence_that_is_no_number_of_seconds_is_one_line(
    monkeypatch: pytest.MonkeyPatch, given: str
):
    monkeypatch.setenv("GPIPE_SILENCE_S", given)
    with pytest.raises(ValueError, match=f"^GPIPE_SILENCE_S='{given}': must be .*; try 7$"):
        heartbeats._seconds_of_silence()


RESTLESS = """
import torch.distributed as dist
from repro.gpipe.runtime import health

health.INTERVAL = 1e-6
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
watch = health.begin(store, 0, 2)
while watch._beats < 3:
    pass
"""


def test_a_process_ends_well_in_the_middle_of_a_sign_of_life():
    """A thread in the store's C++ code at the end of the interpreter would abort the process."""
    ended = subprocess.run([sys.executable, "-c", RESTLESS], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def bare(arguments: list[str], port: int, **more: str) -> list[subprocess.Popen[str]]:
    """Processes as torchrun starts them."""
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(STAGES),
    }
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **more}
    command = [sys.executable, str(Path(__file__).with_name("failing.py")), *arguments]
    return [
        subprocess.Popen(
            command, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(STAGES)
    ]


ENDED = r"leaving, because stage 2, .* of step [01] when last heard of: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "leaving, because stage 2, F1 of step 1: RuntimeError: layer is broken"),
        ("kill", ENDED + "it closed its connection: it ended, or was killed"),
        ("kill", ""),  # nobody reads what they say, as behind `torchrun ... 2>&1 | head`
        ("stop", ENDED + "no sign of life for 7 s"),
    ],
)
def test_without_a_launcher_that_looks_after_them_all_ranks_know(
    tmp_path: Path, how: str, words: str
):
    """As on several hosts: processes that share a store, and no launcher that sees them end."""
    store, when = agent_store(), tmp_path / "when"
    ranks = bare(
        ["train", how, "F", "2", str(when)], store.port, TORCHELASTIC_USE_AGENT_STORE="True"
    )
    survivors = [process for rank, process in enumerate(ranks) if rank != 2]
    try:
        for process in survivors if not words else ():
            assert process.stderr is not None
            process.stderr.close()
        told = [process.communicate(timeout=250)[1] if words else "" for process in survivors]
        assert [process.wait(250) for process in survivors] == [1, 1, 1]
        assert seconds_since(when) < LIMIT
    finally:
        for process in ranks:
            process.kill()
    for text in told:
        assert not words or len(re.findall(words, text)) == 1, text
    assert ranks[2].communicate()[1].count("Traceback") == (how == "raise")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stages_leave_with_their_launcher_even_a_stopped_one(
    tmp_path: Path, number: signal.Signals
):
    when = tmp_path / "when"
    command = [
        sys.executable,
        str(Path(__file__).with_name("failing.py")),
        "train",
        "stop",
        "F",
        "2",
        str(when),
    ]
    launcher = subprocess.Popen(
        command, env=os.environ | {MARK: str(tmp_path)}, stderr=subprocess.DEVNULL
    )
    while not when.exists():
        time.sleep(0.1)
        assert launcher.poll() is None
    launcher.send_signal(number)
    launcher.wait(LIMIT)
    assert none_within(str(tmp_path), LIMIT)


def addresses() -> list[str]:
    """Where a stage listens, once its gloo connections are made, in the kernel's hexadecimal."""
    dist.barrier()
    sockets = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            sockets.add(str(path.readlink()))
    files = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    lines = [line.split() for file in files for line in file.read_text().splitlines()[1:]]
    ours = [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
    return [line[1].split(":")[0] for line in ours]


def test_stages_listen_on_the_loopback_address_alone():
    found = [address for rank in launch(addresses, stages=2) for address in rank]
    assert found
    assert set(found) <= {"0100007F", "00000000000000000000000001000000"}
