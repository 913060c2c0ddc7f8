"""Ours for the claim that training does not depend on K."""

from experiments.consistency.report import comparisons, differing
from experiments.consistency.runs import NAME
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> trainings with another K that differ in any bit of losses, weights, buffers."""
    of_stages = [line for line in comparisons(results) if line.pairs[0].other.K > 1]
    models = dict.fromkeys(line.model for line in of_stages)
    return {
        cell_id(NAME, model): differing([line for line in of_stages if line.model == model])
        for model in models
    }
