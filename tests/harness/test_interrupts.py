"""Ctrl-C, SIGTERM and SIGKILL of the harness: finished rounds stay, the rest is said, and nothing
is left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import MARK, none_within, processes, segments

from repro.harness.results import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
SWEEP = ["sweep", "--model", "timed", "--model-args", "L=2", "forward_s=0.002", "backward_s=0.002"]
SWEEP += [
    "--K",
    "2",
    "--M",
    "2",
    "--batch",
    "4",
    "--balance",
    "uniform",
    "--rounds",
    "5000",
    "--scale",
    "smoke",
]


def written(results: Path) -> bytes:
    """The bytes of the journal; none before there is one."""
    return b"".join(path.read_bytes() for path in results.glob("*/smoke/sweep/journal.jsonl"))


def begin(tmp_path: Path) -> subprocess.Popen[str]:
    """A sweep of two stages that has had three rounds."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", MARK: str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "repro",
        "run",
        *SWEEP,
        "--wandb",
        "disabled",
        "--results",
        str(tmp_path),
    ]
    harness = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    while b'"round":"timed-0003"' not in written(tmp_path):
        assert harness.poll() is None, harness.communicate()
        time.sleep(0.1)
    assert len(processes(str(tmp_path))) >= 3
    assert segments(str(tmp_path)) == set(), "none has a name that could outlive its process"
    return harness


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_in_order(tmp_path: Path, number: signal.Signals):
    harness = begin(tmp_path)
    harness.send_signal(number)
    _, error = harness.communicate(timeout=60)
    assert harness.returncode == 128 + number
    assert error.splitlines() == [error.strip()]
    assert re.match(
        r"interrupted: \d+ finished rounds are kept; `repro run sweep .*` goes on$",
        error.strip(),
    )
    (run,) = load(tmp_path).runs
    assert run.status == "interrupted(stopped by the user)"
    assert len(run.rounds) >= 3
    assert processes(str(tmp_path)) == []
    assert not list(tmp_path.rglob(".*.json.*"))


def test_workers_do_not_outlive_a_harness_that_is_killed(tmp_path: Path):
    harness = begin(tmp_path)
    harness.kill()
    harness.communicate()
    assert none_within(str(tmp_path), 10)


def test_a_signal_that_a_library_swallows_is_not_lost(tmp_path: Path):
    """An import may catch everything; the harness asks again before each run."""
    code = (
        "import os, signal, time; from repro.io import signals\n"
        "signals.install_handlers()\ntry:\n    "
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)\nexcept BaseException:\n    "
        "pass\ntry:\n    signals.check()\nexcept KeyboardInterrupt:\n    raise "
        "SystemExit(signals.exit_status())"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("wait", [0.4, 1.2, 4.8])
def test_a_signal_while_it_starts_is_one_line(tmp_path: Path, wait: float):
    command = [
        sys.executable,
        "-m",
        "repro",
        "run",
        *SWEEP,
        "--wandb",
        "disabled",
        "--results",
        str(tmp_path),
    ]
    quiet = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    harness = subprocess.Popen(command, start_new_session=True, **quiet)
    listening = Path(f"/proc/{harness.pid}/status")
    # Python itself heeds it, at least
    while not re.search(r"SigCgt:\s*\w*[2367abef]\b", listening.read_text()):
        time.sleep(0.001)
    time.sleep(wait)
    os.killpg(harness.pid, signal.SIGINT)  # as a terminal does
    _, error = harness.communicate(timeout=60)
    # Python ends by the signal itself where the interrupt went through C code; to a shell it is the
    # same.
    assert harness.returncode in (130, -signal.SIGINT)
    assert error.splitlines() == [error.strip()]
    # Where the interrupt met the interpreter itself there is no word of rounds. Where the machine
    # is fast, some are finished by the last of these times.
    kept = r"(no round was finished|nothing was recorded|\d+ finished rounds? (is|are) kept)"
    assert re.match(f"interrupted: {kept}; ", error)
