"""How the arms of an experiment are read and compared, by the rules of `experiments.learned`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan, nan
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from experiments.learned import SATURATED, STILL
from repro.claims.all_claims import verdict_on
from repro.claims.claim import Evidence
from repro.harness.about import About
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.statistics import mean_interval
from repro.report.framed import Estimate, estimated, framed
from repro.report.style import grid, series_colour
from repro.report.table import Table

# What a metric is called, and the sign of a difference that is better.
METRICS = {"bleu": ("BLEU", 1), "nll": ("NLL", -1), "accuracy": ("accuracy (%)", 1)}
METRICS |= {"loss": ("loss", -1)}


def arms_frame(results: Results, experiment: str) -> Frame:
    """A line for each finished run of an arm: `runs_frame` with `arm`, `tuning` and `lr`.

    `validated` is its lowest validation loss, and `fell` the share by which that fell over the last
    fifth of the updates.
    """
    frame = runs_frame(results, experiment, task="learn", done=True)
    trainings = [spec.training for spec in frame["spec"]]
    frame = frame.assign(
        arm=[training.arm for training in trainings],
        tuning=[training.tuning for training in trainings],
        rate=[training.recipe["lr"] for training in trainings],
        validated=[min(losses_of(record), default=nan) for record in frame["record"]],
        fell=[fell(losses_of(record)) for record in frame["record"]],
    )
    if "metrics.accuracy" in frame:
        frame["metrics.accuracy"] *= 100
    return frame[frame["arm"] != ""]


def losses_of(record: LearnRound) -> list[float]:
    return [nan if loss is None else loss for loss in record.validation.values()]


def fell(losses: Sequence[float]) -> float:
    """The share by which the lowest loss fell over the last fifth; NaN of fewer than five."""
    before = losses[: len(losses) * 4 // 5]
    return 1 - min(losses) / min(before) if len(losses) >= 5 else nan


def has_converged(runs: Frame) -> bool:
    return bool(runs["fell"].mean() < STILL)


def arms_table(results: Results, name: str, frame: Frame, about: About, **more: Any) -> Table:
    """A line for each arm: its rate and those tried, its quality, and whether it has converged.

    `more` are further columns: heading -> column of `runs_frame`.
    """
    shown = [metric for metric in METRICS if f"metrics.{metric}" in frame]
    shown = [metric for metric in shown if metric != "loss" or "nll" not in shown]
    lines = []
    for (where, arm), of_arm in frame.groupby(["where", "arm"], sort=False):
        runs, tuning = of_arm[~of_arm["tuning"]], of_arm[of_arm["tuning"]]
        if runs.empty:
            continue
        line: dict[str, Any] = {"where": where, "arm": arm}
        line |= {heading: runs[column].iloc[0] for heading, column in more.items()}
        tried = tuning.groupby("rate")["validated"].mean()
        line["rate (validation loss of those tried)"] = _rates(runs["rate"].iloc[0], tried)
        line["seeds"] = len(runs)
        for metric in shown:
            values = list(runs[f"metrics.{metric}"].dropna())
            line |= estimated(f"measured {METRICS[metric][0]}", mean_interval(values))
        line["converged"] = _converged(runs)
        lines.append(line)
    forms = {f"measured {METRICS[metric][0]}": ".3f" for metric in ("nll", "loss")}
    return framed(results, name, pd.DataFrame(lines), about, forms=forms)


def _converged(runs: Frame) -> str:
    """`yes, 0.8 %`: whether an arm has, and by how much its validation loss fell at the end."""
    by = runs["fell"].mean()
    word = "yes" if has_converged(runs) else "no"
    text = word if isnan(by) else f"{word}, {100 * by:.1f} %"
    return f"{text}, saturated" if _is_saturated(runs) else text


def _rates(chosen: float, tried: pd.Series) -> str:
    """`0.004 (0.002: 1.32, 0.004: 1.30, 0.008: 1.35)`."""
    losses = ", ".join(f"{rate:g}: {loss:.3f}" for rate, loss in tried.items())
    if losses and tried.idxmin() != chosen:
        losses += "; another would be chosen here"
    return f"{chosen:g} ({losses})" if losses else f"{chosen:g}"


def _is_saturated(runs: Frame) -> bool:
    return "metrics.bleu" in runs and bool(runs["metrics.bleu"].mean() > SATURATED)


class Comparison(NamedTuple):
    """What a claim or a control expects to be above 0.

    `difference` takes the qualities of one seed, larger ones better: a line for each arm, a column
    for each language, or one.
    """

    text: str
    arms: Sequence[str]  # that it needs
    difference: Callable[[Frame], float]
    claim: str = ""
    shows: bool | None = None  # of a control: whether it must show something


def over(
    better: str, worse: str, claim: str = "", *, shows: bool | None = None, text: str = ""
) -> Comparison:
    """One arm minus another, in the mean over languages."""

    def difference(quality: Frame) -> float:
        return (quality.loc[better] - quality.loc[worse]).mean()

    return Comparison(text or f"{better} over {worse}", [better, worse], difference, claim, shows)


def differences(runs: Frame, comparison: Comparison, metric: str) -> list[float]:
    """The difference for each seed that has all arms; `runs` are those of the test seeds."""
    columns = [name for name in runs if str(name).startswith(f"metrics.{metric} ")]
    columns = columns or [f"metrics.{metric}"]
    found = []
    for _, of_seed in runs.groupby("seed"):
        quality = METRICS[metric][1] * of_seed.set_index("arm")[columns]
        quality.columns = [name.removeprefix(f"metrics.{metric}").strip() for name in columns]
        if {*comparison.arms} <= {*quality.index}:
            found.append(float(comparison.difference(quality)))
    return found


class Compared(NamedTuple):
    comparison: Comparison
    seeds: int
    quality: Estimate  # how much better by BLEU or accuracy, in points
    loss: Estimate
    ids: tuple[str, ...]
    doubt: str  # why it decides nothing; empty if it may

    @property
    def is_claim(self) -> bool:
        return self.comparison.shows is None

    @property
    def shows(self) -> bool:
        """Whether quality and loss both say that the first arm is better."""
        return min(self.quality[1], self.loss[1]) > 0

    @property
    def evidence(self) -> Evidence:
        return Evidence(
            *(self.quality[0], "measured", self.ids, *self.quality[1:]),
            converged=not self.doubt,
            setting="quality",
            others={"loss": self.loss},
            why=self.doubt,
        )


def compared(runs: Frame, comparisons: Sequence[Comparison], quality: str) -> list[Compared]:
    """The comparisons of one place, whose arms are there. `quality` is "bleu" or "accuracy"."""
    loss = "nll" if quality == "bleu" else "loss"
    runs = runs[~runs["tuning"]]
    found = []
    for each in comparisons:
        values = differences(runs, each, quality)
        losses = differences(runs, each, loss)
        of_arms = runs[runs["arm"].isin(each.arms)]
        if values:
            doubts = [doubt for arm, of in of_arms.groupby("arm") if (doubt := _doubt(arm, of))]
            ends = mean_interval(values), mean_interval(losses)
            ids = tuple(of_arms["id"])
            found.append(Compared(each, len(values), *ends, ids, "; ".join(doubts)))
    failed = [each.comparison.text for each in found if not (each.is_claim or _holds(each))]
    wanted, present = (
        {each.shows for each in of} for of in (comparisons, [c.comparison for c in found])
    )
    if not (failed or wanted - present):
        return found
    doubt = f"a control fails: {failed[0]}" if failed else "its controls are not there"
    return [each._replace(doubt=each.doubt or doubt) if each.is_claim else each for each in found]


def claims_of(found: Sequence[Compared]) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> our number for it."""
    for each in found:
        if each.comparison.claim:
            yield each.comparison.claim, each.evidence


def _doubt(arm: str, runs: Frame) -> str:
    if not has_converged(runs):
        return f"not converged: {arm}"
    return f"saturated: {arm}" * _is_saturated(runs)


def _holds(control: Compared) -> bool:
    """Whether it shows something, as a claim would, exactly where it must."""
    return control.shows == control.comparison.shows


def comparisons_table(
    results: Results,
    name: str,
    found: Mapping[str, Sequence[Compared]],
    about: About,
    unit: str,
    quoted: Mapping[str, float] | None = None,
) -> Table:
    """A line for each comparison and control of each place.

    `unit` is that of the differences, and `quoted` claim -> the paper's difference.
    """
    lines = []
    for where, every in found.items():
        for each in every:
            line: dict[str, Any] = {"where": where, "comparison": each.comparison.text}
            line |= {"seeds": each.seeds} | estimated(f"measured {unit}", each.quality)
            line |= estimated("measured gain in loss", each.loss)
            if quoted:
                line[f"quoted {unit}"] = quoted.get(each.comparison.claim, nan)
            line["verdict"] = _outcome(each)
            lines.append(line)
    forms = {"measured gain in loss": ".3f"}
    forms |= dict.fromkeys(("measured b", "quoted b"), ".3f")
    return framed(results, name, pd.DataFrame(lines), about, forms=forms)


def _outcome(each: Compared) -> str:
    if each.is_claim:
        claim = each.comparison.claim
        return str(verdict_on(claim, each.evidence)) if claim else ""
    kind = "must show something" if each.comparison.shows else "must show nothing"
    return f"{kind}: {'holds' if _holds(each) else 'fails'}"


def curves(frame: Frame, panels: Mapping[str, Sequence[str]]) -> Figure | None:
    """Validation loss against updates, mean over seeds: a panel for each title, a line an arm."""
    runs = frame[~frame["tuning"]]
    runs = runs[runs["where"] == runs["where"].iloc[-1]] if len(runs) else runs
    panels = {
        title: [arm for arm in arms if arm in {*runs["arm"]}] for title, arms in panels.items()
    }
    panels = {title: arms for title, arms in panels.items() if arms}
    if not panels:
        return None
    page, (row,) = grid(1, len(panels), 2.8)
    for axes, (title, arms) in zip(row, panels.items(), strict=True):
        for number, arm in enumerate(arms):
            of_arm = runs[runs["arm"] == arm]["record"]
            steps = [*map(int, of_arm.iloc[0].validation)]
            means = [fmean(losses) for losses in zip(*map(losses_of, of_arm), strict=True)]
            axes.plot(steps, means, label=arm, color=series_colour(2 ** (1.2 * number)))
        axes.set(title=title, xlabel="updates", xscale="log", yscale="log")
        axes.legend(fontsize="small")
    row[0].set_ylabel("validation loss")
    return page
