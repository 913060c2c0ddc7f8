"""`repro report`: tables, figures and the page."""

import dataclasses
from pathlib import Path

import tyro

from repro.cli.choice import REFERENCE_PLOTS, REFERENCE_RESULTS
from repro.cli.options import parse
from repro.harness.pack import pack, unpack
from repro.report import page, stamp


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write tables, figures and report.html from the recorded results."""

    results: Path = Path("results")
    """where measurements were recorded"""
    plots: Path = Path("plots")
    """where tables, figures and the page go"""
    reference: tyro.conf.FlagCreatePairsOff[bool] = False
    """from results/reference into plots/reference, both committed, with the README's animation"""


def main(arguments: list[str]) -> int:
    """Write them, unless they are up to date."""
    options = parse(ReportOptions, arguments, "repro report")
    if options.reference:
        unpack(REFERENCE_RESULTS)
        for about in REFERENCE_RESULTS.rglob("experiment.json"):
            pack(about.parent)
        print(f"wrote {page.animate(REFERENCE_RESULTS, REFERENCE_PLOTS)}")
        print(f"wrote {page.write(REFERENCE_RESULTS, REFERENCE_PLOTS)}")
        return 0
    page.check_folder(options.results)
    if stamp.is_current(options.results, options.plots):
        print(f"{options.plots / 'report.html'} is up to date")
    else:
        print(f"wrote {page.write(options.results, options.plots)}")
        stamp.put(options.results, options.plots)
    return 0
