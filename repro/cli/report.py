"""`repro report`: tables, figures and the page."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from repro.cli.answers import tell
from repro.cli.options import parse
from repro.harness.results import Results, load_beside, load_recorded
from repro.report import page, verdicts

REFERENCE = Path("results/reference"), Path("plots/reference")


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write tables, figures and report.html from the recorded results."""

    results: Path = Path("results")
    """where measurements were recorded"""
    plots: Path = Path("plots")
    """where tables, figures and the page go"""
    reference: tyro.conf.FlagCreatePairsOff[bool] = False
    """from results/reference into plots/reference, both committed"""
    others: Annotated[
        tuple[Path, ...], tyro.conf.arg(name="with", metavar="FOLDER"), tyro.conf.UseAppendAction
    ] = ()
    """also show the results in this folder, which another machine recorded; repeatable"""


def main(arguments: list[str]) -> int:
    options = parse(ReportOptions, arguments, "repro report")
    if options.others and options.reference:
        raise ValueError("--with, --reference: the reference has one machine's; leave one out")
    if options.others:
        results, lines = load_beside(options.results, options.others)
        print(f"wrote {page.write_loaded(results, options.plots)}")
        print("\n".join(lines))
    elif options.reference:
        print(f"wrote {page.write(*REFERENCE)}")
    else:
        results = load_recorded(options.results)
        written = page.write_loaded(results, options.plots)
        show_verdicts(results, options.plots)
        print(f"open {written}")
    return 0


def show_verdicts(results: Results, plots: Path) -> None:
    """One row for each exhibit of the paper; nothing if no result stands beside its numbers."""
    columns = ("exhibit", "claim", "paper", "ours", "fidelity", "verdict")
    exhibits = verdicts.exhibits(verdicts.all_lines(results))
    rows = [dict(zip(columns, exhibit.cells, strict=True)) for exhibit in exhibits]
    if rows:
        tell({"verdicts": rows, "every claim": plots / f"{verdicts.NAME}.md"})
