"""A claim of the paper, and the one rule that gives every verdict. No verdict is written by hand.

An experiment's report yields its claims where it makes the numbers. A claim has what the paper
prints and *a list* of ours: one number for each setting that the paper leaves open.

| ours is                                       | with every setting | with none      |
|-----------------------------------------------|--------------------|----------------|
| measured or counted at the paper's size       | reproduced         | not reproduced |
| simulated or emulated at that size            | consistent         | not reproduced |
| of smaller models, a 95 % interval over seeds | trend              | not reproduced |

With some settings, or if an interval crosses what agrees, it is *cannot tell*; also if a setting
has no result (a number that is NaN), or was inferred from the printed number itself. Without any
number, or if a control failed or a training did not converge, it is *not tested here*. A modelled
number has a range, and agrees with a printed number that lies in it. How wide the range is stands
beside, so that *consistent* can be weighed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Literal, get_args

Word = Literal[
    "reproduced", "consistent", "trend", "cannot tell", "not reproduced", "not tested here"
]
WORDS: tuple[Word, ...] = get_args(Word)  # the best first
Fidelity = Literal["measured", "counted", "arithmetic", "emulated", "simulated"]
MODELLED: tuple[Fidelity, ...] = ("emulated", "simulated")
Estimate = tuple[float, float, float]  # a number, and the ends of its interval or range


def number(value: float) -> Estimate:
    """A number without an interval."""
    return value, nan, nan


@dataclass(frozen=True)
class Claim:
    """One cell or sentence of the paper, and our value.

    What agrees is `paper` with up to `off` to either side; of a claim without a printed number,
    all above `least` up to `most`. The paper's words may be read as several limits `most`, and
    then each is a setting that the paper leaves open.
    """

    exhibit: str  # with whose claims it is counted, `Table 2, Transformer`
    what: str  # what is claimed, `speed, K=8, M=32 over K=2, M=1`
    ours: Sequence[Estimate]  # one for each setting that the paper leaves open; the first is shown
    fidelity: Fidelity
    paper: float = nan  # the printed number, in `unit`
    off: float = 0.0
    least: float = -inf
    most: Sequence[float] = (inf,)
    says: str = ""  # the paper, where it prints no such number
    unit: str = ""
    smaller: bool = False  # whether ours are smaller models, whose intervals are over seeds
    fitted: bool = False  # whether a setting of ours was inferred from the printed number
    doubt: str = ""  # why ours says nothing: a failed control, a training that did not converge
    beside: str = ""  # what changes the meaning of our number
    why: str = ""  # behind the verdict: what was varied, fitted, or is misprinted
    others: str = ""  # what `ours` has behind the first, `other cuts`
    point: tuple[int, int] = (0, 0)  # K and M, of a claim about one point

    def __post_init__(self) -> None:
        limits = -inf < self.least or max(self.most) < inf
        assert limits == isnan(self.paper), f"{self.what}: a printed number, or a limit"

    @property
    def verdict(self) -> Word:
        known = [each for each in self.ours if not isnan(each[0])]
        without_seeds = any(isnan(low) or isnan(high) for _, low, high in known)
        if not known or self.doubt or (self.smaller and without_seeds):
            return "not tested here"
        found = {self._agrees(*each, most) for each in self.ours for most in self.most}
        if found == {False}:
            return "not reproduced"
        if found != {True} or self.fitted:
            return "cannot tell"
        if self.smaller:
            return "trend"
        return "consistent" if self.fidelity in MODELLED else "reproduced"

    def _agrees(self, value: float, low: float, high: float, most: float) -> bool | None:
        """Whether a number of ours agrees; None if it is NaN, or its interval crosses what does."""
        if isnan(value):
            return None
        if isnan(low) or isnan(high):
            low = high = value
        if isnan(self.paper):
            inside, outside = self.least < low and high <= most, high <= self.least or low > most
        else:
            least, most = self.paper - self.off, self.paper + self.off
            inside, outside = least <= low and high <= most, high < least or low > most
            if self.fidelity in MODELLED:
                inside = not outside  # the printed number lies in our range
        return True if inside else False if outside else None
