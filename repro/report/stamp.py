"""Whether a report is up to date, so that a second start of run_all.sh draws nothing again."""

import os
from hashlib import blake2b
from pathlib import Path

from repro.io.untrusted import SMALL, read_text, refuse_links
from repro.report.declared import HOME

# What the report is made by, and what in a results folder it is not made from.
_CODE = (Path(__file__).resolve().parents[1], HOME)
_KINDS = (".py", ".j2", ".css", ".js", ".json", ".toml", ".mplstyle", ".md")
_NAME = ".report-stamp"
_NO_RESULTS = ("wandb", "logs", "reference", ".lock")


def refuse_linked_files(plots_dir: Path) -> None:
    """Raise a one-line ValueError if a file that a report reads or writes is a link."""
    refuse_links(plots_dir, plots_dir / _NAME, *plots_dir.glob("?*.*"))


def is_current(results_dir: Path, plots_dir: Path) -> bool:
    """Whether report.html in `plots_dir` was made from these results by this code."""
    stamp = plots_dir / _NAME
    try:
        made = read_text(stamp, SMALL, within=plots_dir)
    except ValueError:
        made = ""
    return (plots_dir / "report.html").exists() and made == _digest(results_dir)


def put(results_dir: Path, plots_dir: Path) -> None:
    (plots_dir / _NAME).write_text(_digest(results_dir), encoding="utf-8")


def remove(plots_dir: Path) -> None:
    (plots_dir / _NAME).unlink(missing_ok=True)


def _digest(results_dir: Path) -> str:
    """A digest of name, size and time of every file of the results and of our code."""
    digest = blake2b(os.fsencode(os.path.realpath(results_dir)), digest_size=16)
    recorded = [
        path
        for path in sorted(results_dir.rglob("*"))
        if path.is_file() and not {*path.relative_to(results_dir).parts} & {*_NO_RESULTS}
    ]
    code = [path for home in _CODE for path in sorted(home.rglob("*")) if path.suffix in _KINDS]
    for path in (*recorded, *code):
        stat = path.lstat()
        text = f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}\n"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()
