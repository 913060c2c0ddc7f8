"""A claim, what is held against it, and the one rule that gives every verdict.

No verdict is written by hand. A claim says which values count as the printed one, and this is fixed
before ours is held against it. `Evidence` says how our value came to be. `judge` gives the verdict:

- *reproduced*: measured or counted at the paper's own size, K and M, and within the tolerance.
- *consistent*: simulated or emulated at the paper's own size, and within the tolerance.
- *trend*: smaller models go the way that the claim says.
- *fitted*: within the tolerance, but a setting was inferred from the claim's own number.
- *not identified*: within the tolerance under some settings that the paper does not print, and
  outside under others.
- *not reproduced*: outside the tolerance.
- *not tested here*: no result, or one that could not tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Literal, get_args

Word = Literal[
    "reproduced",
    "consistent",
    "trend",
    "fitted",
    "not identified",
    "not reproduced",
    "not tested here",
]
WORDS: tuple[Word, ...] = get_args(Word)
Fidelity = Literal["measured", "counted", "emulated", "simulated"]


@dataclass(frozen=True)
class Claim:
    """One cell or sentence that can be held against a number of ours."""

    id: str  # unique name, `table2/transformer/K=8/M=32`
    exhibit: str  # where it stands, `Table 2`
    version: str  # of the paper that has it, or "sources" for texts about the paper
    text: str  # what is claimed, in one line
    value: float  # as printed; NaN for a direction without a number
    unit: str  # of the value; empty for ratios and counts
    low: float  # the least value of ours that agrees
    high: float  # the greatest value of ours that agrees
    tolerance: str  # what `low` and `high` are, and why
    experiment: str = ""  # whose runs are held against it; empty if none can be
    needs: str = ""  # what a test would need where the experiment has no result for it
    any_size: bool = False  # whether it is stated for every model, so that ours may be smaller
    direction: bool = False  # whether it is about a direction, which smaller models can show
    no_effect: float = nan  # the value of a model in which nothing happens; NaN where there is none
    formulas: Mapping[str, float] = field(default_factory=dict)  # closed forms of it, by name

    def agrees(self, value: float) -> bool:
        """Whether a value is within the tolerance; NaN never is.

        A direction's end is no effect at all, so it is outside.
        """
        if self.direction:
            return self.low < value < self.high
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Evidence:
    """Our number for a claim, and how it came to be."""

    value: float  # in the claim's unit; NaN if the runs give none
    fidelity: Fidelity
    runs: tuple[str, ...]  # their ids
    low: float = nan  # lower end of the interval; NaN without one
    high: float = nan  # upper end of the interval
    papers_size: bool = False  # whether model, K and M are the paper's
    setting: str = ""  # what the paper does not print, where it was varied
    others: Mapping[str, float] = field(default_factory=dict)  # the value under each other one
    fitted: str = ""  # which setting was inferred from the claim's own number; empty if none was
    why: str = ""  # why there is no value


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


def judge(claim: Claim, evidence: Evidence | None) -> Verdict:
    """The verdict on a claim; the module says what each word means."""
    if evidence is None:
        command = f"no result: ./run_all.sh {claim.experiment}"
        return Verdict("not tested here", claim.needs or command)
    if isnan(evidence.value):
        return Verdict("not tested here", evidence.why or "the runs give no number")
    at_size = claim.any_size or evidence.papers_size
    if not at_size and not claim.direction:
        return Verdict("not tested here", "our models are smaller")
    if claim.direction and evidence.fidelity == "measured":
        return _direction(claim, evidence, at_size=at_size)

    values = {evidence.setting: evidence.value}
    values |= {name: value for name, value in evidence.others.items() if not isnan(value)}
    agreeing = [name for name, value in values.items() if claim.agrees(value)]
    if not agreeing:
        return Verdict("not reproduced", _formulas(claim, also=False))
    if len(agreeing) < len(values):
        return _depends(evidence, agreeing)
    if evidence.fitted:
        return Verdict("fitted", evidence.fitted)
    if claim.agrees(claim.no_effect):
        return Verdict("not tested here", f"{claim.no_effect:g}, no effect, would agree too")
    if not at_size:
        return Verdict("trend", smaller=True)
    if evidence.fidelity in ("measured", "counted"):
        return Verdict("reproduced")
    return Verdict("consistent", _formulas(claim, also=True))


def _depends(evidence: Evidence, agreeing: list[str]) -> Verdict:
    """The verdict where the number comes out under some unprinted settings only.

    If that is one setting alone, and not the one that was chosen beforehand, it can only be chosen
    because it gives the number.
    """
    if len(agreeing) == 1 and evidence.setting not in agreeing:
        return Verdict("fitted", f"comes out only with {agreeing[0]}")
    return Verdict("not identified", f"comes out with {'; '.join(agreeing)}")


def _direction(claim: Claim, evidence: Evidence, *, at_size: bool) -> Verdict:
    """The verdict on a direction that was measured: the whole interval has to agree."""
    if isnan(evidence.low) or isnan(evidence.high):
        return Verdict("not tested here", "too few rounds or seeds for an interval")
    if claim.agrees(evidence.low) and claim.agrees(evidence.high):
        return Verdict("reproduced") if at_size else Verdict("trend", smaller=True)
    opposite = evidence.high < claim.low or evidence.low > claim.high
    why = "reversed" if opposite else "no direction shown"
    return Verdict("not reproduced", why, smaller=not at_size)


def _formulas(claim: Claim, *, also: bool) -> str:
    """`the textbook agrees too`: the formulas that agree with the claim; empty if none does."""
    names = [name for name, value in claim.formulas.items() if claim.agrees(value)]
    if not names:
        return ""
    return f"{' and '.join(names)} {'agrees' if len(names) == 1 else 'agree'}{' too' * also}"
