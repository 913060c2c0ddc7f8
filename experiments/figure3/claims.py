"""Ours for the three claims about multilingual models."""

from experiments.figure3.languages import trained
from experiments.figure3.report import claims_of
from repro.claims.claim import Evidence
from repro.harness.results import Results


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> the mean difference in BLEU over languages and seeds."""
    claims = [claim for place in trained(results) for claim in claims_of(place)]
    return {claim.id: claim.evidence for claim in claims if claim.id}
