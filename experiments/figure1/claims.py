"""Ours for the claims that larger models are better."""

from experiments.figure1.report import PANELS, fits
from experiments.figure1.runs import IMAGES
from repro.claims.claim import Evidence
from repro.harness.results import Results


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> the fitted exponent of each half of the figure."""
    ours = {}
    for fit in fits(results):
        name = "figure1a/exponent" if fit.panel is PANELS[IMAGES] else "figure1b/exponent"
        runs = tuple(run.id for run in fit.runs)
        ours[name] = Evidence(fit.ours.b, "measured", runs, fit.ours.low, fit.ours.high)
    return ours
