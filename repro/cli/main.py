"""The `repro` command: finds the verb and imports only what that verb needs.

Exit status: 0 when all is done or skipped, 1 when a run failed, or when one that the user chose
cannot be measured here, 2 for a mistake of the user (one line on stderr), 130 after Ctrl-C, 143
after SIGTERM.
"""

import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from repro.io import signals
from repro.io.called import as_called

# Each verb with its help line, which also begins its options' docstring in `repro.cli.<verb>`.
VERBS = {
    "list": "List the experiments: what each reproduces, what it needs, how long it takes.",
    "plan": "Show which runs would be measured, are recorded, or cannot run on this machine.",
    "run": "Measure and record the missing runs. After a stop, the same command goes on.",
    "report": "Write tables, figures and report.html from the recorded results, or print runs.",
    "predict": "Predict a step of given K and M, the fastest plan, or the largest model to fit.",
    "doctor": "Show this machine's hardware and software, and what can be measured on it.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    signals.install_handlers()
    # A notebook's kernel names a backend that this environment may lack; we draw into files alone.
    os.environ["MPLBACKEND"] = "agg"
    print_warnings_once()
    if isinstance(sys.stdout, TextIOWrapper):  # its encoding may lack a sign, such as that of times
        sys.stdout.reconfigure(errors="replace")
    try:
        status = _dispatch(given)
        sys.stdout.flush()  # here, where a closed pipe is no error
        return status
    except KeyboardInterrupt as stop:
        kept = str(stop)
    except (BrokenPipeError, SystemExit) as stop:
        # The reader closed the pipe, as `head` does, from which rich makes an exit.
        if not any(isinstance(each, BrokenPipeError) for each in (stop, stop.__context__)):
            raise  # of --help
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if given[0] == "run" else 0  # whose measurements end here
    except Exception as error:
        # An import that is interrupted may turn the KeyboardInterrupt into an error of its own.
        if not signals.was_signalled():
            from repro.cli.options import mistake

            text = mistake(error) if isinstance(error, ValueError | OSError) else ""
            if not text:
                raise
            print(as_called(f"error: {text}"), file=sys.stderr)
            return 2
        kept = ""
    command = shlex.join(["repro", *given])
    kept = kept or "nothing was recorded"
    print(as_called(f"interrupted: {kept}; `{command}` goes on"), file=sys.stderr)
    return signals.exit_status()


def print_warnings_once() -> None:
    """Print every further warning of this process as one line, the same text only once."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any) -> None:
        from repro.io.untrusted import printable

        text = f"warning: {printable(str(message))}"
        if text not in printed:
            print(text, file=sys.stderr)
        printed.add(text)

    warnings.showwarning = show


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print("usage: repro VERB ...\n\nGPipe (arXiv:1811.06965), reproduced.\n")
        for verb, summary in VERBS.items():
            print(f"  repro {verb:10}{summary}")
        print(
            "\n`repro VERB --help` shows a verb's options, `repro run NAME --help` an "
            "experiment's as well."
        )
        return 0 if given else 2
    verb = given[0]
    if verb not in VERBS:
        from repro.harness.catalog import names
        from repro.io.untrusted import did_you_mean

        is_experiment = verb in names()
        hint = f"; try `repro run {verb}`" if is_experiment else did_you_mean(verb, VERBS)
        raise ValueError(f"verb = '{verb}': allowed are {', '.join(VERBS)}{hint}")
    return import_module(f"repro.cli.{verb}").main(given[1:])
