"""Which figures the results allow, drawn to png and svg: curves, bars and recorded timelines."""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from repro.harness.results import Results
from repro.report import curves
from repro.report.compare import of_exhibits, rows_of
from repro.report.declared import report_of, words_of
from repro.report.style import save, styled
from repro.report.texts import FIGURES

Picture = tuple[str, Figure | None, Mapping[str, object]]  # the last fills its caption's braces
MOST = 4  # settings in a generic figure: those with the most runs


@dataclass(frozen=True)
class Drawn:
    """A figure on disk: `stem` is the path without ending, of a png and an svg file."""

    stem: Path
    experiment: str
    title: str
    caption: str

    @property
    def image(self) -> Markup:
        svg = self.stem.with_name(f"{self.stem.name}.svg").read_bytes()
        data = base64.b64encode(svg).decode("ascii")
        image = Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">')
        return image.format(data, self.title)


def draw_all(results: Results, directory: Path) -> list[Drawn]:
    """Draw every figure that these results allow into a directory; none without finished runs."""
    shown = of_exhibits(results)
    compared = {run.experiment for run in shown.runs if run.done}
    drawn: list[Drawn] = []
    pictures: Iterable[Picture]
    with styled():
        for experiment in dict.fromkeys(run.experiment for run in rows_of(results, status="done")):
            report = report_of(experiment) if experiment in compared else None
            if report:
                pictures = report.figures(shown) if hasattr(report, "figures") else ()
            else:
                runs = curves.timed_runs(results, experiment)
                sweep = curves.sweep(runs[runs["done"]], MOST)
                pictures = [("sweep", sweep, {"most": MOST})]
            words = FIGURES | getattr(words_of(results, experiment), "words", {})
            for name, figure, values in pictures:
                if figure is not None:
                    stem, text = directory / f"{experiment}_{name}", words[name].filled(**values)
                    save(figure, stem, text.title)
                    drawn.append(Drawn(stem, experiment, text.title, text.note))
    return drawn


def traces(results: Results, directory: Path) -> dict[str, Path]:
    paths = {}
    for experiment in results.by_experiment:
        trace = results.chrome_trace(rows_of(results, experiment, status="done"))
        if trace["traceEvents"]:
            paths[experiment] = directory / f"{experiment}.trace.json"
            paths[experiment].write_text(json.dumps(trace), encoding="utf-8")
    return paths
