"""The pipeline player: one training step that a reader of the page can change and play.

The page has no library and no network. `schedules.js` and `replay.js` are the schedules and the
clock of `repro.gpipe.schedule` again, in JavaScript; `tests/report/test_player.py` compares both.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.report.compare import rows_of
from repro.report.style import IDLE, KIND_WORDS, KINDS, model_name

HOME = Path(__file__).parent
SCRIPTS = ("schedules.js", "replay.js", "step.js", "timeline.js", "stages.js", "player.js")
LOGIC = SCRIPTS[:3]  # what needs no browser
# Name on the page, and what happens, in words that hold for every K and M.
SCHEDULES = {
    "naive": (
        "Naive",
        "One micro-batch goes forward and backward through all stages before the next one starts: "
        "one stage works, and K \N{MINUS SIGN} 1 wait (Figure 2 b).",
    ),
    "gpipe": (
        "GPipe",
        "All forwards, then all backwards in reverse order (Figure 2 c). Each stage keeps all M "
        "micro-batches until the backwards begin. R needs no gradient, so the first R is done "
        "while a stage waits.",
    ),
    "1f1b": (
        "1F1B",
        "As soon as the pipe is full, each forward is followed by a backward. Stage j, counted "
        "from 0, keeps at most K \N{MINUS SIGN} j micro-batches.",
    ),
    "interleaved-1f1b": (
        "Interleaved 1F1B",
        "Each rank holds v stages, each with 1/v of its layers, so a micro-batch goes v times "
        "round the ranks. A rank counts a micro-batch once for each of its stages that keeps it; "
        "later stages are paler.",
    ),
    "zb-h1": (
        "Zero bubble (ZB-H1)",
        "The backward is split into halves: I, the gradient of the inputs, for which the stage "
        "before waits, and W, the gradient of the weights, which fills waits. There is no "
        "recompute.",
    ),
}
CHECKPOINTS = (("always", "always"), ("except_last", "except last"), ("never", "never"))
# Of which measured steps can be loaded: at most so many of an experiment, and in all.
EXPERIMENTS = ("table2", "methods", "bubble", "two_gpu_demo")
MOST_OF_EXPERIMENT = 6
MOST = 12
FIGURE_2_M = 4  # of the paper's drawing
MOST_M = 32


def player(results: Results | None = None) -> Markup:
    """The player as finished HTML, with its style, its scripts and measured steps inside."""
    environment = Environment(
        loader=FileSystemLoader(HOME), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    steps = [] if results is None else [*measured_steps(results)]
    schedules = {name: {"name": text, "about": about} for name, (text, about) in SCHEDULES.items()}
    data = {"kinds": KINDS, "schedules": schedules, "measured": steps}
    html = environment.get_template("player.html.j2").render(
        css=Markup((HOME / "player.css").read_text(encoding="utf-8")),
        script=Markup(script(SCRIPTS)),
        data=_json(data),
        schedules=[(name, text) for name, (text, _) in SCHEDULES.items()],
        checkpoints=CHECKPOINTS,
        measured=[step["label"] for step in steps],
        kind_words=KIND_WORDS,
        kinds=KINDS,
        idle=IDLE,
    )
    return Markup(html)


def script(names: tuple[str, ...]) -> str:
    """The text of several of the scripts, which see each other's functions."""
    return "\n".join((HOME / name).read_text(encoding="utf-8") for name in names)


def measured_steps(results: Results) -> list[dict[str, Any]]:
    """The measured steps that can be loaded, all of one machine, in microseconds."""
    candidates = [
        (run, timeline)
        for name in EXPERIMENTS
        for run in rows_of(results, experiment=name, fidelity="measured", status="done")
        if _is_playable(run) and (timeline := results.timeline(run)) is not None
    ]
    machines = Counter(run.machine for run, _ in candidates)
    if not machines:
        return []
    (machine, _), *_ = machines.most_common(1)
    here = [(run, timeline) for run, timeline in candidates if run.machine == machine]
    return [_plain(run, timeline) for run, timeline in _chosen(here)]


def _is_playable(run: Run) -> bool:
    """Whether the player has its schedule: our library, several stages, one replica."""
    ours = run.library == "repro" and run.schedule in SCHEDULES
    return ours and run.K > 1 and run.D == 1 and run.M <= MOST_M


def _chosen(candidates: list[tuple[Run, Timeline]]) -> Iterator[tuple[Run, Timeline]]:
    """Of each setting the fullest step, and that with the M of the paper's Figure 2."""
    settings: dict[tuple[Any, ...], list[tuple[Run, Timeline]]] = {}
    for run, timeline in candidates:
        setting = (run.experiment, run.model, run.schedule, run.remat, run.spec.stages_per_rank)
        settings.setdefault(setting, []).append((run, timeline))
    taken = Counter()
    for (experiment, *_), steps in settings.items():
        fullest = max(steps, key=lambda step: (step[0].K, step[0].M))
        small = [step for step in steps if step[0].M == FIGURE_2_M and step is not fullest]
        for step in [*small[:1], fullest]:
            if taken[experiment] < MOST_OF_EXPERIMENT and taken.total() < MOST:
                taken[experiment] += 1
                yield step


def _plain(run: Run, timeline: Timeline) -> dict[str, Any]:
    """A step for the page: each span as kind, stage, micro-batch, start and length."""
    schedule, _ = SCHEDULES[run.schedule]
    label = f"{model_name(run.model)}, {schedule}, K={run.K}, M={run.M}, recompute {run.remat}"
    spans = [
        [
            span.kind,
            span.stage,
            span.micro_batch,
            round(1e6 * (span.start - timeline.start)),
            round(1e6 * span.seconds),
        ]
        for span in sorted(timeline.spans, key=lambda span: (span.start, span.stage))
    ]
    return {
        "label": f"{label} ({run.experiment})",
        "source": f"{run.experiment} at {run.scale} scale on {run.machine}, run {run.id}",
        "schedule": run.schedule,
        "checkpoint": run.remat,
        "K": run.K,
        "M": run.M,
        "v": timeline.stages_per_rank,
        "spans": spans,
    }


def _json(value: Any) -> Markup:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return Markup(text.replace("<", "\\u003c"))
