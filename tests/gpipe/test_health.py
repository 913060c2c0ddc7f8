"""When a stage fails, all ranks learn within ten seconds which stage it was and what it did."""

import gc
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from failing import STAGES, agent_store, alone, apart, between, collective, lingering, raises, train
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


def test_a_stage_that_dies_between_steps(tmp_path: Path):
    when = tmp_path / "when"
    with pytest.raises(
        StageError, match="stage 1, start or end of step 1 when last heard of: died"
    ):
        launch(between, "kill", 1, str(when), stages=STAGES)
    assert seconds_since(when) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "save",
            r"stage [01], .* waits for stage [01], .*, which waits for one of these: "
            "every rank must make",
        ),
    ],
)
def test_ranks_that_wait_for_each_other_are_told(tmp_path: Path, how: str, words: str):
    when = tmp_path / "when"
    with pytest.raises(StageError, match=words):
        launch(apart, how, str(when), stages=2)
    assert seconds_since(when) < LIMIT * heartbeats.crowding()


@pytest.mark.slow
@pytest.mark.parametrize("op", ["all_reduce"])
def test_a_collective_in_the_loss_is_told(tmp_path: Path, op: str):
    when = tmp_path / "when"
    words = rf"stage 1, F0 of step 0 in {op} of loss \(failing.py, line \d+\)"
    with pytest.raises(StageError, match=words):
        launch(collective, op, str(when), stages=2)
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


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("huge", "RuntimeError: x x x"),
        ("unspeakable", "failing._Unspeakable: <exception str"),
        ("no text", "OSError: "),
    ],
)
def test_errors_that_are_hard_to_tell_are_told(what: str, words: str):
    with pytest.raises(StageError, match=f"rank 0, before its first step: {words}") as caught:
        launch(raises, what, stages=1)
    # of that the end alone
    assert "in raises\n" in caught.value.failure.traceback or what == "huge"


@pytest.mark.parametrize("given", ["abc", "0", "nan"])
def test_a_silence_that_is_no_number_of_seconds_is_one_line(given: str):
    command = [sys.executable, "-c", "from repro.gpipe import Pipeline"]
    found = subprocess.run(
        command, env=os.environ | {"GPIPE_SILENCE_S": given}, capture_output=True, text=True
    )
    assert found.stderr.endswith(
        f"ValueError: GPIPE_SILENCE_S='{given}': must be a number of seconds from 1.0 up; try 7\n"
    )


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
        told = [process.communicate(timeout=120)[1] for process in survivors]
        assert seconds_since(when) < LIMIT
    finally:
        for process in ranks:
            process.kill()
    for text in told:
        assert len(re.findall(words, text)) == 1, text
    own = ranks[2].communicate()[1]
    assert own.count("Traceback") == how.startswith("raise")
    assert [process.returncode for process in survivors] == [1, 1, 1]


@pytest.mark.slow
def test_a_survivor_leaves_also_where_nobody_reads_what_it_says(tmp_path: Path):
    """As behind `torchrun ... 2>&1 | head`."""
    store, when = agent_store(), tmp_path / "when"
    ranks = bare(
        ["train", "kill", "F", "2", str(when)], store.port, TORCHELASTIC_USE_AGENT_STORE="True"
    )
    try:
        for process in ranks:
            assert process.stderr is not None
            process.stderr.close()
        assert [process.wait(120) for process in ranks if process is not ranks[2]] == [1, 1, 1]
        assert seconds_since(when) < LIMIT
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.slow
def test_a_store_that_ends_after_the_last_step_is_not_missed(tmp_path: Path):
    """Without torchrun the first rank holds it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = bare(["afterwards", str(tmp_path)], port)
    told = [process.communicate(timeout=120)[1] for process in ranks]
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2", "3"}, told


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


def listening_addresses() -> list[str]:
    """Addresses and ports on which this process listens, in the kernel's hexadecimal."""
    sockets = {
        str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
    }
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return [line[1] for line in lines[1:] if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def addresses() -> list[str]:
    """Those of a stage whose gloo connections have been made."""
    dist.barrier()
    return [address.split(":")[0] for address in listening_addresses()]


def test_stages_listen_on_the_loopback_address_alone():
    found = [address for rank in launch(addresses, stages=2) for address in rank]
    assert found
    assert set(found) <= {"0100007F", "00000000000000000000000001000000"}
