"""The `repro` command: finds the verb and imports nothing before it knows which one is asked for.

A user's mistake is one line on stderr and exit status 2; a run that failed gives 1; 130 is Ctrl-C,
143 SIGTERM; 0 says that all that was asked for is done or skipped.
"""

import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from repro.harness.warned import Warned
from repro.io import signals

# Each verb and what it is for; `repro.cli.<verb>` has its options and its `main`.
VERBS = {
    "list": (
        "Each experiment with the paper's numbering (v5 and NeurIPS), what it needs and how long "
        "it takes."
    ),
    "plan": "What would be measured here, what is done already and what this machine cannot do.",
    "run": (
        "Measure what is not done yet, record it, mirror it to W&B. Started again, it goes on "
        "where it stopped."
    ),
    "report": "Write tables, figures and report.html from the results alone.",
    "why": (
        "Why a recorded run is slow, and what a better balance, a larger M or a free link would "
        "give."
    ),
    "fit": "The largest model that fits into a given memory per stage, as in Table 1.",
    "simulate": "Steps of a model on K devices that are not here, for several K and M.",
    "calibrate": (
        "What this machine attains, or what a model's layers take on it, measured for `repro "
        "simulate`."
    ),
    "doctor": "What this machine has and what can be measured on it.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signals.install_handlers()
    warned, kept = Warned(), ""
    warnings.showwarning = warned.show
    try:
        try:
            return _dispatch(given)
        finally:
            warned.finish()
    except KeyboardInterrupt as stop:
        kept = str(stop)
    except Exception as error:
        if not signals.was_signalled():  # else this may be what an import made of it
            from repro.cli.options import mistake

            if not (isinstance(error, ValueError | OSError) and (told := mistake(error))):
                raise
            print(f"error: {told}", file=sys.stderr)
            return 2
    command = shlex.join(["repro", *given])
    print(
        f"interrupted: {kept or 'nothing was recorded'}; `{command}` starts again", file=sys.stderr
    )
    return signals.exit_status()


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print("usage: repro VERB ...\n\nGPipe (arXiv:1811.06965), reproduced.\n")
        for verb, about in VERBS.items():
            print(f"  repro {verb:10}{about}")
        print(
            "\n`repro VERB --help` shows a verb's options, `repro run NAME --help` an "
            "experiment's as well."
        )
        return 0 if given else 2
    if given[0] not in VERBS:
        from repro.harness.mistakes import near

        raise ValueError(
            f"verb = '{given[0]}': allowed are {', '.join(VERBS)}{near(given[0], VERBS)}"
        )
    return import_module(f"repro.cli.{given[0]}").main(given[1:])
