"""Weights & Biases: what a whole experiment shows, and the report.

After each experiment one W&B run has a table of all its runs (so simulated and counted runs need no
W&B run each), which the workspace draws against K and M, and its timelines. After the report, one
W&B run has its tables, pictures and page. `repro dashboard` builds panels from the same names.
"""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.harness import wandb_mirror
from repro.harness.results import COLUMNS, Place, Results, Run
from repro.harness.wandb_mirror import About, Mode, name_part
from repro.io.redact import redact
from repro.io.untrusted import LARGE, read_text

if TYPE_CHECKING:
    import wandb

PAGE = "report"  # the name of the page among W&B's media
# Tables of the report about all experiments. Those of one experiment begin with its name.
GENERAL = ("verdicts", "claims", "audit")
_CLAIMS = "claims"
# Generic tables of the report, whose lines are in the table of all runs.
_POINTS = "_points"


def places(results: Results) -> list[Place]:
    """Each machine, scale and experiment that has a finished run."""
    return list(dict.fromkeys(run.place for run in results.runs if run.done))


def runs_table(experiment: str) -> str:
    """The name of the table of all runs of an experiment."""
    return f"runs/{experiment}"


def log_experiment(
    mode: Mode, results: Results, place: Place, directory: Path, tags: Sequence[str] = ()
) -> str | None:
    """Mirror what an experiment shows to W&B: the table of its runs, its timelines.

    Args:
        mode: "offline", "online" or "disabled".
        results: hold the experiment.
        place: machine, scale and experiment.
        directory: where W&B may write; it is made if missing.
        tags: the paper's table or figure.

    Returns:
        The project's address when online, else None. Never raises: trouble is one line on stderr.
    """
    experiment = place.experiment
    config = {"experiment": experiment, "machine": place.machine, "scale": place.scale}
    about = About(experiment, "all runs", f"{experiment}, all runs", config, tuple(tags))

    def fill(run: "wandb.Run") -> None:
        runs = [each for each in results.runs if each.place == place]
        run.log({runs_table(experiment): _table(COLUMNS, [results.row(each) for each in runs])})
        _log_timelines(run, results, runs)

    return wandb_mirror.mirror(mode, about, directory, fill)


def log_report(mode: Mode, plots: Path, experiments: Iterable[str], directory: Path) -> str | None:
    """Mirror a report to W&B: tables, pictures, page, and how many claims have which verdict.

    Args:
        mode: "offline", "online" or "disabled".
        plots: the folder of the report.
        experiments: that it shows.
        directory: where W&B may write; it is made if missing.

    Returns:
        The project's address when online, else None. Never raises: trouble is one line on stderr.
    """
    report = Report(plots, tuple(experiments))
    about = About("report", "report", "report", {"experiments": list(report.experiments)})

    def fill(run: "wandb.Run") -> None:
        import wandb

        logged: dict[str, Any] = {}
        for name, path in report.tables().items():
            rows = [{key: _number(cell) for key, cell in row.items()} for row in _rows(path)]
            if rows:
                logged[name] = _table(list(rows[0]), rows)
        for name, path in report.figures().items():
            logged[name] = wandb.Image(str(path), caption=path.stem)
        if report.page.is_file():
            text = redact(read_text(report.page, LARGE, within=plots))
            logged[PAGE] = wandb.Html(text, inject=False, data_is_not_path=True)
        run.log(logged | report.claims())

    return wandb_mirror.mirror(mode, about, directory, fill)


@dataclass(frozen=True)
class Report:
    """The files of a report that are mirrored, by their names in W&B.

    Attributes:
        plots: the folder of the report. It may hold other files, which are left alone.
        experiments: that the report shows.
    """

    plots: Path
    experiments: tuple[str, ...]

    @property
    def page(self) -> Path:
        return self.plots / "report.html"

    def tables(self, experiment: str = "") -> dict[str, Path]:
        """The tables of an experiment; by default all, those about several experiments too."""
        paths = self._files("csv", experiment)
        return {f"tables/{name_part(path.stem)}": path for path in paths}

    def figures(self, experiment: str = "") -> dict[str, Path]:
        """The figures of an experiment; by default all."""
        paths = self._files("png", experiment)
        return {f"figures/{name_part(path.stem)}": path for path in paths}

    def claims(self) -> dict[str, int]:
        """How many claims have which verdict."""
        path = self.plots / f"{_CLAIMS}.csv"
        rows = _rows(path) if path.is_file() else []
        verdicts = Counter(row.get("verdict") or "" for row in rows)
        return {
            f"claims/{name_part(verdict)}": count for verdict, count in sorted(verdicts.items())
        }

    def _files(self, kind: str, experiment: str) -> list[Path]:
        names = [experiment] if experiment else [*self.experiments, *GENERAL]
        return [
            path
            for path in sorted(self.plots.glob(f"*.{kind}"))
            if not path.is_symlink()
            and any(path.stem == name or path.stem.startswith(f"{name}_") for name in names)
            and _POINTS not in path.stem
        ]


def _log_timelines(run: "wandb.Run", results: Results, runs: Iterable[Run]) -> None:
    """Log the timelines of these runs as an artifact: one Chrome trace for ui.perfetto.dev."""
    import wandb

    trace = results.chrome_trace(runs)
    if not trace["traceEvents"]:
        return
    experiment = run.group or run.name
    artifact = wandb.Artifact(f"{experiment}-timelines", type="timelines")
    with artifact.new_file(f"{experiment}.trace.json") as file:
        file.write(redact(json.dumps(trace)))
    run.log_artifact(artifact)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> "wandb.Table":
    """A table without what is private. W&B sorts and plots a column whose cells have one type."""
    import wandb

    by_column = [_same_type([_cell(row[name]) for row in rows]) for name in columns]
    # All cells are redacted at once, since each look for secrets takes a while.
    by_column = json.loads(redact(json.dumps(by_column)))
    cells: Any = [list(row) for row in zip(*by_column, strict=True)]
    return wandb.Table(columns=list(columns), data=cells)


def _cell(value: Any) -> Any:
    """A number, a text or None; several values become JSON."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    return value


def _same_type(cells: list[Any]) -> list[Any]:
    """The cells of a column: all numbers, all true or false, or all texts; None stays None."""
    types = {float if type(cell) is int else type(cell) for cell in cells if cell is not None}
    if len(types) <= 1:
        return cells
    return [None if cell is None else str(cell) for cell in cells]


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path, LARGE, within=path.parent), newline="")))


def _number(text: str) -> float | str | None:
    """A cell of a csv file; None for an empty one."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text
