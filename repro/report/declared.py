"""What experiments declare to be shown: `experiments/<name>/report.py`, found by the name of a recorded experiment.

Such a file may have `tables(results)`, whose tables stand before the generic ones;
`figures(results, rows)`, whose figures stand instead of the generic ones; `FOLDED`, the names of
tables and figures that the page shows only when they are asked for (with * as in file names); and
`WHY = False`, where no table is to say why runs are slow.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parents[2] / "experiments"


def report_of(experiment: str) -> ModuleType | None:
    """The report of an experiment that comes with the project and has one."""
    # Names come from recorded results, so only one of these is ever imported.
    known = {path.parent.name for path in HOME.glob("*/report.py")}
    return import_module(f"experiments.{experiment}.report") if experiment in known else None
