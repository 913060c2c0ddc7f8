"""Results on disk: one file of events for each machine, scale and experiment, only ever appended.

    results/<machine>/<scale>/<experiment>/journal.jsonl
    results/<machine>/<scale>/<experiment>/timelines/<run>-<digest>.json.gz

A line is one event: a plan, an environment, a finished round or statuses. It ends with a digest of
itself and of the line before it. A commit is one write and one fsync, so a kill loses at most the
round that was under way: a last line without its end does not count, and goes when the next one is
written. Any other line that is not as it was written is named, and stops every command. Nothing is
rewritten: with `--force` the new rounds say that they replace the older ones.

The spans of the median step of a run's newest round have a file of their own, whose digest is in
the round. A kill may leave one that no round names; the next start removes it.
"""

import gzip
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from repro import __version__
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness.machine import Machine, commit, environment
from repro.harness.request import Result, Status
from repro.harness.schema import EnvironmentEvent, Event, PlanEvent, RoundEvent, Spans, StatusEvent
from repro.harness.spec import Experiment, RunSpec, Scale
from repro.io.explain import explain
from repro.io.files import write
from repro.io.redact import redact
from repro.io.untrusted import LARGE, read_bytes, refuse_links, short

NAME, TIMELINES = "journal.jsonl", "timelines"
REMEDY = "restore it from a copy, or move it away and measure its runs again"
_LARGEST = 2**32  # bytes of a journal
_EVENT: TypeAdapter[Event] = TypeAdapter(Event, config=ConfigDict(defer_build=True))
_DIGITS = 32  # of a digest
_SEAL = len(',"digest":""}') + _DIGITS


class Place(NamedTuple):
    """Where an experiment's results lie: results/<machine>/<scale>/<experiment>."""

    machine: str
    scale: str
    experiment: str


class Journal:
    """What is recorded of one experiment at one place; read once, then appended to.

    Only the process that holds the lock of the results appends. The folder need not exist; `root`
    is the results folder. A ValueError names a link below it, or a line that was changed.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder, self.root = folder, root or folder
        self.place = Place(*folder.parts[-3:])
        self.about: PlanEvent | None = None  # the newest plan
        self.rounds: list[RoundEvent] = []  # every finished one, the oldest first
        self.environments: dict[str, dict[str, Any]] = {}  # run -> where it was measured last
        self._specs: dict[str, dict[str, Any] | RunSpec] = {}
        self._of_run: dict[str, list[RoundEvent]] = {}
        self._statuses: dict[str, Status] = {}
        self._numbers: dict[str, int] = {}  # group -> its last round
        self._spans: dict[str, str] = {}  # run -> digest of the file with its spans
        self._environment: dict[str, Any] = {}
        self._size = 0  # bytes of the lines that count
        self.seal = b""  # ends the last of them, with a digest of it and of all before it
        refuse_links(self.root, self.path, folder / TIMELINES, *folder.glob(f"{TIMELINES}/*"))
        self._read()

    @classmethod
    def of(cls, results: Path, machine: Machine, scale: Scale, experiment: str) -> "Journal":
        return cls(results / machine.slug / scale / experiment, results)

    @property
    def path(self) -> Path:
        return self.folder / NAME

    @property
    def runs(self) -> dict[str, str]:
        """The runs of the newest plan: run -> group."""
        return self.about.runs if self.about else {}

    def spec(self, run: str) -> RunSpec:
        spec = self._specs.get(run, {})
        if not isinstance(spec, RunSpec):
            try:
                spec = self._specs[run] = RunSpec(**spec)
            except ValueError as error:
                raise self._unreadable(f"{short(run)}: {error}") from None
        return spec

    def rounds_of(self, run: str) -> Sequence[RoundEvent]:
        return self._of_run.get(run, ())

    def status(self, run: str) -> Status:
        return self._statuses.get(run, Status("planned"))

    def timeline(self, run: str) -> Timeline | None:
        """The median step of a run's newest round; None where none is recorded."""
        if run not in self._spans or not (path := self._file(run)).is_file():
            return None
        spec = self.spec(run)
        try:
            packed = read_bytes(path, LARGE, within=self.root)
            if _digest(packed) != self._spans[run]:
                raise ValueError("it is not as it was written")
            columns = Spans.model_validate_json(_unpacked(packed))
            rows = zip(*(getattr(columns, name) for name in Span._fields), strict=True)
            spans = tuple(map(Span._make, rows))
            if any(span.stage >= spec.total_stages for span in spans):
                raise ValueError(f"a span is of no stage; there are {spec.total_stages}")
            return Timeline(spans, spec.total_stages, spec.stages_per_rank or 1)
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error, Spans)}; {REMEDY}") from None
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path}: {error}; {REMEDY}") from None

    def plan(
        self, experiment: Experiment, machine: Machine, command: str = "", *, accumulate: bool
    ) -> None:
        """Record an experiment's runs, unless the newest plan has the same.

        With `accumulate` the commands of the newest plan stay, and those of its runs that would
        have the same id today: no ratio is taken with a run of another version, torch or machine.
        `command` is what a user types to measure them.
        """
        identity, commands, runs = machine.identity, [command] if command else [], {}
        if accumulate and self.about:
            commands = [*self.about.commands, *commands]
            runs = {
                run: group
                for run, group in self.about.runs.items()
                if self.spec(run).run_id(experiment.version, identity) == run
            }
        specs = {
            spec.run_id(experiment.version, identity): (group.name, spec)
            for group in experiment.groups
            for spec in group.runs
        }
        event = PlanEvent(
            **redact(experiment.model_dump(mode="json", exclude={"groups"})),
            identity=identity,
            commands=list(dict.fromkeys(map(redact, commands))),
            runs=runs | {run: group for run, (group, _) in specs.items()},
            specs={
                run: s.plain(recorded=True)
                for run, (_, s) in specs.items()
                if run not in self._specs
            },
        )
        known = self.about and self.about.model_dump(exclude={"specs"})
        if event.specs or event.model_dump(exclude={"specs"}) != known:
            self.append(event)

    def set_status(self, statuses: Mapping[str, Status]) -> None:
        """Record the statuses that are not as they were."""
        redacted = {run: Status(each.word, redact(each.reason)) for run, each in statuses.items()}
        changed = {run: list(each) for run, each in redacted.items() if self.status(run) != each}
        if changed:
            self.append(StatusEvent(status=changed))

    def commit(
        self,
        group: str,
        found: Mapping[str, Result],
        machine: Machine,
        times: tuple[str, str],
        *,
        together: Iterable[str] = (),
        done: Iterable[str] = (),
        replacing: Iterable[str] = (),
    ) -> None:
        """Record one round of a group.

        Args:
            found: run -> its result; runs that failed are left out.
            times: when the round started and ended, ISO 8601 in UTC.
            together: the runs that were measured step against step.
            done: the runs that have all their rounds now.
            replacing: the runs whose earlier rounds do not count any more.
        """
        here = environment(machine)
        events: list[Event] = [] if here == self._environment else [EnvironmentEvent(**here)]
        number = self._numbers.get(group, 0) + 1
        spans = {run: _packed(each.timeline) for run, each in found.items() if each.timeline}
        records = {run: each.record.model_dump(mode="json") for run, each in found.items()}
        event = RoundEvent(
            round=f"{group}-{number:04d}",
            group=group,
            commit=commit(),
            started=times[0],
            ended=times[1],
            records=redact(records),
            spans={run: _digest(packed) for run, packed in spans.items()},
            together=list(together),
            done=list(done),
            replacing=list(replacing),
        )
        for run, packed in spans.items():
            write(self.folder / TIMELINES / _file_name(run, event.spans[run]), packed)
        self.append(*events, event)
        self.remove_leftovers()

    def append(self, *events: Event) -> None:
        """Write events as whole lines in one go; after a full disk the file is as before."""
        seal, lines = self.seal, b""
        for event in events:
            line, seal = _line(event, seal)
            lines += line
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                os.ftruncate(file, self._size)  # cuts off a line that a kill left without its end
                os.lseek(file, self._size, os.SEEK_SET)
                written = 0
                while written < len(lines):
                    written += os.write(file, lines[written:])
                os.fsync(file)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, self._size)
                raise
            finally:
                os.close(file)
        except OSError as error:  # which lacks the path of the file
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._size, self.seal = self._size + len(lines), seal
        for event in events:
            self._apply(event)

    def remove_leftovers(self) -> None:
        """Remove timelines that no newest round names; only for a process that holds the lock."""
        named = {self._file(run) for run in self._spans}
        for path in (self.folder / TIMELINES).glob("*"):
            if path not in named:
                path.unlink()

    def _read(self) -> None:
        if not self.path.exists():
            return
        try:
            raw = read_bytes(self.path, _LARGEST, within=self.root)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        self._size = raw.rfind(b"\n") + 1
        for number, line in enumerate(io.BytesIO(raw[: self._size]), start=1):
            body, seal = line[: -_SEAL - 1], line[-_SEAL - 1 : -1]
            if seal[-_DIGITS - 2 : -2].decode("latin-1") != _digest(self.seal + body):
                raise ValueError(
                    f"{self.path}: line {number} is not as it was written, or one before it is "
                    f"missing; {REMEDY}"
                )
            self.seal = seal
            try:
                self._apply(_EVENT.validate_python(from_json(body + b"}")))
            except ValidationError as error:
                raise self._unreadable(f"line {number}: {explain(error, PlanEvent)}") from None
            except (ValueError, TypeError) as error:
                raise self._unreadable(f"line {number} is no event ({error})") from None

    def _unreadable(self, what: str) -> ValueError:
        """The error for what is as it was written, but means nothing to this version."""
        other = f"another version than {__version__} may have written it: update, or {REMEDY}"
        return ValueError(f"{self.path}: {short(what, 500, quote=False)}; {other}")

    def _apply(self, event: Event) -> None:
        if isinstance(event, PlanEvent):
            self.about = event
            self._specs |= event.specs
        elif isinstance(event, EnvironmentEvent):
            self._environment = event.model_dump(exclude={"event"})
        elif isinstance(event, StatusEvent):
            self._statuses |= {run: Status(*each) for run, each in event.status.items()}
        else:
            self._apply_round(event)

    def _apply_round(self, event: RoundEvent) -> None:
        self.rounds.append(event)
        self._numbers[event.group] = int(event.round.rpartition("-")[2])
        for run in event.replacing:
            self._of_run.pop(run, None)
        for run in event.records:
            self._of_run.setdefault(run, []).append(event)
            self.environments[run] = self._environment
            self._spans.pop(run, None)
        self._spans |= event.spans
        self._statuses |= dict.fromkeys(event.done, Status("done"))

    def _file(self, run: str) -> Path:
        return self.folder / TIMELINES / _file_name(run, self._spans[run])


def journals(results: Path) -> list[Journal]:
    """Every journal below a results folder, but not those of a `reference` folder inside it."""
    paths = sorted(results.glob(f"*/*/*/{NAME}"))
    if not paths:
        for depth in ("", "*/", "*/*/"):
            for path in results.glob(f"{depth}{NAME}"):
                above = path.parent.joinpath("../../..").resolve()
                raise ValueError(
                    f"{path}: lies in no folder <machine>/<scale>/<experiment> of the results "
                    f"'{results}'; give {above}, or move it away"
                )
    return [Journal(path.parent, results) for path in paths]


def _line(event: Event, before: bytes) -> tuple[bytes, bytes]:
    """An event as a line, and its seal. `before` is the seal of the line above."""
    value = event.model_dump(mode="json")
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()[:-1]
    seal = f',"digest":"{_digest(before + body)}"}}'.encode()
    return body + seal + b"\n", seal


def _file_name(run: str, digest: str) -> str:
    return f"{run}-{digest[:12]}.json.gz"


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=_DIGITS // 2).hexdigest()


def _packed(timeline: Timeline) -> bytes:
    columns = {name: [getattr(s, name) for s in timeline.spans] for name in Spans.model_fields}
    text = json.dumps(columns, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), mtime=0)


def _unpacked(packed: bytes) -> bytes:
    """The text of a file of spans; a small one from elsewhere may unpack to any size."""
    with gzip.open(io.BytesIO(packed)) as file:
        raw = file.read(LARGE + 1)
    if len(raw) > LARGE:
        raise ValueError(f"holds more than {LARGE} bytes")
    return raw
