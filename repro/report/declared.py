"""The report of an experiment: `experiments/<name>/report.py`, found by the experiment's name.

Such a file may have `tables(results)`, whose tables stand before the generic ones;
`figures(results, rows)`, whose figures stand instead of the generic ones; and `FOLDED`, the names
of tables and figures that the page shows only on request (with * as in file names).

`experiments/<name>/claims.py` has `evidence(results)`: claim id -> our number for it.
"""

from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parents[2] / "experiments"


def report_of(experiment: str) -> ModuleType | None:
    """The report of an experiment that comes with the project and has one."""
    return _module_of(experiment, "report")


def claims_of(experiment: str) -> ModuleType | None:
    """What an experiment holds against the paper's claims, if it does."""
    return _module_of(experiment, "claims")


def _module_of(experiment: str, file: str) -> ModuleType | None:
    # Names come from recorded results, so only one of these is ever imported.
    known = {path.parent.name for path in HOME.glob(f"*/{file}.py")}
    return import_module(f"experiments.{experiment}.{file}") if experiment in known else None


def is_folded(experiment: str, name: str) -> bool:
    """Whether the page shows a table or figure of an experiment only on request."""
    patterns = getattr(report_of(experiment), "FOLDED", ())
    return any(fnmatch(name, pattern) for pattern in patterns)
