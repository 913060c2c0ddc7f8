"""The pipeline player: one training step that a reader of the page can change and play.

The page has no library and no network. `schedules.js` and `replay.js` are the schedules and the
clock of `repro.gpipe.schedule` again, in JavaScript; `tests/report/test_player.py` compares both.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.report.compare import rows_of
from repro.report.style import IDLE, KIND_WORDS, KINDS, model_name
from repro.report.texts import SCHEDULES

Step = dict[str, Any]  # of a run, for the page
HOME = Path(__file__).parent
SCRIPTS = ("schedules.js", "replay.js", "step.js", "timeline.js", "stages.js", "player.js")
LOGIC = SCRIPTS[:3]  # what needs no browser
RECOMPUTE_MODES = (("always", "always"), ("except_last", "except last"), ("never", "never"))
MOST_K, MOST_M = 16, 64  # of the sliders


def player(steps: Sequence[Step]) -> Markup:
    """The player as finished HTML, with its style, its scripts and measured steps inside."""
    schedules = {name: {"name": text, "about": about} for name, (text, about) in SCHEDULES.items()}
    data = {"kinds": KINDS, "schedules": schedules, "measured": steps}
    return rendered(
        HOME / "player.html.j2",
        css=Markup((HOME / "player.css").read_text(encoding="utf-8")),
        script=Markup(script(SCRIPTS)),
        data=data,
        schedules=[(name, text) for name, (text, _) in SCHEDULES.items()],
        recompute_modes=RECOMPUTE_MODES,
        measured=[
            (name, list(group))
            for name, group in groupby(enumerate(steps), key=lambda item: item[1]["experiment"])
        ],
        kind_words=KIND_WORDS,
        kinds=KINDS,
        idle=IDLE,
    )


def rendered(template: Path, **values: Any) -> Markup:
    loader = FileSystemLoader(template.parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": True}
    return Markup(environment.get_template(template.name).render(values))


def script(names: tuple[str, ...]) -> str:
    return "\n".join((HOME / name).read_text(encoding="utf-8") for name in names)


def measured_steps(results: Results, experiment: str = "") -> list[Step]:
    """The measured steps that can be loaded, in microseconds, of an experiment or of all."""
    return [
        _plain(results, run, timeline)
        for run in rows_of(results, experiment, fidelity="measured", status="done")
        # The player has our schedules, of several stages in one pipeline.
        if run.library == "repro" and run.schedule in SCHEDULES
        if 1 < run.K <= MOST_K and run.D == 1 and run.M <= MOST_M
        if (timeline := results.timeline(run)) is not None
    ]


def _plain(results: Results, run: Run, timeline: Timeline) -> Step:
    """A step for the page: each span as kind, stage, micro-batch, start and length."""
    schedule, _ = SCHEDULES[run.schedule]
    label = [model_name(run.model), schedule, f"K={run.K}, M={run.M}, N={run.N}"]
    label += [f"recompute {run.recompute}", run.differs_in, results.where(run)]
    spans = []
    for span in sorted(timeline.spans, key=lambda span: (span.start, span.stage)):
        start, seconds = span.start - timeline.start, span.seconds
        times = round(1e6 * start), round(1e6 * seconds)
        spans.append([span.kind, span.stage, span.micro_batch, *times])
    return {
        "label": ", ".join(filter(None, label)),
        "experiment": run.experiment,
        "source": f"{run.experiment} at {run.scale} scale on {run.machine}, run {run.id}",
        "schedule": run.schedule,
        "recompute": run.recompute,
        "K": run.K,
        "M": run.M,
        "v": timeline.stages_per_rank,
        "spans": spans,
    }
