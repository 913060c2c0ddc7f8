"""Ours for the claims that larger models are better."""

from experiments.figure1.report import fits
from repro.claims.claim import Evidence
from repro.harness.results import Results


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> the fitted exponent of each half of the figure."""
    return {fit.panel.claim: fit.evidence for fit in fits(results)}
