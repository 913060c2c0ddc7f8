"""`repro why`: why a recorded run is as slow as it is, and what would make it faster."""

import dataclasses
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from repro.cli.options import parse_named
from repro.gpipe.errors import did_you_mean
from repro.harness import catalog
from repro.harness.outside import read, read_table, short
from repro.harness.pack import unpack
from repro.harness.record import Folder
from repro.harness.schema import finite
from repro.harness.spec import RunSpec
from repro.harness.terminal import show, table_of
from repro.io.redact import expanded

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.gpipe.schedule.timeline import Timeline
    from repro.gpipe.schedule.what_if import Why
    from repro.harness.neighbours import Neighbour

_NAMED = 5  # runs that a message lists at most


@dataclasses.dataclass(frozen=True)
class WhyOptions:
    """Explain why a recorded run is slow and which changes would make it faster.

    [RUN] is a run's id, the beginning of one, its folder, or its spec.json.
    """

    run: str = ""
    """the run, where it is not named first"""
    results: Path = Path("results")
    """where an id is looked for; among the committed results inside it only if it is nowhere else"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds"""


def main(arguments: list[str]) -> int:
    """The verb."""
    options = parse_named(
        WhyOptions, arguments, "why", "run", "`repro report` lists all in its table of runs"
    )
    path = find(options.run, options.results)
    spec = _spec(path)
    why = explain(path, spec)
    from repro.harness.neighbours import neighbours

    found = neighbours(path, why)
    if options.json:
        print(json.dumps(_plain(path, spec, why, found)))
    else:
        show(_story(path, spec, why, found))
    return 0


def find(run: str, results: Path) -> Path:
    """The spec.json of a run that is named by it, by its folder, by its id or by the beginning of one.

    Raises:
        ValueError: if it names no run, or several.
    """
    given = Path(expanded(run))
    if given.is_file():
        return given
    if (given / "spec.json").is_file():
        return given / "spec.json"
    unpack(results)
    own, committed = (
        sorted(results.glob(f"{inside}*/*/*/*/spec.json")) for inside in ("", "reference/")
    )
    for paths in (own, committed):
        if found := _named(run, paths):
            return found
    raise ValueError(f"run = {short(run)}: {_unknown(run, results, [*own, *committed])}")


def _unknown(run: str, results: Path, known: list[Path]) -> str:
    """What is wrong with a word that names no run, and what to try."""
    below = [path for path in known if run in (path.parent.parent.name, str(path.parent.parent))]
    if below or run in catalog.names():
        there = f"runs of it: {_some(_told(below))}" if below else f"`repro run {run}` records some"
        return f"is an experiment, give the id of one of its runs; {there}"
    ids = sorted({path.parent.name for path in known})
    if (folder := Path(expanded(run))).is_dir():
        inside = _some(
            sorted(_told([path for path in known if folder.absolute() in path.absolute().parents]))
        )
        return (
            "is a folder without a spec.json, give that of a "
            f"run{f'; inside it are {inside}' * bool(inside)}"
        )
    hint = did_you_mean(run, ids) or (
        f"; there is {_some(ids)}" if ids else "; `repro run NAME` records some"
    )
    return f"no run below {results} has an id that begins so, and no such path{hint}"


def _told(paths: list[Path]) -> list[str]:
    """Ids for people, in order: with the fidelity where it is not "measured", since ids alone do not tell it."""
    found = {}
    for path in sorted(paths, key=lambda path: path.parent.name):
        with suppress(ValueError):
            found[path.parent.name] = read(path, RunSpec).fidelity
    return [
        run if fidelity == "measured" else f"{run} ({fidelity})" for run, fidelity in found.items()
    ]


def _spec(path: Path) -> RunSpec:
    """The spec that a file holds; a ValueError of one line that says what to give instead where it holds none."""
    try:
        return read(path, RunSpec)
    except ValueError:
        if path.suffix.lower() in (".json", ".yaml", ".yml"):
            raise
        raise ValueError(
            f"run = {short(str(path))}: is no spec.json; give that of a run, its folder or its id"
        ) from None


def explain(path: Path, spec: RunSpec) -> "Why":
    """The recorded step of a run explained.

    Raises:
        ValueError: one line, if there is no timeline, or none that fits the spec.
    """
    from repro.gpipe.schedule.what_if import Why

    timeline = _timeline(path, spec)
    try:
        return Why.of(
            timeline,
            spec.make_schedule(),
            spec.N // spec.D,
        )
    except ValueError as error:
        raise ValueError(f"{path.parent}: {error}") from None


def _named(run: str, paths: list[Path]) -> Path | None:
    """The one among these of which `run` is the id or begins it."""
    found = [path for path in paths if path.parent.name == run]
    found = found or [path for path in paths if path.parent.name.startswith(run)]
    ids = {path.parent.name for path in found}
    if len(ids) > 1:
        raise ValueError(
            f"run = {short(run)}: {len(ids)} ids begin so: {_some(_told(found))}; give more of one"
        )
    if len(found) > 1:
        places = _some([str(path.parent) for path in found])
        raise ValueError(
            f"run = {short(run)}: recorded {len(found)} times, as {places}; name one of these "
            "folders"
        )
    return found[0] if found else None


def _some(words: list[str]) -> str:
    """`a, b and 3 others`."""
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} others" if more > 0 else "")


def _timeline(path: Path, spec: RunSpec) -> "Timeline":
    from repro.gpipe.schedule.timeline import COLUMNS, Timeline

    place = path.parent / "timeline.parquet"
    try:
        spans = read_table(place, COLUMNS) if place.exists() else []
        if spans:
            return Timeline.from_rows(spans, spec.K)
    except ValueError as error:
        raise ValueError(f"{place}: {error}; measure it again with --force") from None
    status = Folder(path.parent.parent).status(path.parent.name)
    if spec.task != "train":
        reason = f"its task is '{spec.task}', which times no step"
    elif not spec.trace or spec.library != "repro":
        reason = "it was timed without spans (trace=false, or another library)"
    else:
        reason = f"its status is {status.status}" + (f" ({status.reason})" if status.reason else "")
    others = sorted(path.parent.parent.glob("*/timeline.parquet"))
    other = next((other.parent.name for other in others if _holds_spans(other)), None)
    hint = (
        f"choose one that has, such as {other}"
        if other
        else "`repro run sweep` records runs that have one"
    )
    raise ValueError(f"run = {path.parent.name} has no timeline: {reason}; {hint}")


def _holds_spans(path: Path) -> bool:
    from repro.gpipe.schedule.timeline import COLUMNS

    try:
        return bool(read_table(path, COLUMNS))
    except ValueError:
        return False


def _head(path: Path, spec: RunSpec, why: "Why") -> str:
    """Which run, what it took."""
    replicas = f", {spec.D} replicas" if spec.D > 1 else ""
    rounds = len(Folder(path.parent.parent).records(path.parent.name))
    which = "its one round" if rounds == 1 else f"the newest of {rounds} rounds"
    kept = f", the step whose spans {which} kept" if rounds else ""
    return (
        f"{path.parent.name} in {path.parent.parent}\n{spec.fidelity}: K={spec.K}, M={spec.M}, "
        f"N={spec.N}{replicas}, schedule {spec.schedule}, re-materialization "
        f"{spec.checkpoint}\nstep {_ms(why.timeline.step_time)} ms{kept}; idle "
        f"{why.timeline.bubble_over_total:.1%} of K x step, in theory (K-1)/(M+K-1) = "
        f"{(spec.K - 1) / (spec.M + spec.K - 1):.1%}"
    )


def _story(
    path: Path, spec: RunSpec, why: "Why", found: Sequence["Neighbour"]
) -> list["RenderableType"]:
    """The answer for people."""
    from rich.text import Text

    from repro.gpipe.schedule.breakdown import breakdown
    from repro.gpipe.schedule.critical import by_kind, by_stage
    from repro.gpipe.schedule.what_if import CHANGES
    from repro.harness.neighbours import verdict

    parts = breakdown(why.timeline, why.schedule)
    kinds = [kind for kind, seconds in by_kind(why.path).items() if seconds]
    whole = why.timeline.step_time

    def cells(name: str, seconds: dict[str, float]) -> list[str]:
        shown = [f"{seconds[kind] / whole:.1%}" if seconds[kind] else "" for kind in kinds]
        return [name, *shown, f"{sum(seconds.values()) / whole:.1%}"]

    stages = [cells(f"stage {j}", seconds) for j, seconds in enumerate(by_stage(why.path, spec.K))]
    changes = [[c.name, _ms(c.step_s), f"{c.factor:.2f}x", CHANGES[c.name]] for c in why.changes]
    base = [
        "unchanged",
        _ms(why.base_s),
        "1.00x",
        f"replayed: {why.error:+.1%} of the recorded step",
    ]
    return [
        Text(_head(path, spec, why)),
        Text("K x step: " + ", ".join(f"{name} {share:.1%}" for name, share in parts.items())),
        Text(
            "bubble: the part of idle for which equal stages with free messages would wait as "
            "well; transfer: the waiting that is left, for messages and for the runtime\n"
        ),
        Text("Critical path: what the end of the step waited for, as shares of the step"),
        table_of(
            ["", *("message" if kind == "transfer" else kind for kind in kinds), "all"],
            [*stages, cells("all", by_kind(why.path))],
            left=("",),
        ),
        Text(f"\nWhat would change it: simulated with the {spec.fidelity} costs"),
        table_of(
            ("change", "step (ms)", "gain", "what it assumes"),
            [base, *changes],
            left=("change", "what it assumes"),
            wrapped=("what it assumes",),
        ),
        *_tried(found),
        Text(f"\n{verdict(why, found)}", style="bold"),
    ]


def _tried(found: Sequence["Neighbour"]) -> list["RenderableType"]:
    """What recorded runs with one change gave, beside what is predicted for them."""
    if not found:
        return []
    fidelity = found[0].fidelity
    rows = [
        (one.name, "-" if one.predicted is None else f"{one.predicted:.2f}x", one.told, one.run)
        for one in found
    ]
    return [
        "\nRecorded runs of the same experiment that differ in one thing: their throughput over "
        f"this one's, {fidelity}\nin the same rounds; [95 % interval] from five rounds on, ~ "
        "where it shows no difference",
        table_of(("change", "predicted", fidelity, "run"), rows, left=("change", "run")),
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def _plain(path: Path, spec: RunSpec, why: "Why", found: Sequence["Neighbour"]) -> dict[str, Any]:
    """The answer for programs."""
    from repro.gpipe.schedule.breakdown import breakdown
    from repro.gpipe.schedule.critical import by_stage
    from repro.harness.neighbours import verdict

    return {
        "run": path.parent.name,
        **spec.model_dump(include={"fidelity", "K", "M", "N", "D", "schedule", "checkpoint"}),
        "step_s": why.timeline.step_time,
        "bubble_idle_over_total": why.timeline.bubble_over_total,
        "breakdown": breakdown(why.timeline, why.schedule),
        "critical_path": by_stage(why.path, spec.K),
        "replayed_s": why.base_s,
        "changes": [dataclasses.asdict(change) for change in why.changes],
        "neighbours": [finite(dataclasses.asdict(one)) for one in found],
        "verdict": verdict(why, found),
    }
