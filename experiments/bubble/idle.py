"""The bubble of arXiv:1811.06965v5, section 2.3: theory in both forms beside what a clock, virtual or real, shows.

Idle/total is 1 minus the time of F, R, B and update over K x step, whoever recorded it. The
emulated and measured steps so hold set-up and the runtime's own time as idle; the simulated ones of
waiting layers have neither.
"""

from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import Any

from repro.harness.results import Results, Run
from repro.paper import Utilisation, theory, utilisation
from repro.report.compare import beside_paper, rows_of, where
from repro.report.table import EMPTY, NOT_RUN, Table, framed, number, percent
from repro.report.texts import IDLE

NAME = "bubble"
# of K x step: our reading of "negligible", which the paper does not put in numbers
NEGLIGIBLE = 0.05
_OWN_FORMULA = 1.0  # points that a printed point may be off its own formula, for rounding
TIMED = ("simulated", "emulated")
Pair = tuple[dict[Any, Any], dict[Any, Any]]
_INCLUDED = (
    f"{IDLE} Simulated: a virtual clock, equal stages, F:R:B = 1:1:2, free messages; it has "
    "neither set-up nor update. Emulated: real processes that wait as long, messages of 64 KiB; "
    "set-up and the runtime's own time count as idle, a wait that lasts too long as work. "
    "Measured: the Transformer, whose stages are not quite equal."
)


@dataclass(frozen=True)
class Points:
    """The runs of one place, by what is asked of them; keys are (K, M), of `slow` (K, M, stage)."""

    place: str
    equal: dict[str, dict[tuple[int, int], Run]]  # of each fidelity
    late: dict[tuple[int, int], Run]
    slow: dict[str, dict[tuple[int, int, int], Run]]

    def idle(self, fidelity: str, K: int, M: int) -> float:
        """Idle/total of equal stages, measured of the Transformer; NaN where it was not recorded."""
        row = self.equal.get(fidelity, {}).get((K, M))
        return row.bubble_idle_over_total if row is not None and row.status == "done" else nan

    def word(self, fidelity: str, K: int, M: int) -> str:
        """The same as shown: a share, or why there is none."""
        row = self.equal.get(fidelity, {}).get((K, M))
        if row is None:
            return EMPTY
        if row.status != "done":
            return NOT_RUN if row.status == "planned" else row.status
        return percent(row.bubble_idle_over_total)


def points(results: Results) -> list[Points]:
    """Every place's runs."""
    found: dict[tuple[str, ...], Points] = {}
    for row in rows_of(results, experiment=NAME):
        one = found.setdefault(row.place, Points(where(results, row), {}, {}, {}))
        spec = row.spec
        forward = spec.model_args.get("forward_s")
        at = (spec.K, spec.M)
        if spec.schedule != "gpipe":
            one.late[at] = row
        elif isinstance(forward, list):
            one.slow.setdefault(row.fidelity, {})[(*at, forward.index(max(forward)))] = row
        else:
            one.equal.setdefault(row.fidelity, {})[at] = row
    return list(found.values())


def tables(results: Results) -> list[Table]:
    """Those of idle time; none if the experiment was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    chapter = [utilised(results)] if beside_paper(results, NAME) else []
    return [at_4k(results), main(results), *chapter]


def main(results: Results) -> Table:
    """One line a (K, M)."""
    found = points(results)
    pairs = [_line(results, one, K, M, len(found) > 1) for one in found for K, M in _places(one)]
    note = (
        f"{_INCLUDED} Plain: (K-1)/(M+K-1), the paper's; early: 3(K-1)/(4M+3(K-1)), the ideal's, "
        "whose recompute does not wait for the gradient. M=1 is naive model parallelism, (K-1)/K "
        "in the plain form. Above early: emulated minus early, in points. Step over early: the "
        "emulated step over (M+K-1)F + M(R+B) + (K-1)B. Both are what the runtime, this machine "
        "and its jitter add."
    )
    title = "Idle/total, the paper's bubble, for K and M (section 2.3)"
    return framed("bubble", title, note, pairs, NAME)


def _places(one: Points) -> list[tuple[int, int]]:
    return sorted({at for rows in one.equal.values() for at in rows})


def _line(results: Results, one: Points, K: int, M: int, several: bool) -> Pair:
    mark = " (M=4K)" if M == 4 * K else " (naive)" if M == 1 else ""
    about = {("", "where"): one.place} if several else {}
    values = {
        ("theory", "plain"): theory.bubble_over_total(K, M),
        ("theory", "early"): theory.bubble(K, M, "early"),
        **{(fidelity, "idle/total"): one.idle(fidelity, K, M) for fidelity in (*TIMED, "measured")},
    }
    shown = {key: percent(value) for key, value in values.items()}
    shown |= {
        (fidelity, "idle/total"): one.word(fidelity, K, M) for fidelity in (*TIMED, "measured")
    }
    above = 100 * (one.idle("emulated", K, M) - values["theory", "early"])
    head = about | {("", "K"): K}
    longer = _longer(results, one.equal.get("emulated", {}).get((K, M)))
    extra = {("emulated", "above early"): above, ("emulated", "step over early"): longer}
    shown |= head | {("", "M"): f"{M}{mark}"}
    shown |= {
        ("emulated", "above early"): _signed(above),
        ("emulated", "step over early"): number(longer),
    }
    order = [*head, ("", "M"), *values]
    place = order.index(("emulated", "idle/total")) + 1
    order[place:place] = extra
    data = head | {("", "M"): M} | values | extra
    return {key: shown[key] for key in order}, {key: data[key] for key in order}


def _longer(results: Results, row: Run | None) -> float:
    """A step of equal waits over the early form's."""
    if row is None or row.status != "done":
        return nan
    args = row.spec.model_args
    F, B = float(args["forward_s"]), float(args["backward_s"])
    return row.step_s / theory.step_time(row.K, row.M, "early", F, F, B)


def _signed(value: float) -> str:
    return EMPTY if isnan(value) else f"{value:+.1f}"


def at_4k(results: Results) -> Table:
    """The paper's sentence, one line a K: negligible at M = 4K?"""
    found = points(results)
    several = len(found) > 1
    quoting = beside_paper(results, NAME)
    pairs = [
        _at_4k(one, K, several, quoting)
        for one in found
        for K in sorted({K for K, M in _places(one) if M == 4 * K})
    ]
    claim = (
        " The paper finds the bubble almost negligible at M >= 4K and gives no number; here "
        f"negligible is at most {NEGLIGIBLE:.0%} of K x step."
    )
    verdict = " The verdict is on the early form, which is exact for equal stages."
    note = (
        f"{_INCLUDED}{claim if quoting else ''} Late: the same schedule when recompute waits for "
        f"the gradient, which is what the plain form counts.{verdict if quoting else ''}"
    )
    title = (
        "Is the bubble negligible at M = 4K? (section 2.3)" if quoting else "The bubble at M = 4K"
    )
    return framed("bubble_at_4k", title, note, pairs, NAME)


def enough(K: int, share: float = NEGLIGIBLE) -> int:
    """The least M at which the early form 3(K-1)/(4M+3(K-1)) is at most `share`."""
    return ceil(3 * (K - 1) * (1 - share) / (4 * share) - 1e-9)


def _at_4k(one: Points, K: int, several: bool, quoting: bool) -> Pair:
    M = 4 * K
    late = one.late.get((K, M))
    head = ({("", "where"): one.place} if several else {}) | {("", "K"): K, ("", "M"): M}
    early = theory.bubble(K, M, "early")
    values = {
        ("theory", "plain"): theory.bubble_over_total(K, M),
        ("theory", "early"): early,
        ("simulated", "early"): one.idle("simulated", K, M),
        ("simulated", "late"): late.bubble_idle_over_total
        if late and late.status == "done"
        else nan,
        ("emulated", "early"): one.idle("emulated", K, M),
        ("measured", "early"): one.idle("measured", K, M),
    }
    shown = {key: percent(value) for key, value in values.items()}
    shown |= {(fidelity, "early"): one.word(fidelity, K, M) for fidelity in (*TIMED, "measured")}
    if not quoting:
        return head | shown, head | values
    word = "yes" if early <= NEGLIGIBLE else "no"
    told = (
        f"{word}: {percent(early)}; {NEGLIGIBLE:.0%} only from M={enough(K)} on, "
        f"{enough(K) / K:.1f} K"
    )
    return head | shown | {("", "negligible?"): told}, head | values | {("", "negligible?"): word}


def utilised(results: Results) -> Table:
    """A book chapter's points for K=4 and 8 beside the formula that they are said to be of, and ours."""
    found = points(results)
    pairs = [_utilised(one, point, len(found) > 1) for one in found for point in utilisation()]
    note = (
        "Utilisation: 1 minus idle/total. Quoted: not the paper's, but printed in a book chapter "
        f"as M/(M+K-1), the plain form. {odd()} {_INCLUDED}"
    )
    title = (
        "Utilisation against M: points that a book chapter prints, the formula they name, and ours"
    )
    return framed("bubble_utilisation", title, note, pairs, NAME, folded=True)


def fits(point: Utilisation) -> bool:
    """Whether a printed point is what its formula M/(M+K-1) gives, but for rounding."""
    return (
        abs(point.percent - 100 * (1 - theory.bubble_over_total(point.K, point.M))) <= _OWN_FORMULA
    )


def odd() -> str:
    """The printed points that are not of their own formula."""
    wrong = [
        f"{point.percent:g} % at K={point.K}, M={point.M}, where it gives "
        f"{100 * (1 - theory.bubble_over_total(point.K, point.M)):.0f} %"
        for point in utilisation()
        if not fits(point)
    ]
    return f"Not by their own formula: {'; '.join(wrong)}." if wrong else ""


def _utilised(one: Points, point: Utilisation, several: bool) -> Pair:
    K, M = point.K, point.M
    head = ({("", "where"): one.place} if several else {}) | {("", "K"): K, ("", "M"): M}
    values = {
        ("quoted", "chapter"): point.percent / 100,
        ("theory", "plain"): 1 - theory.bubble_over_total(K, M),
        ("theory", "early"): 1 - theory.bubble(K, M, "early"),
        **{(fidelity, "1 - idle/total"): 1 - one.idle(fidelity, K, M) for fidelity in TIMED},
    }
    shown = {key: percent(value) for key, value in values.items()} | {
        ("quoted", "chapter"): f"{point.percent:g}%"
    }
    off = point.percent - 100 * values["theory", "plain"]
    told = "its formula" if fits(point) else f"not its formula, {number(off, 1)} points"
    return head | shown | {("quoted", "is"): told}, head | values | {
        ("quoted", "off its formula"): off
    }
