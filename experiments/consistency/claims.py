"""Ours for the claim that training does not depend on K."""

from experiments.consistency.report import comparisons
from experiments.consistency.runs import NAME
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> trainings with another K that differ in any bit of losses, weights, buffers."""
    differing: dict[str, int] = {}
    runs: dict[str, list[str]] = {}
    for comparison in comparisons(results):
        if comparison.pairs[0].other.K == 1:
            continue
        model = comparison.model
        count = len(comparison.pairs) - comparison.identical
        differing[model] = differing.get(model, 0) + count
        pairs = [run.id for pair in comparison.pairs for run in (pair.base, pair.other)]
        runs.setdefault(model, []).extend(pairs)
    return {
        cell_id(NAME, model): Evidence(count, "measured", tuple(dict.fromkeys(runs[model])))
        for model, count in differing.items()
    }
