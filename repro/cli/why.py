"""`repro why`: why a recorded run is slow, and what would make it faster."""

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from repro.cli.answers import tell
from repro.cli.options import parse_named
from repro.harness import catalog
from repro.harness.pack import SPANS, Files, experiments, holds_experiment
from repro.harness.record import Folder, recorded_spec
from repro.harness.spec import RunSpec
from repro.harness.terminal import table_of
from repro.io.redact import expanded
from repro.io.untrusted import did_you_mean, short

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.gpipe.schedule.timeline import Timeline
    from repro.gpipe.schedule.what_if import Change, Why
    from repro.harness.neighbours import Neighbour

_MOST_LISTED = 5  # runs in a message


@dataclasses.dataclass(frozen=True)
class WhyOptions:
    """Explain why a recorded run is slow and which changes would make it faster.

    [RUN] is a run's id, the beginning of one, its folder, or its spec.json.
    """

    run: str = ""
    """the run, where it is not named first"""
    results: Path = Path("results")
    """the folder with the run; the committed results in it are searched last"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds"""


def main(arguments: list[str]) -> int:
    options = parse_named(
        WhyOptions, arguments, "why", "run", "`repro report` lists all in its table of runs"
    )
    path = find(options.run, options.results)
    spec = _spec(path)
    why = explain(path, spec)
    tell(Answer.of(path, spec, why), as_json=options.json)
    return 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is found; `--json` prints these fields, in seconds.

    Attributes:
        critical_path: of each stage, kind -> seconds that the end of the step waited for.
        replayed_s: the recorded step, replayed; the changes are replayed too.
        neighbours: recorded runs that differ in one field, with measured and predicted gain.
    """

    run: str
    fidelity: str
    K: int
    M: int
    N: int
    D: int
    schedule: str
    checkpoint: str
    step_s: float
    bubble_idle_over_total: float
    breakdown: dict[str, float]
    critical_path: list[dict[str, float]]
    replayed_s: float
    changes: "tuple[Change, ...]"
    neighbours: "list[Neighbour]"
    verdict: str
    heading: str = dataclasses.field(repr=False)

    @classmethod
    def of(cls, path: Path, spec: RunSpec, why: "Why") -> "Answer":
        from repro.gpipe.schedule.breakdown import breakdown
        from repro.gpipe.schedule.critical import by_stage
        from repro.harness.neighbours import disproved, neighbours

        tried = neighbours(path, why)
        return cls(
            run=path.parent.name,
            **spec.model_dump(include={"fidelity", "K", "M", "N", "D", "schedule", "checkpoint"}),
            step_s=why.timeline.step_time,
            bubble_idle_over_total=why.timeline.bubble_over_total,
            breakdown=breakdown(why.timeline, why.schedule),
            critical_path=by_stage(why.path, spec.total_stages),
            replayed_s=why.base_s,
            changes=why.changes,
            neighbours=tried,
            verdict=why.verdict_without(disproved(tried)),
            heading=_heading(path, spec, why),
        )

    def parts(self) -> list["RenderableType"]:
        """For the terminal."""
        from rich.text import Text

        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.breakdown.items())
        return [
            self.heading,
            f"K x step: {shares}",
            "bubble: idle time that equal stages with free messages would have as well; transfer: "
            "the other idle time, for messages and for the runtime\n",
            "Critical path: what the end of the step waited for, as shares of the step",
            self._path_table(),
            f"\nWhat would change it: simulated with the {self.fidelity} costs",
            self._changes_table(),
            *self._neighbours_table(),
            Text(f"\n{self.verdict}", style="bold"),
        ]

    def _path_table(self) -> "RenderableType":
        total = {
            kind: sum(stage[kind] for stage in self.critical_path) for kind in self.critical_path[0]
        }
        kinds = [kind for kind, seconds in total.items() if seconds]

        def row(name: str, seconds: dict[str, float]) -> list[str]:
            cells = [
                f"{seconds[kind] / self.step_s:.1%}" if seconds[kind] else "" for kind in kinds
            ]
            return [name, *cells, f"{sum(seconds.values()) / self.step_s:.1%}"]

        stages = [row(f"stage {j}", seconds) for j, seconds in enumerate(self.critical_path)]
        titles = ("message" if kind == "transfer" else kind for kind in kinds)
        return table_of(["", *titles, "all"], [*stages, row("all", total)], left=("",))

    def _changes_table(self) -> "RenderableType":
        from repro.gpipe.schedule.what_if import CHANGES

        error = f"replayed: {self.replayed_s / self.step_s - 1:+.1%} of the recorded step"
        rows = [["unchanged", _ms(self.replayed_s), "1.00x", error]]
        rows += [[c.name, _ms(c.step_s), f"{c.factor:.2f}x", CHANGES[c.name]] for c in self.changes]
        columns = ("change", "step (ms)", "gain", "what it assumes")
        return table_of(columns, rows, left=(columns[0], columns[3]), wrapped=columns[3:])

    def _neighbours_table(self) -> list["RenderableType"]:
        """The gains of recorded runs with one change, beside the predicted ones."""
        if not self.neighbours:
            return []
        rows = [
            (
                each.name,
                f"{each.predicted:.2f}x" if each.predicted else "-",
                each.gain_text,
                each.run,
            )
            for each in self.neighbours
        ]
        return [
            "\nRecorded runs of the experiment that differ in one field: throughput over this "
            f"one's, {self.fidelity}\nin the same rounds; [95 % interval] from five rounds on, "
            "~ if it shows no difference",
            table_of(("change", "predicted", self.fidelity, "run"), rows, left=("change", "run")),
        ]


def find(run: str, results: Path) -> Path:
    """The spec.json of a run.

    Args:
        run: the path of the spec.json or of its folder, or the run's id or the beginning of it.
        results: where ids are looked up, in the committed results inside it last.

    Raises:
        ValueError: if it names no run, or several.
    """
    given = Path(expanded(run))
    for path in (given, given / "spec.json"):
        folder, name = path.parent.parent, f"{path.parent.name}/{path.name}"
        if path.is_file() or (holds_experiment(folder) and name in Files(folder)):
            return path
    known: list[Path] = []
    for folder in experiments(results):
        known += [folder / name for name in Files(folder, results).names("*/spec.json")]
    own = [path for path in known if "reference" not in path.relative_to(results).parts]
    committed = [path for path in known if path not in own]
    path = _with_id(run, own) or _with_id(run, committed)
    if path is None:
        raise ValueError(f"run = {short(run)}: {_unknown(run, results, [*own, *committed])}")
    return path


def _with_id(run: str, paths: list[Path]) -> Path | None:
    matches = [path for path in paths if path.parent.name == run]
    if not matches:
        matches = [path for path in paths if path.parent.name.startswith(run)]
    ids = {path.parent.name for path in matches}
    if len(ids) > 1:
        raise ValueError(
            f"run = {short(run)}: {len(ids)} ids begin so: {_listed(_labels(matches))}; give more "
            "of one"
        )
    if len(matches) > 1:
        folders = _listed([str(path.parent) for path in matches])
        raise ValueError(
            f"run = {short(run)}: recorded {len(matches)} times, as {folders}; name one of these "
            "folders"
        )
    return matches[0] if matches else None


def _unknown(run: str, results: Path, known: list[Path]) -> str:
    """Why a text names no run, and what to try."""
    of_experiment = [
        path for path in known if run in (path.parent.parent.name, str(path.parent.parent))
    ]
    if of_experiment or run in catalog.names():
        hint = f"`repro run {run}` records some"
        if of_experiment:
            hint = f"runs of it: {_listed(_labels(of_experiment))}"
        return f"is an experiment, give the id of one of its runs; {hint}"
    folder = Path(expanded(run))
    if folder.is_dir():
        inside = [path for path in known if folder.absolute() in path.absolute().parents]
        hint = f"; inside it are {_listed(_labels(inside))}" if inside else ""
        return f"is a folder without a spec.json, give that of a run{hint}"
    ids = sorted({path.parent.name for path in known})
    hint = did_you_mean(run, ids)
    if not hint:
        hint = f"; there is {_listed(ids)}" if ids else "; `repro run NAME` records some"
    return f"no run below {results} has an id that begins so, and no such path{hint}"


def _labels(paths: list[Path]) -> list[str]:
    """Sorted ids, with the fidelity in brackets unless it is "measured"."""
    labels = {}
    for path in sorted(paths, key=lambda path: path.parent.name):
        run = path.parent.name
        with suppress(ValueError):
            fidelity = recorded_spec(path).fidelity
            labels[run] = run if fidelity == "measured" else f"{run} ({fidelity})"
    return list(labels.values())


def _listed(texts: list[str]) -> str:
    """`a, b and 3 others`."""
    more = len(texts) - _MOST_LISTED
    others = f" and {more} others" if more > 0 else ""
    return ", ".join(texts[:_MOST_LISTED]) + others


def _spec(path: Path) -> RunSpec:
    """The spec in a file; a one-line ValueError that says what to give instead if it is none."""
    try:
        return recorded_spec(path)
    except ValueError:
        if path.suffix.lower() == ".json":
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


def _timeline(path: Path, spec: RunSpec) -> "Timeline":
    from repro.gpipe.schedule.timeline import Timeline

    run, folder = path.parent.name, Folder(path.parent.parent)
    table = path.parent / SPANS
    try:
        spans = folder.files.spans(run) if f"{run}/{SPANS}" in folder.files else []
        if spans:
            return Timeline.from_rows(spans, spec.total_stages, spec.stages_per_rank or 1)
    except ValueError as error:
        raise ValueError(f"{table}: {error}; measure it again with --force") from None
    status = folder.status(run)
    if spec.task != "train":
        reason = f"its task is '{spec.task}', which times no step"
    elif not spec.trace or spec.library != "repro":
        reason = "it was timed without spans (trace=false, or another library)"
    else:
        reason = f"its status is {status.status}" + (f" ({status.reason})" if status.reason else "")
    others = sorted(Path(name).parent.name for name in folder.files.names("*/spec.json"))
    other = next((other for other in others if _holds_spans(folder, other)), None)
    hint = "`repro run sweep` records runs that have one"
    if other:
        hint = f"choose one that has, such as {other}"
    raise ValueError(f"run = {run} has no timeline: {reason}; {hint}")


def _holds_spans(folder: Folder, run: str) -> bool:
    try:
        return bool(folder.files.spans(run))
    except ValueError:
        return False


def _heading(path: Path, spec: RunSpec, why: "Why") -> str:
    held, theory, work = "", "(K-1)/(M+K-1)", spec.M
    if spec.stages_per_rank is not None:
        # v stages a rank divide the bubble by v (arXiv:2104.04473, section 2.2).
        held = f" with v={spec.stages_per_rank} stages a rank"
        theory, work = "(K-1)/(v M+K-1)", spec.M * spec.stages_per_rank
    replicas = f", {spec.D} replicas" if spec.D > 1 else ""
    rounds = len(Folder(path.parent.parent).rounds(path.parent.name))
    which = "its one round" if rounds == 1 else f"the newest of {rounds} rounds"
    kept = f", the step recorded in {which}" if rounds else ""
    return (
        f"{path.parent.name} in {path.parent.parent}\n{spec.fidelity}: K={spec.K}, M={spec.M}, "
        f"N={spec.N}{replicas}, schedule {spec.schedule}{held}, re-materialization "
        f"{spec.checkpoint}\nstep {_ms(why.timeline.step_time)} ms{kept}; idle "
        f"{why.timeline.bubble_over_total:.1%} of K x step, in theory {theory} = "
        f"{(spec.K - 1) / (work + spec.K - 1):.1%}"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"
