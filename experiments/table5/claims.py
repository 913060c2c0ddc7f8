"""Ours for the claims that a larger batch translates better."""

from experiments.table5.report import METRICS, Gain, lines_of
from repro.claims.claim import Evidence
from repro.harness.results import Results


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> what the largest batch gains over the smallest, positive where it is better."""
    lines = lines_of(results)
    gains = [Gain(lines[-1], name) for name in METRICS] if lines else []
    return {gain.claim: gain.evidence for gain in gains}
