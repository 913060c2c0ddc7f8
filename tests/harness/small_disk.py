"""`repro run` on a disk that is full or read-only, at its start or later; see test_stops.py.

Run as `unshare --map-root-user --mount python small_disk.py FOLDER`, which owns the small disk that
it mounts there. Prints [exit status, stderr, finished rounds] of each start as JSON.
"""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from crew import Crew

from repro.cli.main import main as repro
from repro.harness import machine, runner
from repro.harness.results import load

TIMED = [
    "--model",
    "timed",
    "--model-args",
    "L=2",
    "--batch",
    "8",
    "--K",
    "1",
    "2",
    "--M",
    "4",
    "--rounds",
    "5",
]


def start(disk: Path, crew: Crew) -> tuple[int, str, int]:
    runner.workers = lambda *_: crew
    results = disk / "results"
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as heard:
        code = repro(
            [
                "run",
                "sweep",
                *TIMED,
                "--wandb",
                "disabled",
                "--scale",
                "smoke",
                "--results",
                str(results),
            ]
        )
    return code, heard.getvalue(), len(set(load(results).rounds["round"]))


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def lock_up(disk: Path) -> None:
    """Make it read-only for every file that is opened from now on."""
    mount("--bind", disk, disk)
    mount("-o", "remount,bind,ro", disk)


def main(disk: Path) -> None:
    machine.cores = lambda: 2
    mount("-t", "tmpfs", "-o", "size=256k", "none", disk)
    fill(disk)
    found = [start(disk, Crew())]
    (disk / "filler").unlink()
    found.append(start(disk, Crew(before=lambda job: fill(disk) if job == 3 else None)))
    (disk / "filler").unlink()
    found.append(start(disk, Crew(before=lambda job: lock_up(disk) if job == 3 else None)))
    found.append(start(disk, Crew()))
    subprocess.run(["umount", disk], check=True)
    found.append(start(disk, Crew()))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
