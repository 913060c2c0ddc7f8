"""Bundles: the journals of a machine in one zip file, to send to somebody else, and their reading.

A bundle comes from others. Reading one runs no code, and nothing is written outside the folder that
it is unpacked into. A journal that was edited is refused by its digests, as everywhere.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from repro.gpipe.schedule.actions import COMPUTE
from repro.harness.journal import NAME, REMEDY, TIMELINES, Journal, Place, journals
from repro.harness.results import Results, of_journals
from repro.harness.schema import round_record
from repro.harness.spec import SCALES
from repro.io.files import write
from repro.io.untrusted import LARGE, read_bytes, short

_LARGEST = 16 * LARGE  # bytes of a bundle, and of what it holds
_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}"
_ENTRY = re.compile(
    rf"{_PART}/(?:{'|'.join(SCALES)})/{_PART}/({re.escape(NAME)}|{TIMELINES}/{_PART})"
)
_WHEN = (1980, 1, 1, 0, 0, 0)  # of every entry, so that the same results give the same bytes
# A damaged archive fails in many ways; RuntimeError is of an encrypted one.
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def write_bundle(results: Path, bundle: Path) -> list[Place]:
    """Put every experiment of a results folder that has a recorded round into one file."""
    recorded = [journal for journal in journals(results) if journal.rounds]
    if not recorded:
        raise ValueError(
            f"results = '{results}': nothing is recorded there; measure something first"
        )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for journal in recorded:
            for path in (journal.path, *journal.timeline_files()):
                name = "/".join((*journal.place, path.relative_to(journal.folder).as_posix()))
                entry = zipfile.ZipInfo(name, _WHEN)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    write(bundle, data.getvalue())
    return [journal.place for journal in recorded]


def merge(results: Path, bundles: Sequence[Path], folder: Path) -> tuple[Results, list[str]]:
    """The results of a folder and of bundles, each machine under a name of its own.

    A machine keeps its name. If another source has a machine of the same name, it gets the start
    of the bundle's digest as well, so that no number of one stands with those of the other.

    The bundles are unpacked into `folder`, which is empty and must stay as long as the results are
    used. Returns the results, and a line about each experiment in the bundles.

    Raises:
        ValueError: one line that names the bundle and what is wrong.
    """
    local = journals(results)
    sent: list[Journal] = []
    lines: list[str] = []
    known = {journal.path.read_bytes() for journal in local}
    for number, bundle in enumerate(bundles):
        machines = {journal.place.machine for journal in (*local, *sent)}
        root = folder / str(number)
        try:
            raw = read_bytes(bundle, _LARGEST)
            for path in _unpacked(raw, root):
                place, data = Place(*path.parts[-4:-1]), path.read_bytes()
                shown = f"{bundle}: {place.experiment} of"
                if data in known:
                    lines.append(f"{shown} {place.machine} is among the results already")
                    continue
                known.add(data)
                if place.machine in machines:
                    mark = blake2b(raw, digest_size=3).hexdigest()
                    place = place._replace(machine=f"{place.machine}-{mark}")
                    root.joinpath(*place[:2]).mkdir(parents=True, exist_ok=True)
                    path.parent.rename(root.joinpath(*place))
                lines.append(f"{shown} {place.machine}")
                sent.append(_journal(root.joinpath(*place), root))
        except (ValueError, LookupError, TypeError, *_BROKEN) as error:
            text = str(error).replace(f"{root}/", "").removesuffix(f"; {REMEDY}")
            what = "no bundle that can be read: " if isinstance(error, _BROKEN) else ""
            raise ValueError(
                f"{bundle}: {what}{short(text, 300, quote=False)}; ask for it again"
            ) from None
    # Of several places, the last one describes an experiment: never one that others have sent.
    return of_journals([*sent, *local]), lines


def _unpacked(raw: bytes, root: Path) -> list[Path]:
    """The journals of a bundle, unpacked below a folder with the files beside them."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for name in archive.namelist():
            if not _ENTRY.fullmatch(name):
                raise ValueError(f"holds {short(name)}, which no bundle has")
        if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:  # never unpacks to more
            raise ValueError(f"holds more than {_LARGEST} bytes")
        archive.extractall(root)
    found = sorted(root.glob(f"*/*/*/{NAME}"))
    if not found:
        raise ValueError(f"holds no {NAME}; give a file that `repro results --pack` wrote")
    return found


def _journal(unpacked: Path, root: Path) -> Journal:
    """An unpacked journal, every record and timeline of which was read."""
    journal = Journal(unpacked, root)
    if journal.about is None:
        raise ValueError("it has no plan")
    # The page has commands for its reader to type: none that others have written.
    journal.about = journal.about.model_copy(update={"commands": []})
    for event in journal.rounds:
        for record in event.records.values():
            round_record(record)
    for run in journal.runs:
        _check_timeline(journal, run)
    return journal


def _check_timeline(journal: Journal, run: str) -> None:
    """Raise a ValueError unless the spans are those of the schedule, which the report replays."""
    timeline, spec = journal.timeline(run), journal.spec(run)
    if timeline is None:
        return
    schedule = spec.make_schedule()
    work = [action for j in range(spec.K) for action in schedule.work(j)]
    actions = {(a.kind, a.stage, a.micro_batch) for a in work}
    spans = [(s.kind, s.stage, s.micro_batch) for s in timeline.spans if s.kind in COMPUTE]
    if sorted(spans) != sorted(actions):
        raise ValueError(f"the spans of {run} are not those of K={spec.K}, M={spec.M}")
