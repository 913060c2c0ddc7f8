"""Ours for the three claims about multilingual models."""

from experiments.figure3.languages import trained
from repro.claims.claim import Evidence
from repro.harness.results import Results
from repro.harness.statistics import mean_interval


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> the mean difference in BLEU over languages and seeds."""
    ours: dict[str, Evidence] = {}
    for place in trained(results):
        by_seed = [*place.multilingual.values(), *place.bilingual.values()]
        runs = tuple(run.id for runs in by_seed for run in runs.values())
        for name, differences in (
            ("size", place.gain_of_size()),
            ("transfer", place.gain_of_transfer()),
            ("depth", place.gain_of_depth("low")),
        ):
            mean, low, high = mean_interval(differences)
            ours[f"figure3/{name}"] = Evidence(mean, "measured", runs, low, high)
    return ours
