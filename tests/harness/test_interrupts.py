"""Ctrl-C, SIGTERM and SIGKILL of the harness: finished rounds are kept, no process is left."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from leftovers import processes, program, segments, until

from repro.harness.results import load
from repro.io import lock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
SWEEP = (
    "-m repro run sweep --model timed --model-args L=2 forward_s=0.002 backward_s=0.002 --K 2 --M 2"
    " --N 4 --balance uniform --rounds 5000 --scale smoke --wandb disabled --results"
)


def sweep(results: Path, *before: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A sweep of two stages."""
    command = [*before, sys.executable, *SWEEP.split(), results]
    return program(results, command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@contextmanager
def begun(results: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """The sweep when it has had a round."""

    def has_had_a_round() -> bool:
        assert harness.poll() is None, harness.communicate()
        journals = results.glob("*/smoke/sweep/journal.jsonl")
        return any(b'"round":"timed-0001"' in path.read_bytes() for path in journals)

    with sweep(results, *before) as harness:
        until(has_had_a_round, 50)
        until(lambda: len(processes(results)) >= 3, 10)  # each round has fresh workers
        assert segments(results) == set(), "none has a name that could outlive its process"
        yield harness


IN_THE_BACKGROUND = ("sh", "-c", "trap '' INT HUP && exec \"$@\"", "sh")  # as `nohup ... &`


@pytest.mark.parametrize(
    ("before", "signals"),
    [((), "INT INT"), (IN_THE_BACKGROUND, "INT HUP TERM")],
    ids=["Ctrl-C twice", "ignored signals, then SIGTERM"],
)
def test_a_signal_stops_in_order_and_others_do_not_disturb(
    tmp_path: Path, before: tuple[str, ...], signals: str
):
    numbers = [signal.Signals[f"SIG{name}"] for name in signals.split()]
    with begun(tmp_path, *before) as harness:
        for number in numbers:
            harness.send_signal(number)
            time.sleep(0.1)
        _, error = harness.communicate(timeout=50)
        assert processes(tmp_path) == []
    assert harness.returncode == 128 + numbers[-1]
    kept = r"\d+ finished rounds? (is|are) kept"
    words = rf"interrupted: {kept}; `repro run sweep .*` goes on\n"
    assert re.fullmatch(words, error), error
    run, _plain = load(tmp_path).runs
    assert run.status == "planned"
    assert run.rounds
    assert not list(tmp_path.rglob(".*.json.*"))


@pytest.mark.timeout(150)
def test_workers_and_lock_do_not_outlive_a_killed_harness(tmp_path):
    with begun(tmp_path) as harness:
        words = rf"^--results {tmp_path}: another `repro run` measures into it; wait until"
        with pytest.raises(ValueError, match=words), lock.held(tmp_path):
            pass
        harness.kill()
        harness.communicate()
        with lock.held(tmp_path):  # its workers may still live
            pass
        until(lambda: processes(tmp_path) == [], 10)
    (journal,) = tmp_path.glob("*/smoke/sweep/journal.jsonl")
    kept, rounds = journal.read_bytes(), len(load(tmp_path).runs[0].rounds)
    more = SWEEP.replace("--rounds 5000", f"--rounds {rounds + 2}").split()
    with program(tmp_path, [sys.executable, *more, tmp_path], stdout=subprocess.PIPE) as again:
        printed, _ = again.communicate(timeout=50)
    assert again.returncode == 0, printed
    assert journal.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1]), "nothing is lost"
    found = [(run.status, len(run.rounds)) for run in load(tmp_path).runs]
    assert found == [("done", rounds + 2)] * 2
    assert not list(tmp_path.rglob(".*.json.*"))


def caught(status: str) -> int:
    """The signals that a process catches, as bits."""
    found = re.search(r"SigCgt:\s*(\w+)", status)
    return int(found[1], 16) if found else 0


@pytest.mark.parametrize("started", [1, 3, 4])
def test_a_signal_while_it_starts_is_one_line(tmp_path: Path, started: int):
    """When so many processes run: itself, Python's tracker, the server, and a worker."""

    def has_started() -> bool:
        assert harness.poll() is None, harness.communicate()
        return len(processes(tmp_path)) >= started

    with sweep(tmp_path) as harness:
        status = Path(f"/proc/{harness.pid}/status")
        sigterm = 1 << signal.SIGTERM - 1  # once handlers of ours are there
        until(lambda: caught(status.read_text()) & sigterm, 50)
        until(has_started, 50)
        time.sleep(random.Random(started).uniform(0, 0.5))
        os.killpg(harness.pid, signal.SIGINT)  # as a terminal does
        _, error = harness.communicate(timeout=50)
        until(lambda: processes(tmp_path) == [], 10)
    # Python ends by the signal itself where the interrupt went through C code; to a shell it is the
    # same.
    assert harness.returncode in (130, -signal.SIGINT)
    # Where the interrupt met the interpreter itself there is no word of rounds. Where the machine
    # is fast, some are finished by the last of these times.
    kept = r"(no round was finished|nothing was recorded|\d+ finished rounds? (is|are) kept)"
    assert re.fullmatch(f"interrupted: {kept}; .*\n", error), error


def test_an_interrupt_that_meets_a_callback_prints_no_traceback():
    script = """
import os, runpy, signal, sys
from repro.io import signals
Met = type("Met", (), {"__del__": lambda self: os.kill(os.getpid(), signal.SIGINT)})
check = signals.check
signals.check = lambda: (str(Met()), check())
sys.argv = ["repro", "list"]
runpy.run_module("repro", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted: nothing had begun\n")
