"""The report of an experiment: `experiments/<name>/report.py`, found by the experiment's name.

Such a file has

- `tables(results)`: its tables, the exhibit itself first;
- `figures(results)`: (name, figure, what fills the braces of its caption) of each, if any;
- `claims(results)`: the claims of the paper that it is about (`report.claim.Claim`), if any; a
  claim without a result of ours is there too;
- `READS`: other experiments of which `results` has the runs too, if any.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from repro.harness.about import About
from repro.harness.results import Results
from repro.harness.schema import PlanEvent
from repro.report.compare import of_exhibits

HOME = Path(__file__).resolve().parents[1] / "experiments"
MOST_COLUMNS = 7  # of a table


def report_of(experiment: str) -> ModuleType | None:
    """The report of an experiment that has one of its own."""
    # Names come from recorded results, so only one of these is ever imported.
    if experiment not in {path.parent.name for path in HOME.glob("*/report.py")}:
        return None
    return import_module(f"repro.experiments.{experiment}.report")


def compared(results: Results, experiment: str) -> tuple[Results, ModuleType | None]:
    """The runs that exhibits are made of, and the experiment's report if one of its own is done."""
    shown = of_exhibits(results)
    done = any(run.done for run in shown.by_experiment.get(experiment, ()))
    return shown, report_of(experiment) if done else None


def words_of(results: Results, experiment: str) -> About | PlanEvent:
    """Title, question and deviations of an experiment: its about.md's, else the recorded ones."""
    return getattr(report_of(experiment), "ABOUT", results.listings[experiment])
