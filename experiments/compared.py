"""How trained arms are compared, and when a comparison counts.

- It is paired by seed, with Student's t interval of 95 %. Quality and loss must agree.
- Five seeds must have all its arms, and its arms must have converged.
- An arm has converged if the lowest validation loss falls by less than `STILL` over the last fifth
  of the updates, in the mean over seeds. Under a falling rate that does not show that longer
  trainings end alike. It has not if most seeds keep the weights of their first validation, since an
  earlier one might have been lower.
- An arm of which any language is above `SATURATED` BLEU has nothing left to gain.
- The controls of the experiment must show what they must.

That each rate of the plan was tried, and that none of the best is the last of its grid, is a test
on the recorded trainings. `docs/notes/trainings.md` names the rules that are younger than some of
the results.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf, isnan, nan
from statistics import fmean
from typing import Any, Literal, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from repro.experiments.learned import BRIEF, HALF, ORDER, SEEDS
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.spec import SCALES, Scale
from repro.harness.statistics import mean_interval
from repro.report.claim import Claim, Estimate
from repro.report.style import FIDELITIES, SOFT, grid, plain_log_ticks

STILL = 0.02
ONE_IMAGE = 0.003  # what it adds to a validation error, of 357 digits or 400 symbols, rounded up
SATURATED = 95.0
# Lines of a panel, whose colour is that of their fidelity.
LINES = ("-", "--", ":")


@lru_cache(maxsize=8)
def trained(results: Results, experiment: str, *scales: Scale) -> Frame:
    """A line of `runs_frame` for each arm and test seed, at the place with most seeds.

    Accuracies are in percent, and `doubt` is that of the arm. Without a scale, all count whose
    trainings may converge.
    """
    scales = scales or tuple(scale for scale in SCALES if scale not in BRIEF)
    frame = runs_frame(results, experiment, task="learn", scale=scales, done=True)
    trainings = [spec.training for spec in frame["spec"]]
    frame = frame.assign(
        arm=[training.arm for training in trainings],
        is_test=[training.arm != "" and not training.tuning for training in trainings],
    )
    frame = select(frame, is_test=True)
    frame[[*frame.filter(like="accuracy")]] *= 100
    seeds = frame.groupby("where", sort=False)["seed"].nunique()
    if len(frame):
        frame = select(frame, where=seeds[::-1].idxmax())
        doubts = {arm: doubt_of(arm, of_arm) for arm, of_arm in frame.groupby("arm")}
        frame = frame.assign(doubt=frame["arm"].map(doubts))
    return frame


def mean(runs: Frame, arm: str, metric: str) -> Estimate:
    """The mean of a metric over the seeds of an arm, with its interval."""
    values = select(runs, arm=arm)[f"metrics.{metric}"].dropna() if len(runs) else []
    return mean_interval([*values])


class Gain(NamedTuple):
    """How much better some arms are than others, by quality and by loss."""

    quality: Estimate  # in BLEU, points of accuracy, or an exponent
    loss: Estimate  # above 0: a lower one
    seeds: int
    doubt: str  # why it decides nothing; empty if it may


def compared(
    runs: Frame, metric: str, arms: Sequence[str], difference: Callable[[Frame], float]
) -> Gain:
    """The gain as a function of `qualities` of one seed, of which larger ones are better."""
    quality, loss = (
        [float(difference(of_seed)) for of_seed in qualities(runs, name, arms)]
        for name in (metric, "loss")
    )
    needed = len(SEEDS)
    doubt = f"{len(quality)} of {needed} seeds" * (0 < len(quality) < needed)
    if quality and not doubt:
        doubts = runs.drop_duplicates("arm").set_index("arm")["doubt"]
        doubt = next(filter(None, doubts[[*arms]]), "")
    return Gain(mean_interval(quality), mean_interval(loss), len(quality), doubt)


def gain(runs: Frame, metric: str, better: Sequence[str], worse: Sequence[str]) -> Gain:
    """The mean of some arms, and of their languages, minus that of as many others."""

    def difference(of_seed: Frame) -> float:
        return of_seed.loc[[*better]].to_numpy().mean() - of_seed.loc[[*worse]].to_numpy().mean()

    return compared(runs, metric, [*better, *worse], difference)


def qualities(runs: Frame, metric: str, arms: Iterable[str]) -> Iterator[Frame]:
    """Of each seed that has all arms: a line for each arm, a column for each language, or one."""
    columns = [name for name in runs if str(name).startswith(f"metrics.{metric} ")]
    columns = columns if len(columns) > 1 else [f"metrics.{metric}"]  # that of one language
    if runs.empty:
        return
    found = select(runs[["seed", "arm", *columns]], arm=[*arms]).set_index(["seed", "arm"])
    found.columns = [name.removeprefix(f"metrics.{metric}").strip() for name in columns]
    for _, of_seed in (-found if metric == "loss" else found).groupby(level="seed"):
        if len(of_seed) == len({*arms}):
            yield of_seed.droplevel("seed")


def doubt_of(arm: str, runs: Frame) -> str:
    """Why the trainings of an arm decide nothing; empty if they may."""
    losses = [losses_of(record) for record in runs["record"]]
    by_error = runs["spec"].iloc[0].training.by_error
    falls = fmean(fell(each, ONE_IMAGE / STILL * by_error) for each in losses)
    first = fmean(bool(each) and each[0] < min(each[1:], default=inf) for each in losses)
    if not falls < STILL or first > 0.5:
        return f"not converged: {arm}"
    languages = runs[[name for name in runs if str(name).startswith("metrics.bleu")]]
    return f"saturated: {arm}" * bool((languages.mean() > SATURATED).any())


def losses_of(record: LearnRound) -> list[float]:
    return [inf if loss is None else loss for loss in record.validation.values()]


def fell(losses: Sequence[float], least: float = 0.0) -> float:
    """The share by which the lowest loss fell over the last fifth; NaN of fewer than five.

    It is a share of `least` where the loss is smaller than that.
    """
    if len(losses) < 5:
        return nan
    before = min(losses[: len(losses) * 4 // 5])
    return (before - min(losses)) / max(before, least) if before else 0.0


def sign(estimate: Estimate) -> int | None:
    """1 or -1 where the interval lies on one side of 0, else 0; None without an interval."""
    _, low, high = estimate
    return None if isnan(low) else (low > 0) - (high < 0)


def controls(runs: Frame, usual: str) -> list[tuple[str, Gain, "Must"]]:
    """Those of translation models: the order of the data changes nothing, more updates help."""
    return [
        (ORDER, gain(runs, "bleu", [ORDER], [usual]), "be alike"),
        (f"more than {HALF}", gain(runs, "bleu", [usual], [HALF]), "be better"),
    ]


Must = Literal["be better", "not be better", "be alike"]


def failing(controls: Iterable[tuple[str, Gain, Must]]) -> str:
    """Why no claim counts: the first control that does not show what it must; else empty."""
    for name, found, must in controls:
        signs = {sign(found.quality), sign(found.loss)}
        if found.doubt or None in signs:
            return f"a control is undecided: {name}"
        shown = {"be better": signs == {1}, "not be better": signs != {1}, "be alike": signs == {0}}
        if not shown[must]:
            return f"a control fails: {name} must {must}"
    return ""


def claim(
    exhibit: str,
    what: str,
    found: Gain,
    controls: str,
    *,
    unit: str = "",
    says: str = "",
    beside: str = "",
    why: str = "",
    alike: float | None = None,
) -> Claim:
    """That smaller models gain something, or by quality alone no more or less than `alike`.

    `controls` is from `failing`.
    """
    differ = alike is None and sign(found.quality) != sign(found.loss)
    doubts = [found.doubt, "quality and loss do not both show it" * differ, controls]
    return Claim(
        exhibit,
        what,
        [found.quality],
        "measured",
        paper=nan if alike is None else 0.0,
        off=alike or 0.0,
        least=0.0 if alike is None else -inf,
        says=says,
        unit=unit,
        smaller=True,
        doubt=next(filter(None, doubts), "") if found.seeds else "",
        beside=beside,
        why=why,
    )


def curves(runs: Frame, panels: Mapping[str, dict[str, str]]) -> Figure | None:
    """Validation loss against the share of updates: a panel for each title, a line an arm.

    A line is the mean over seeds, in a band from the lowest to the highest. A panel has arm -> what
    it is called, at most as many as `LINES`.
    """
    if not len(runs):
        return None
    by_error = any(spec.training.by_error for spec in runs["spec"])
    page, (row,) = grid(1, len(panels), 2.8, legend=False)
    for axes, (title, labels) in zip(row, panels.items(), strict=True):
        axes.sharey(row[0])
        for linestyle, (arm, label) in zip(LINES, labels.items(), strict=False):
            validations = [record.validation for record in select(runs, arm=arm)["record"]]
            losses = pd.DataFrame(validations, dtype=float) * (100 if by_error else 1)
            updates = losses.columns.astype(int)
            look: dict[str, Any] = {"linestyle": linestyle}
            look["label"] = f"{label}, {updates.max():,} updates"
            done = 100 * updates / updates.max()
            axes.fill_between(done, losses.min(), losses.max(), color=SOFT, alpha=0.3, linewidth=0)
            axes.plot(done, losses.mean(), color=FIDELITIES["measured"], **look)
        axes.set(title=title, xlabel="updates (% of all)", xlim=(0, 100), yscale="log")
        axes.legend(fontsize="small", frameon=True, edgecolor="none")
    plain_log_ticks(row[0].yaxis)
    row[0].set_ylabel("validation error (%)" if by_error else "validation loss")
    return page
