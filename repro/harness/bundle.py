"""Bundles: the results of a machine in one zip file, to send to somebody else, and their reading.

    bundle.json                                            {"format": 1, "commit": ...}
    <machine>/<scale>/<experiment>/records.jsonl           as in `repro.harness.pack`
    <machine>/<scale>/<experiment>/timelines.parquet

A bundle comes from others. Reading one runs no code: its files are only JSON and tables, and go
into a temporary folder. Records that were edited are refused by their digests, as everywhere.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from repro.gpipe.schedule.actions import COMPUTE
from repro.harness.machine import commit
from repro.harness.pack import RECORDS, REMEDY, TIMELINES, Files, as_lines
from repro.harness.results import Place, Results, load
from repro.harness.spec import SCALES
from repro.io.files import as_json, write
from repro.io.untrusted import LARGE, SMALL, from_json, read_bytes, short

FORMAT = 1
_ABOUT = "bundle.json"
_MOST_EXPERIMENTS = 100
_MOST_LINES = 20_000  # of records.jsonl: each is a file of an experiment
_MACHINE, _EXPERIMENT = "[a-z0-9][a-z0-9.-]{0,99}", "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_FILE = f"{re.escape(RECORDS)}|{re.escape(TIMELINES)}"
_ENTRY = re.compile(f"({_MACHINE})/({'|'.join(SCALES)})/({_EXPERIMENT})/({_FILE})")
_WHEN = (1980, 1, 1, 0, 0, 0)  # of every entry, so that the same results give the same bytes


@dataclass(frozen=True)
class Merged:
    """What was taken from a bundle.

    Attributes:
        bundle: its path.
        places: the experiments, under the names that the report gives their machines.
        skipped: experiments that the report has already.
    """

    bundle: Path
    places: list[Place]
    skipped: list[Place]

    def __str__(self) -> str:
        lines = [f"{self.bundle}: {place.experiment} of {place.machine}" for place in self.places]
        lines += [
            f"{self.bundle}: {place.experiment} of {place.machine} is among the results already"
            for place in self.skipped
        ]
        return "\n".join(lines)


def places(results: Path) -> list[Place]:
    """The experiments of a results folder that have at least one recorded round."""
    loaded = load(results)
    return sorted({run.place for run in loaded.runs if run.rounds})


def write_bundle(results: Path, bundle: Path) -> list[Place]:
    """Pack every experiment of a results folder that has a recorded round into one file.

    Returns:
        The experiments that it holds.

    Raises:
        ValueError: one line, if nothing is recorded.
    """
    recorded = places(results)
    if not recorded:
        raise ValueError(
            f"results = '{results}': nothing is recorded there; measure something first, such as: "
            f"repro run table2 --scale smoke --results {results}"
        )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        about = {"format": FORMAT, "commit": commit()}
        archive.writestr(zipfile.ZipInfo(_ABOUT, _WHEN), as_json(about))
        for place in recorded:
            for name, content in Files(results.joinpath(*place), results).pack().items():
                entry = zipfile.ZipInfo("/".join([*place, name]), _WHEN)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    write(bundle, data.getvalue())
    return recorded


def merge(results: Path, bundles: Sequence[Path], folder: Path) -> tuple[Results, list[Merged]]:
    """The results of a folder and of bundles, each machine under a name of its own.

    A machine keeps its name. If another source has a machine of the same name, it gets the start
    of the bundle's digest as well, so that no number of one stands with those of the other.

    Args:
        results: results of this machine; the folder need not exist.
        bundles: files made by `write_bundle`, here or elsewhere.
        folder: an empty one, which must stay as long as the results are used.

    Raises:
        ValueError: one line that names the bundle, what is wrong and what to try.
    """
    local = load(results)
    machines = {run.machine for run in local.runs}
    all_contents = [_read(bundle) for bundle in bundles]
    # The experiments that the report has already, with their records.
    sent = {place for contents in all_contents for place in contents}
    present = {
        (place, Files(results.joinpath(*place), results).pack()[RECORDS])
        for place in {run.place for run in local.runs if run.rounds} & sent
    }
    loaded, merged = [], []
    for number, (bundle, contents) in enumerate(zip(bundles, all_contents, strict=True)):
        known = [place for place, files in contents.items() if (place, files[RECORDS]) in present]
        fresh = {place: files for place, files in contents.items() if place not in known}
        raw = b"".join(data for files in contents.values() for data in files.values())
        mark = blake2b(raw, digest_size=3).hexdigest()
        new_places = []
        for place, files in fresh.items():
            name = f"{place.machine}-{mark}" if place.machine in machines else place.machine
            new_places.append(place._replace(machine=name))
            _unpack(bundle, folder.joinpath(str(number), *new_places[-1]), files)
        if fresh:
            loaded.append(_load(bundle, folder / str(number)))
        merged.append(Merged(bundle, new_places, known))
        machines |= {place.machine for place in new_places}
        present |= {(place, files[RECORDS]) for place, files in fresh.items()}
    # Of several places, the last folder describes an experiment: never one that others have sent.
    runs = [run for source in [local, *loaded] for run in source.runs]
    folders = [place for source in [*loaded, local] for place in source.folders]
    return Results(runs, folders), merged


def _read(bundle: Path) -> dict[Place, dict[str, bytes]]:
    """The two packed files of every experiment in a bundle."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(bundle, LARGE))) as archive:
            _check_format(archive)
            return _experiments(archive)
    except ValueError as error:
        raise ValueError(f"{bundle}: {error}") from None
    # A damaged archive fails in many ways; RuntimeError is of an encrypted one.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{bundle}: no bundle that can be read ({short(error, quote=False)}); ask for it again"
        ) from None


def _check_format(archive: zipfile.ZipFile) -> None:
    """Raise a ValueError unless this version reads the bundle's format."""
    if _ABOUT not in archive.namelist():
        raise ValueError(f"holds no {_ABOUT}; give a file that `repro pack` wrote")
    about = from_json(_content(archive, _ABOUT, SMALL).decode("utf-8"))
    number = about.get("format") if isinstance(about, dict) else None
    if type(number) is not int or number < 1:
        raise ValueError(f"{_ABOUT} names no format; give a file that `repro pack` wrote")
    if number > FORMAT:
        raise ValueError(
            f"format = {number}: a newer version wrote it, this one reads up to {FORMAT}; "
            "update with `git pull`"
        )


def _experiments(archive: zipfile.ZipFile) -> dict[Place, dict[str, bytes]]:
    """The entries of an archive by experiment; raises a ValueError for any other entry."""
    names = archive.namelist()
    if len(names) > 1 + 2 * _MOST_EXPERIMENTS or len(set(names)) < len(names):
        raise ValueError(f"holds {len(names)} entries, or one twice; ask for it again")
    contents: dict[Place, dict[str, bytes]] = {}
    left = LARGE
    for name in names:
        if name == _ABOUT:
            continue
        match = _ENTRY.fullmatch(name)
        if match is None:
            raise ValueError(f"holds {short(name)}, which no bundle has; ask for it again")
        machine, scale, experiment, file = match.groups()
        data = _content(archive, name, left)
        left -= len(data)
        contents.setdefault(Place(machine, scale, experiment), {})[file] = data
    for place, files in contents.items():
        if set(files) != {RECORDS, TIMELINES}:
            raise ValueError(f"lacks a file of {'/'.join(place)}; ask for it again")
        if files[RECORDS].count(b"\n") > _MOST_LINES:
            raise ValueError(f"{'/'.join(place)} has more than {_MOST_LINES} files")
    if not contents:
        raise ValueError("holds no results; measure something first, then `repro pack`")
    return contents


def _content(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """An entry of an archive; a small archive may unpack to any size, so reading stops in time."""
    with archive.open(name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"holds more than {LARGE} bytes; is it the right file?")
    return data


def _unpack(bundle: Path, folder: Path, files: dict[str, bytes]) -> None:
    """Write the two packed files of one experiment, and check them."""
    try:
        records = [_without_commands(line) for line in files[RECORDS].decode().splitlines()]
        write(folder / RECORDS, as_lines(records))
        write(folder / TIMELINES, files[TIMELINES])
        Files(folder).check()
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{bundle}: {'/'.join(folder.parts[-3:])} is not as it was packed "
            f"({short(str(error).replace(f'{folder}/', ''), quote=False)}); ask for it again"
        ) from None


def _load(bundle: Path, unpacked: Path) -> Results:
    """The results of a bundle, whose timelines have to be of their run's schedule.

    No digest covers timelines, and the report replays them with the schedule.
    """
    try:
        results = load(unpacked)
        for run in results.runs:
            timeline = results.timeline(run)
            if timeline is None:
                continue
            schedule = run.spec.make_schedule()
            work = [action for j in range(run.K) for action in schedule.work(j)]
            actions = {(a.kind, a.stage, a.micro_batch) for a in work}
            spans = [(s.kind, s.stage, s.micro_batch) for s in timeline.spans if s.kind in COMPUTE]
            if sorted(spans) != sorted(actions):
                raise ValueError(f"the spans of {run.id} are not those of K={run.K}, M={run.M}")
    except ValueError as error:
        text = str(error).replace(f"{unpacked}/", "").removesuffix(f"; {REMEDY}")
        raise ValueError(f"{bundle}: {text}; ask for it again") from None
    return results


def _without_commands(line: str) -> dict[str, Any]:
    """A line of records.jsonl, without commands for a reader of the page to type."""
    record = from_json(line)
    if record["file"] == "experiment.json":
        record["lines"] = [{**record["lines"][0], "commands": []}]
    return record
