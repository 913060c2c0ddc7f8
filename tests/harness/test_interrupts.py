"""Ctrl-C, SIGTERM and SIGKILL of the harness: finished rounds stay, the rest is said, and nothing
is left behind."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import MARK, none_within, processes, segments

from repro.harness.results import load
from repro.io import lock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
SWEEP = (
    "-m repro run sweep --model timed --model-args L=2 forward_s=0.002 backward_s=0.002 --K 2 --M 2"
    " --N 4 --balance uniform --rounds 5000 --scale smoke --wandb disabled --results"
)


def start(results: Path) -> subprocess.Popen[str]:
    """A sweep of two stages, in a session of its own as in a terminal."""
    return subprocess.Popen(
        [sys.executable, *SWEEP.split(), str(results)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: str(results)},
        start_new_session=True,
    )


def begin(results: Path) -> subprocess.Popen[str]:
    """The sweep when it has had three rounds."""
    harness, journals = start(results), f"{results.name}/*/smoke/sweep/journal.jsonl"
    while not any(b'"round":"timed-0003"' in p.read_bytes() for p in results.parent.glob(journals)):
        assert harness.poll() is None, harness.communicate()
        time.sleep(0.1)
    while len(processes(str(results))) < 3:  # each round has fresh workers
        assert harness.poll() is None, harness.communicate()
    assert segments(str(results)) == set(), "none has a name that could outlive its process"
    return harness


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_a_signal_stops_in_order_and_a_second_does_not_disturb(
    tmp_path: Path, number: signal.Signals, times: int
):
    harness = begin(tmp_path)
    for _ in range(times):
        harness.send_signal(number)
        time.sleep(0.1)
    _, error = harness.communicate(timeout=60)
    assert harness.returncode == 128 + number
    words = r"interrupted: \d+ finished rounds are kept; `repro run sweep .*` goes on\n"
    assert re.fullmatch(words, error), error
    run, _plain = load(tmp_path).runs
    assert run.status == "interrupted(stopped by the user)"
    assert len(run.rounds) >= 3
    assert processes(str(tmp_path)) == []
    assert not list(tmp_path.rglob(".*.json.*"))


def test_workers_and_lock_do_not_outlive_a_harness_that_is_killed(tmp_path: Path):
    harness = begin(tmp_path)
    words = rf"process {harness.pid} on .*`repro run sweep"
    with pytest.raises(ValueError, match=words), lock.held(tmp_path, ""):
        pass
    harness.kill()
    harness.communicate()
    with lock.held(tmp_path, ""):  # its workers may still live
        pass
    assert none_within(str(tmp_path), 10)


def caught(status: str) -> int:
    """The signals that a process catches, as bits."""
    found = re.search(r"SigCgt:\s*(\w+)", status)
    return int(found[1], 16) if found else 0


@pytest.mark.parametrize("started", [1, 3, 4])
def test_a_signal_while_it_starts_is_one_line(tmp_path: Path, started: int):
    """When so many processes run: itself, Python's tracker, the server, and a worker."""
    harness = start(tmp_path)
    status = Path(f"/proc/{harness.pid}/status")
    while not caught(status.read_text()) & 1 << signal.SIGTERM - 1:  # by handlers of ours
        time.sleep(0.001)
    while len(processes(str(tmp_path))) < started:
        assert harness.poll() is None, harness.communicate()
    time.sleep(random.Random(started).uniform(0, 0.5))
    os.killpg(harness.pid, signal.SIGINT)  # as a terminal does
    _, error = harness.communicate(timeout=60)
    # Python ends by the signal itself where the interrupt went through C code; to a shell it is the
    # same.
    assert harness.returncode in (130, -signal.SIGINT)
    # Where the interrupt met the interpreter itself there is no word of rounds. Where the machine
    # is fast, some are finished by the last of these times.
    kept = r"(no round was finished|nothing was recorded|\d+ finished rounds? (is|are) kept)"
    assert re.fullmatch(f"interrupted: {kept}; .*\n", error), error
    assert none_within(str(tmp_path), 10)


def test_an_interrupt_that_meets_a_callback_prints_no_traceback():
    program = """
import os, runpy, signal, sys
from repro.io import signals
Met = type("Met", (), {"__del__": lambda self: os.kill(os.getpid(), signal.SIGINT)})
check = signals.check
signals.check = lambda: (str(Met()), check())
sys.argv = ["repro", "list"]
runpy.run_module("repro", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted: nothing had begun\n")
