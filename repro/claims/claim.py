"""A claim, what is held against it, and the one rule that gives every verdict.

No verdict is written by hand. A claim says which values count as the printed one, and this is fixed
before ours is held against it. `Evidence` says how our value came to be. `judge` gives the verdict:

- *reproduced*: measured or counted at the paper's own size, K and M, and within the tolerance.
- *consistent*: simulated or emulated at the paper's own size, and within the tolerance.
- *trend*: smaller models go the way that the claim says, and their trainings came to rest.
- *fitted*: within the tolerance, but a setting was inferred from the claim's own number.
- *implied*: within the tolerance, but arithmetic on another claim, with which it is counted.
- *arithmetic*: within the tolerance, and so is a formula, whatever a device does.
- *not identified*: within the tolerance under some settings or readings that the paper does not
  print, and outside under others.
- *cannot tell*: our range or interval crosses an end of the tolerance.
- *misprinted*: the audit shows that another number was meant.
- *not reproduced*: outside the tolerance.
- *not tested here*: no result, or one that says nothing about the claim.

One number is held against a claim: `mean_of` those that are known best, in the order of
`Fidelity`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf, isnan, nan
from statistics import fmean
from typing import Literal, get_args

Word = Literal[
    "reproduced",
    "consistent",
    "trend",
    "fitted",
    "implied",
    "arithmetic",
    "not identified",
    "cannot tell",
    "misprinted",
    "not reproduced",
    "not tested here",
]
WORDS: tuple[Word, ...] = get_args(Word)
Fidelity = Literal["measured", "counted", "emulated", "simulated", "arithmetic"]  # best first
Ends = tuple[float, float]  # the least and the greatest value of ours that agrees


@dataclass(frozen=True)
class Claim:
    """One cell or sentence that can be held against a number of ours."""

    id: str  # unique name, `table2/transformer/K=8/M=32`
    exhibit: str  # where it stands, `Table 2`
    version: str  # of the paper that has it, or "sources" for texts about the paper
    text: str  # what is claimed, in one line
    value: float  # as printed; NaN for a direction without a number
    unit: str  # of the value; empty for ratios and counts
    readings: Mapping[str, Ends]  # how it may be read -> what agrees; one is called ""
    tolerance: str  # what these ends are, and why
    experiment: str = ""  # whose runs are held against it; empty if none can be
    needs: str = ""  # what a test would need where the experiment has no result for it
    any_size: bool = False  # whether it is stated for every model, so that ours may be smaller
    direction: bool = False  # whether it is about a direction, which smaller models can show
    training: bool = False  # whether it is about trained models, which have to have converged
    no_effect: float = nan  # the value of a model in which nothing happens; NaN where there is none
    formulas: Mapping[str, float] = field(default_factory=dict)  # closed forms of it, by name
    fitted: str = ""  # which setting of ours was inferred from this very number; empty if none was
    implied: str = ""  # of which other claims it is arithmetic, and how; empty if of none
    meant: float = nan  # what the audit shows should be printed; NaN where nothing is wrong

    @property
    def ends(self) -> Ends:
        return next(iter(self.readings.values()))

    def holds(self, ends: Ends, value: float, low: float = nan, high: float = nan) -> bool | None:
        """Whether a value, with all of its interval, is within these ends; None if it crosses one.

        A direction's end is no effect at all, so it is outside.
        """
        least, most = ends
        low, high = (value, value) if isnan(low + high) else (low, high)
        if self.direction:
            inside, outside = least < low and high < most, high <= least or low >= most
        else:
            inside, outside = least <= low and high <= most, high < least or low > most
        return True if inside else False if outside else None

    def agrees(self, value: float) -> bool:
        return any(self.holds(ends, value) for ends in self.readings.values())

    def admits(self, evidence: "Evidence") -> bool:
        """Whether a number of ours says anything about the claim."""
        of_size = self.any_size or self.direction or evidence.papers_size
        at_rest = evidence.converged or not self.training
        return of_size and at_rest and not isnan(evidence.value)


@dataclass(frozen=True)
class Evidence:
    """Our number for a claim, and how it came to be."""

    value: float  # in the claim's unit; NaN if the runs give none
    fidelity: Fidelity
    runs: tuple[str, ...]  # their ids
    low: float = nan  # lower end of the interval, of trainings over seeds; NaN without one
    high: float = nan  # upper end of the interval
    papers_size: bool = False  # whether model, K and M are the paper's
    converged: bool = False  # whether its trainings came to rest, and its controls hold
    setting: str = ""  # what the paper does not print, where it was varied
    # Each other setting -> its value, then the ends of its interval if there is one.
    others: Mapping[str, Sequence[float]] = field(default_factory=dict)
    why: str = ""  # why there is no value, or why it decides nothing
    is_range: bool = False  # whether `low` and `high` are where a simulated number is expected


@dataclass(frozen=True)
class Verdict:
    """One of `WORDS`, and what it rests on."""

    word: Word
    why: str = ""  # in a few words; empty where the word says it all
    # Whether it is about models that are smaller than the paper's. Such a "not reproduced" does not
    # say that the effect is absent at the paper's size.
    smaller: bool = False

    @property
    def label(self) -> str:
        """The word, and at which size if that is not the paper's."""
        return f"{self.word} (smaller models)" if self.smaller else self.word

    def __str__(self) -> str:
        return f"{self.label}: {self.why}" if self.why else self.label


def mean_of(every: Sequence[Evidence]) -> Evidence:
    """Numbers of one fidelity as one: their mean, and an interval around all of theirs."""
    if len(every) == 1:
        return every[0]
    lows, highs = ([getattr(each, end) for each in every] for end in ("low", "high"))
    known = not isnan(sum(lows + highs))
    return replace(
        every[0],
        value=fmean(each.value for each in every),
        low=min(lows) if known else nan,
        high=max(highs) if known else nan,
        runs=tuple(dict.fromkeys(run for each in every for run in each.runs)),
        converged=all(each.converged for each in every),
    )


def judge(claim: Claim, evidence: Evidence | None) -> Verdict:
    """The verdict on a claim; the module says what each word means."""
    untested = _untested(claim, evidence)
    if untested or evidence is None:
        return Verdict("not tested here", untested)
    measured = evidence.fidelity in ("measured", "counted")
    smaller = not (claim.any_size or evidence.papers_size)
    values = {evidence.setting: (evidence.value, evidence.low, evidence.high), **evidence.others}
    held = {
        (setting, reading): claim.holds(ends, *numbers)
        for setting, numbers in values.items()
        for reading, ends in claim.readings.items()
        if not isnan(numbers[0])
    }
    outcomes = {*held.values()}
    if not isnan(claim.meant) and True not in outcomes:
        # As near to the number that was meant as ours may be to the printed one.
        nearest = max(abs(end - claim.value) for end in claim.ends)
        agrees = "agrees" if abs(evidence.value - claim.meant) <= nearest else "does not agree"
        ours = f"by the audit {claim.meant:g}, with which ours, {evidence.value:.3g}, {agrees}"
        return Verdict("misprinted", ours)
    if outcomes == {False}:
        # That two are alike has no reverse.
        reverse = "reversed" * (claim.direction and measured and isinf(sum(claim.ends)))
        return Verdict("not reproduced", reverse or claim.implied or _formulas(claim), smaller)
    if {True, False} <= outcomes:
        return _depends(claim, evidence.setting, held)
    if None in outcomes:
        which = {setting for (setting, _), holds in held.items() if holds is None}
        named = f" with {_some(sorted(which))}" if len(values) > 1 else ""
        what = "range" if evidence.is_range else "interval"
        return Verdict("cannot tell", f"the {what} crosses an end{named}")
    if claim.implied or claim.fitted:
        return Verdict("implied" if claim.implied else "fitted", claim.implied or claim.fitted)
    if claim.agrees(claim.no_effect):
        return Verdict("not tested here", f"{claim.no_effect:g}, no effect, would agree too")
    if not measured and _formulas(claim):
        return Verdict("arithmetic", _formulas(claim))
    if smaller:
        return Verdict("trend", smaller=True)
    return Verdict("reproduced" if measured else "consistent")


def _untested(claim: Claim, evidence: Evidence | None) -> str:
    """Why our number says nothing about the claim; empty if it does."""
    if evidence is None:
        return claim.needs or f"no result: ./run_all.sh {claim.experiment}"
    if isnan(evidence.value):
        return evidence.why or "the runs give no number"
    if claim.direction and evidence.fidelity == "measured" and isnan(evidence.low + evidence.high):
        return "too few rounds or seeds for an interval"
    if claim.training and not evidence.converged:
        return evidence.why or "no check that the trainings have converged"
    return "" if claim.admits(evidence) else "our models are smaller"


def _depends(claim: Claim, chosen: str, held: Mapping[tuple[str, str], bool | None]) -> Verdict:
    """The verdict where the number comes out under some unprinted settings or readings only.

    If that is one setting alone, and not one that was chosen beforehand, it can only be chosen
    because it gives the number.
    """
    agreeing = [name for name, holds in held.items() if holds]
    settings = {setting for setting, _ in agreeing}
    names = _some([", ".join(filter(None, name)) for name in agreeing])
    alone = len(settings) == 1 < len({setting for setting, _ in held}) and None not in held.values()
    if alone and (claim.fitted or chosen not in settings):
        return Verdict("fitted", claim.fitted or f"comes out only with {names}")
    return Verdict("not identified", f"comes out with {names}")


def _some(names: Sequence[str]) -> str:
    """At most two names, and how many more there are."""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return "; ".join(names[:2]) + more


def _formulas(claim: Claim) -> str:
    """`the textbook's formula agrees with the claim`; empty if none does."""
    names = [name for name, value in claim.formulas.items() if claim.agrees(value)]
    agree = "agrees" if len(names) == 1 else "agree"
    return f"{' and '.join(names)} {agree} with the claim" if names else ""
