"""How the arms of an experiment are read and compared, by the rules of `experiments.learned`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import inf, isnan, nan
from statistics import fmean
from typing import Any, Literal, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from experiments.learned import ONE_IMAGE, SATURATED, SEEDS, STILL, Arm
from repro.claims.all_claims import verdict_on
from repro.claims.claim import Evidence
from repro.harness.about import About
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.spec import RunSpec, Scale
from repro.harness.statistics import mean_interval
from repro.report.framed import Estimate, estimated, framed
from repro.report.style import grid, plain_log_ticks, series_colour
from repro.report.table import Table

# What a metric is called, and the sign of a difference that is better.
METRICS = {"bleu": ("BLEU", 1), "accuracy": ("accuracy (%)", 1), "loss": ("loss", -1)}
METRICS["pretraining accuracy"] = ("accuracy of the source (%)", 1)


def arms_frame(results: Results, experiment: str) -> Frame:
    """A line for each finished run of an arm: `runs_frame` with `arm`, `tuning` and its settings.

    These are `rate` and `dropout`, 0 where it is the model's own. `validated` is its lowest
    validation loss, `fell` the share by which that fell over the last fifth of the updates, and
    `rose` whether the first is the lowest.
    """
    frame = runs_frame(results, experiment, task="learn", done=True)
    trainings = [spec.training for spec in frame["spec"]]
    losses = [losses_of(record) for record in frame["record"]]
    least = [ONE_IMAGE / STILL * training.by_error for training in trainings]
    frame = frame.assign(
        arm=[training.arm for training in trainings],
        tuning=pd.Series([training.tuning for training in trainings], frame.index, dtype=bool),
        rate=[training.recipe["lr"] for training in trainings],
        dropout=[spec.model_args.get("dropout", 0.0) for spec in frame["spec"]],
        validated=[min(each, default=nan) for each in losses],
        fell=[*map(fell, losses, least)],
        rose=[bool(each) and each[0] < min(each[1:], default=inf) for each in losses],
    )
    for share in ("metrics.accuracy", "metrics.pretraining accuracy"):
        if share in frame:
            frame[share] *= 100
    return frame[frame["arm"] != ""]


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


def main_place(frame: Frame) -> Frame:
    """The lines of the place with most seeds; of equals, the last."""
    seeds = frame.groupby("where", sort=False)["seed"].nunique()
    return frame[frame["where"] == seeds[::-1].idxmax()]


def has_converged(runs: Frame) -> bool:
    return bool(runs["fell"].mean() < STILL and runs["rose"].mean() <= 0.5)


def arms_table(results: Results, name: str, frame: Frame, about: About, **more: Any) -> Table:
    """A line for each arm: its rate and those tried, its quality, and whether it has converged.

    `more` are further columns: heading -> column of `runs_frame`.
    """
    shown = [metric for metric in METRICS if f"metrics.{metric}" in frame]
    lines = []
    for (where, arm), of_arm in frame.groupby(["where", "arm"], sort=False):
        runs, tuning = of_arm[~of_arm["tuning"]], of_arm[of_arm["tuning"]]
        line: dict[str, Any] = {"where": where, "arm": arm}
        line |= {heading: of_arm[column].iloc[0] for heading, column in more.items()}
        line["rate (validation loss or error of those tried)"] = _rates(runs, tuning)
        line["seeds"] = len(runs)
        for metric in shown:
            values = list(runs[f"metrics.{metric}"].dropna())
            line |= estimated(f"measured {METRICS[metric][0]}", mean_interval(values))
        line["converged"] = _converged(runs) if len(runs) else "not trained yet"
        lines.append(line)
    forms = {"measured loss": ".3f", "parameters": ".0f"}
    return framed(results, name, pd.DataFrame(lines), about, forms=forms)


def _converged(runs: Frame) -> str:
    """`yes, 0.8 %`: whether an arm has, and by how much its validation loss fell at the end."""
    if runs["scale"].iloc[0] in ("smoke", "laptop"):
        return "no, too few updates"
    by = runs["fell"].mean()
    word = "yes" if has_converged(runs) else "no"
    text = word if isnan(by) else f"{word}, {100 * by:.1f} %"
    # At rest, and yet not converged.
    text = "no, lowest at first" if word == "no" and by < STILL else text
    return f"{text}, saturated" if _is_saturated(runs) else text


def _rates(tests: Frame, tuning: Frame) -> str:
    """`0.004 (0.002: 1.320, 0.004: 1.300, 0.008: 1.350)`, each at a dropout where several were."""
    form = "{:g} at dropout {:g}" if tuning["dropout"].nunique() > 1 else "{:g}"
    settings = ["rate", "dropout"]
    chosen = [form.format(*each) for each in tests.groupby(settings).groups]
    losses = tuning.groupby(settings)["validated"].mean().items()
    tried = ", ".join(f"{form.format(*each)}: {loss:.3f}" for each, loss in losses)
    return " ".join([*chosen, *([f"({tried})"] if tried else [])])


def _is_saturated(runs: Frame) -> bool:
    """Whether any of the languages is."""
    languages = runs[[name for name in runs if str(name).startswith("metrics.bleu")]]
    return bool((languages.mean() > SATURATED).any())


# What a control must show: that the first arm is better, that it is not, or no difference.
Control = Literal["", "something", "no gain", "nothing"]


class Comparison(NamedTuple):
    """What a claim expects to be above 0, and a control to be so or not.

    `difference` takes the qualities of one seed, larger ones better: a line for each arm, a column
    for each language, or one.
    """

    text: str
    arms: Sequence[str]  # that it needs
    difference: Callable[[Frame], float]
    claim: str = ""
    control: Control = ""
    by_loss: bool = True  # whether the loss must agree


def over(
    better: str, worse: str, claim: str = "", *, control: Control = "", text: str = ""
) -> Comparison:
    """One arm minus another, in the mean over languages."""

    def difference(quality: Frame) -> float:
        return (quality.loc[better] - quality.loc[worse]).mean()

    text = text or f"{better} over {worse}"
    return Comparison(text, [better, worse], difference, claim, control)


def qualities(runs: Frame, metric: str, arms: Iterable[str]) -> Iterator[Frame]:
    """Of each test seed that has all arms: a line for each of its arms, a column a language."""
    columns = [name for name in runs if str(name).startswith(f"metrics.{metric} ")]
    columns = columns if len(columns) > 1 else [f"metrics.{metric}"]  # that of one language
    for _, of_seed in runs.groupby("seed"):
        quality = METRICS[metric][1] * of_seed.set_index("arm")[columns]
        quality.columns = [name.removeprefix(f"metrics.{metric}").strip() for name in columns]
        if {*arms} <= {*quality.index}:
            yield quality


Tried = tuple[float, float, int]  # dropout, learning rate and seed of a tuning run


class Compared(NamedTuple):
    comparison: Comparison
    seeds: int
    quality: Estimate  # how much better by BLEU or accuracy, in points
    loss: Estimate
    ids: tuple[str, ...]
    doubt: str  # why it decides nothing; empty if it may

    @property
    def evidence(self) -> Evidence:
        value, low, high = self.quality
        counts = not self.doubt
        return Evidence(value, "measured", self.ids, low, high, converged=counts, why=self.doubt)

    @property
    def holds(self) -> bool | None:
        """Of a control, whether it shows what it must; None where it cannot be told."""
        signs = [_sign(self.quality), _sign(self.loss)]
        if self.doubt or nan in signs:
            return None
        if self.comparison.control == "nothing":
            return signs == [0, 0]
        return (signs == [1, 1]) == (self.comparison.control == "something")


def _sign(estimate: Estimate) -> float:
    """1 or -1 where the interval lies on one side of 0, else 0; NaN without an interval."""
    _, low, high = estimate
    return nan if isnan(low) else float((low > 0) - (high < 0))


def of_places(
    results: Results,
    experiment: str,
    arms: Callable[[Scale], Iterable[Arm]],
    comparisons: Callable[[Frame], Sequence[Comparison]],
    quality: str,
) -> dict[str, list[Compared]]:
    """Place -> what its runs compare, most seeds first; `quality` is "bleu" or "accuracy"."""
    places = [*arms_frame(results, experiment).groupby("where", sort=False)]
    places.sort(key=lambda place: -place[1]["seed"].nunique())
    plan = {arm.name: {*map(_tried, arm.tuning())} for arm in arms("overnight")}
    return {where: compared(runs, plan, comparisons(runs), quality) for where, runs in places}


def compared(
    runs: Frame, plan: Mapping[str, Set[Tried]], comparisons: Sequence[Comparison], quality: str
) -> list[Compared]:
    """The comparisons of one place whose arms are there; `plan` is arm -> what tuning tries."""
    found, seeds = [], len(SEEDS["overnight"])
    tests = runs[~runs["tuning"]]
    for each in comparisons:
        values, losses = (
            [float(each.difference(seed)) for seed in qualities(tests, metric, each.arms)]
            for metric in (quality, "loss")
        )
        if values:
            of_arms = runs[runs["arm"].isin(each.arms)]
            ends = mean_interval(values), mean_interval(losses)
            doubts = [f"{len(values)} of {seeds} seeds" * (len(values) < seeds)]
            for arm, of_arm in of_arms.groupby("arm", sort=False):
                doubts.append(_doubt(str(arm), of_arm, plan.get(str(arm), set())))
            if each.by_loss and not each.control and _sign(ends[0]) != _sign(ends[1]):
                doubts.append("quality and loss do not both show it")
            ids = tuple(of_arms.loc[~of_arms["tuning"], "id"])
            doubt = next(filter(None, doubts), "")
            found.append(Compared(each, len(values), *ends, ids, doubt))
    controls = {each.comparison.text: each.holds for each in found if each.comparison.control}
    wanted = [each.text for each in comparisons if each.control]
    bad = next((text for text in wanted if not controls.get(text)), "")
    doubt = f"a control {'fails' if controls.get(bad) is False else 'cannot be told'}: {bad}"
    return [
        each._replace(doubt=each.doubt or doubt) if bad and not each.comparison.control else each
        for each in found
    ]


def claims_of(found: Mapping[str, Sequence[Compared]]) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> our number for it."""
    for each in (each for of_place in found.values() for each in of_place):
        if each.comparison.claim:
            yield each.comparison.claim, each.evidence


def _tried(spec: RunSpec) -> Tried:
    assert spec.training is not None
    return spec.model_args.get("dropout", 0.0), spec.training.recipe["lr"], spec.seed


def _doubt(arm: str, runs: Frame, planned: Set[Tried]) -> str:
    """Why an arm decides nothing; empty if it may."""
    tests, tuning = runs[~runs["tuning"]], runs[runs["tuning"]]
    if planned - {*map(_tried, tuning["spec"])}:
        return f"rates are left to try: {arm}"
    # Rounded, so that as many wrong images of two seeds are equal.
    tried = tuning.groupby(["dropout", "rate"])["validated"].mean().round(6)
    if planned:
        dropout, rate = tests["dropout"].iloc[0], tests["rate"].iloc[0]
        best = [*tried.index[tried == tried.min()]]
        if (dropout, rate) not in best:
            return f"another rate or dropout is better: {arm}"
        rates = tried[dropout].index
        if {(dropout, rates.min()), (dropout, rates.max())} & {*best}:
            return f"the best rate is the last that was tried: {arm}"
    if not has_converged(tests):
        return f"not converged: {arm}"
    return f"saturated: {arm}" * _is_saturated(tests)


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
    forms = dict.fromkeys(["measured gain in loss", "measured b", "quoted b"], ".3f")
    table = framed(results, name, pd.DataFrame(lines), about, forms=forms)
    ids = {identity for every in found.values() for each in every for identity in each.ids}
    return replace(table, runs=[run for run in results.runs if run.id in ids])


def _outcome(each: Compared) -> str:
    comparison = each.comparison
    if not comparison.control:
        return str(verdict_on(comparison.claim, each.evidence)) if comparison.claim else each.doubt
    word = {True: "holds", False: "fails", None: each.doubt or "no interval"}[each.holds]
    return f"control, must show {comparison.control}: {word}"


def curves(frame: Frame, panels: Mapping[str, Sequence[str]]) -> Figure | None:
    """Validation loss against updates, mean over seeds: a panel for each title, a line an arm."""
    runs = frame[~frame["tuning"]]
    runs = main_place(runs) if len(runs) else runs
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
            label = arm.removeprefix(title).lstrip(":, ")
            colour = series_colour(2 ** (5 * number / max(1, len(arms) - 1)))
            axes.plot(steps, means, label=label, color=colour)
        axes.set(title=title, xlabel="updates", yscale="log")
        plain_log_ticks(axes.yaxis)
        axes.legend(fontsize="small", loc="best", frameon=True, edgecolor="none")
    by_error = any(spec.training.by_error for spec in runs["spec"])
    row[0].set_ylabel(f"validation {'error' if by_error else 'loss'}")
    return page
