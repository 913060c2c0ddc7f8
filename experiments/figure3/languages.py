"""The trainings of Figure 3 by size, language and seed, and the tiers of the languages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from statistics import fmean

from experiments.figure3.runs import BILINGUAL, DEEP, NAME, WIDE
from experiments.learned import metric
from experiments.translation import Size, size_of
from repro.harness.results import Results, Run
from repro.paper import figure
from repro.report.compare import matching, rows_of, where

TIERS = ("high", "middle", "low")


@dataclass(frozen=True)
class Trained:
    """The finished trainings of one place.

    Attributes:
        where: scale and machine.
        multilingual: runs by size, small sizes first, and seed.
        bilingual: runs by language and seed; the language with the most pairs first.
    """

    where: str
    multilingual: dict[Size, dict[int, Run]]
    bilingual: dict[str, dict[int, Run]]

    @cached_property
    def languages(self) -> list[str]:
        """Those with a baseline, the one with the most training pairs first."""
        return list(self.bilingual)

    @cached_property
    def sizes(self) -> list[Size]:
        """As in the plan: from small to large, wide before deep."""
        return list(self.multilingual)

    def tier(self, tier: str) -> list[str]:
        """The languages of a tier: a third of all, by their training pairs."""
        count = len(self.languages)
        return [
            language
            for place, language in enumerate(self.languages)
            if TIERS[place * len(TIERS) // count] == tier
        ]

    def bleu(self, size: Size, language: str) -> dict[int, float]:
        runs = self.multilingual[size]
        return {seed: metric(run, f"bleu {language}") for seed, run in runs.items()}

    def baseline(self, language: str) -> dict[int, float]:
        return {seed: metric(run, "bleu") for seed, run in self.bilingual[language].items()}

    def gains(self, size: Size, languages: Sequence[str]) -> list[float]:
        """BLEU over the baseline, of every language and seed that has both."""
        return [
            gain
            for language in languages
            for gain in paired(self.bleu(size, language), self.baseline(language))
        ]

    def gain_of_size(self) -> list[float]:
        """BLEU of the largest size minus the smallest, of every language and seed."""
        small, large = self.sizes[0], self.sizes[-1]
        return [
            gain
            for language in self.languages
            for gain in paired(self.bleu(large, language), self.bleu(small, language))
        ]

    def gain_of_transfer(self) -> list[float]:
        """With the largest size, the gain in the low tier minus that in the high one.

        Languages are paired by their places in the tier.
        """
        pairs = zip(self.tier("low"), self.tier("high"), strict=False)
        return [
            low - high
            for poor, rich in pairs
            for low, high in zip(
                self.gains(self.sizes[-1], [poor]), self.gains(self.sizes[-1], [rich]), strict=False
            )
        ]

    def gain_of_depth(self, tier: str) -> list[float]:
        """BLEU of the deep size minus the wide one, in a tier."""
        if len(self.sizes) <= DEEP:
            return []
        deep, wide = self.sizes[DEEP], self.sizes[WIDE]
        return [
            gain
            for language in self.tier(tier)
            for gain in paired(self.bleu(deep, language), self.bleu(wide, language))
        ]


def paired(these: dict[int, float], those: dict[int, float]) -> list[float]:
    differences = [value - those[seed] for seed, value in these.items() if seed in those]
    return [difference for difference in differences if not isnan(difference)]


def trained(results: Results) -> list[Trained]:
    done = rows_of(results, experiment=NAME, status="done")
    places = []
    for place in dict.fromkeys(run.place for run in done):
        runs = matching(done, place=place)
        multilingual: dict[Size, dict[int, Run]] = {}
        bilingual: dict[str, dict[int, Run]] = {}
        for run in sorted(runs, key=_pairs, reverse=True):
            training = run.spec.training
            assert training is not None
            if run.group.startswith(BILINGUAL):
                (language,) = training.data
                bilingual.setdefault(language, {})[run.spec.seed] = run
            else:
                multilingual.setdefault(size_of(run.spec), {})[run.spec.seed] = run
        if multilingual and bilingual:
            places.append(Trained(where(results, runs[0]), multilingual, bilingual))
    return places


def _pairs(run: Run) -> int:
    return int(run.labels.get("pairs", 0))


def printed_gain(size: Size, tier: str) -> float:
    """Mean gain of the paper's points of a size in a third of its languages."""
    xs = sorted({point.x for point in figure("figure3")})
    third = TIERS.index(tier) * 2
    name = f"T({size.L},{size.H},{size.A})"
    return fmean(
        point.y
        for point in figure("figure3")
        if point.series == name and point.x in xs[third : third + 2]
    )
