"""Which figures the results allow, drawn to svg files: curves, bars and recorded timelines."""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from repro.harness.results import Results
from repro.report import curves
from repro.report.compare import rows_of
from repro.report.declared import compared, words_of
from repro.report.style import save, styled
from repro.report.texts import FIGURES

Picture = tuple[str, Figure | None, Mapping[str, object]]  # the last fills its caption's braces


@dataclass(frozen=True)
class Drawn:
    """A figure on disk, an svg file."""

    path: Path
    title: str
    caption: str

    @property
    def image(self) -> Markup:
        data = base64.b64encode(self.path.read_bytes()).decode("ascii")
        image = Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">')
        return image.format(data, self.title)


def draw(results: Results, experiment: str, directory: Path) -> list[Drawn]:
    """Draw the figures of an experiment, those of its report or of any sweep, into a directory."""
    shown, report = compared(results, experiment)
    drawn: list[Drawn] = []
    words = FIGURES | getattr(words_of(results, experiment), "words", {})
    with styled():
        pictures: Iterable[Picture]
        if report:
            pictures = report.figures(shown) if hasattr(report, "figures") else ()
        else:
            runs = curves.timed_runs(results, experiment)
            pictures = [("sweep", curves.sweep(runs[runs["done"]]), {"most": curves.MOST})]
        for name, figure, values in pictures:
            if figure is not None:
                path, text = directory / f"{experiment}_{name}.svg", words[name].filled(**values)
                save(figure, path, text.title)
                drawn.append(Drawn(path, text.title, text.note))
    return drawn


def trace(results: Results, experiment: str, directory: Path) -> str:
    """Write the recorded timelines of an experiment; the file's name, "" if there are none."""
    events = results.chrome_trace(rows_of(results, experiment, status="done"))
    if not events["traceEvents"]:
        return ""
    path = directory / f"{experiment}.trace.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    return path.name
