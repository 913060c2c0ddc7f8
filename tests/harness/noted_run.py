"""`repro run` that notes what it is doing, and when: `noted_run.py NOTE run ...`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repro.cli.main import main
from repro.harness import machine
from repro.harness.crew import Crew
from repro.harness.journal import Journal


def run_noted(note: Path, arguments: list[str]) -> int:
    """`repro ARGUMENTS`, and in the file `note` a line for each phase that begins."""
    # Timed layers wait, so two stages run side by side on one core as well.
    machine.cores = lambda: 2
    with note.open("a", buffering=1) as file:

        def say(phase: str) -> None:
            file.write(f"{phase} {time.monotonic()}\n")

        note_phase(Crew, "ready", say, "starting workers")
        note_phase(Journal, "commit", say, "recording")
        return main(arguments)


def note_phase(owner: type, name: str, say: Callable[[str], None], phase: str) -> None:
    """Have a method say that its phase begins, and when it ends that measuring goes on."""
    method = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        say(phase)
        returned = method(*arguments, **options)
        say("measuring")
        return returned

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    sys.exit(run_noted(Path(sys.argv[1]), sys.argv[2:]))
