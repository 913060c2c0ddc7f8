"""Table 3 of arXiv:1811.06965v5: throughput without fast interconnect, quoted beside ours, and what links cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

from experiments.table2.recorded import at_papers_size
from experiments.table3.links import THROTTLED, throttled
from repro.gpipe.partition.layer_profile import LinkSpeed
from repro.harness.results import Results, Run
from repro.harness.sizes import TABLE3_AMOEBANET, TABLE3_TRANSFORMER
from repro.harness.spec import canonical
from repro.paper import Cell, table2
from repro.paper import table3 as paper_table3
from repro.report.compare import beside_paper, fidelities, optimizers, rows_of, where
from repro.report.ratio import Ratio, ideal_over_k1, over
from repro.report.rounds import costs, parts, schedule_of
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, framed, number, percent
from repro.report.texts import IDEAL, clock
from repro.simulate import FREE, simulate

NAME = "table3"
M = 32
KS = (2, 4, 8)
TOLERANCE = 0.1  # of a ratio, for "reproduced" and "consistent"
SIZES = {"amoebanet-d": TABLE3_AMOEBANET["paper"], "transformer": TABLE3_TRANSFORMER["paper"]}
Pair = tuple[dict[Any, Any], dict[Any, Any]]


@dataclass(frozen=True)
class Series:
    """Runs of one model and size at one place, all of whose steps are divided by that of their own K=2."""

    model: str
    place: str
    papers_size: bool
    rows: list[Run]

    @property
    def title(self) -> str:
        """The model, and where it is not the paper's the scale."""
        return model_name(self.model) + (f" ({self.place})" if not self.papers_size else "")

    def run(self, fidelity: str, K: int) -> Run | None:
        """The run of this fidelity with K stages."""
        return next((row for row in self.rows if (row.fidelity, row.K) == (fidelity, K)), None)


def tables(results: Results) -> list[Table]:
    """All of them; none if the experiment was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    with_tpus = [against_tpus(results)] if beside_paper(results, NAME) else []
    return [main(results), links(results), *with_tpus, throttled(results)]


def series(results: Results) -> list[Series]:
    """The runs without those whose links are throttled, by place, model and size; the paper's sizes first."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for row in rows_of(results, experiment=NAME):
        if not row.group.endswith(THROTTLED):
            args = row.spec.model_args
            key = (row.model, row.machine, row.scale, canonical({"args": args}))
            found.setdefault(key, []).append(row)
    made = []
    for (model, *_), rows in found.items():
        full = rows[0].spec.model_args == SIZES.get(model)
        made.append(Series(model, where(results, rows[0]), full, rows))
    return sorted(made, key=lambda one: (not one.papers_size, one.model, one.place))


def quoted(model: str, K: int) -> float:
    """A cell of Table 3; NaN where there is none."""
    return _printed(paper_table3(), model, K)


def _printed(cells: list[Cell], model: str, K: int) -> float:
    return next(
        (cell.value for cell in cells if (cell.model, cell.K, cell.M) == (model, K, M)), nan
    )


def over_k2(results: Results, row: Run) -> Ratio:
    """Throughput over that of K=2 with everything else equal, as Table 3 is divided."""
    return over(results, row, K=2)


def ideal(K: int) -> float:
    """Of equal stages and free messages, early recompute, over the same at K=2."""
    return ideal_over_k1(K, M, "gpipe", "always") / ideal_over_k1(2, M, "gpipe", "always")


def verdict(fidelity: str, value: float, printed: float, *, papers_size: bool) -> str:
    """What a ratio says of the printed one: reproduced or not, consistent or not; of another size nothing."""
    if isnan(value) or isnan(printed):
        return EMPTY
    off = value / printed - 1
    if not papers_size:
        return f"{off:+.1%}, another size"
    word = "reproduced" if fidelity == "measured" else "consistent"
    return f"{off:+.1%}, {word}" if abs(off) <= TOLERANCE else f"{off:+.1%}, not {word}"


def main(results: Results) -> Table:
    """Table 3, one line a model and K."""
    found = series(results)
    known = fidelities(row for one in found for row in one.rows)
    present = sorted(known, key=("simulated", "emulated", "measured").index)
    updates = optimizers(results, (row for one in found for row in one.rows), always=True)
    quoting = beside_paper(results, NAME)
    theirs = (
        f"Against quoted: ours over the paper's, minus 1; within {TOLERANCE:.0%} measured is "
        "reproduced and what a cost model says is consistent, no more. The paper prints neither N "
        "nor widths nor image size. "
    )
    note = (
        f"Throughput over that of K=2 at M={M}, the same N and re-materialization. "
        f"{_what(results, found)} {IDEAL} "
        f"{theirs if quoting else ''}{' '.join(filter(None, [updates, *_differences(results)]))}"
    )
    title = "Table 3 (v5 and NeurIPS): throughput" if quoting else "Throughput"
    title += " without fast interconnect, normalised to K=2"
    pairs = [_line(results, one, K, present, quoting) for one in found for K in KS]
    return framed("table3", title, note, pairs, NAME)


def _line(results: Results, one: Series, K: int, present: list[str], quoting: bool) -> Pair:
    printed = quoted(one.model, K)
    about = {("", "model"): one.title, ("", "K"): K}
    shown: dict[Any, Any] = dict(about)
    data: dict[Any, Any] = dict(about)
    if quoting:
        shown["quoted", "over K=2"] = f"{printed:g}"
        data["quoted", "over K=2"] = printed
    for fidelity in present:
        row = one.run(fidelity, K)
        found = over_k2(results, row) if row else Ratio(nan, nan, nan, 0, "")
        shown[fidelity, "over K=2"] = _word(row, found)
        told = verdict(fidelity, found.value, printed, papers_size=one.papers_size)
        data |= {
            (fidelity, "over K=2"): found.value,
            (fidelity, "low"): found.low,
            (fidelity, "high"): found.high,
        }
        if quoting:
            shown[fidelity, "against quoted"] = EMPTY if K == 2 else told
            data[fidelity, "over quoted"] = found.value / printed
    ends = {("ideal", "over K=2"): ideal(K)}
    return shown | {key: number(value) for key, value in ends.items()}, data | ends


def _word(row: Run | None, found: Ratio) -> str:
    """A ratio, or why there is none."""
    if row is None or row.status == "planned":
        return NOT_RUN
    return str(found) if row.status == "done" else row.status


def _differences(results: Results) -> Iterator[str]:
    """For every simulated cell that is not consistent, what its step is made of."""
    for one, row in _simulated(results):
        value, printed, K = over_k2(results, row).value, quoted(one.model, row.K), row.K
        if not one.papers_size or isnan(value) or abs(value / printed - 1) <= TOLERANCE:
            continue
        shares = parts(results, row)
        waits = ", ".join(
            f"{part} {percent(shares.get(part, nan))}"
            for part in ("imbalance", "bubble", "transfer")
        )
        cut = ", ".join(str(count) for count in row.balance)
        yield (
            f"{model_name(one.model)} at K={K} is not consistent: simulated {value:.2f}, quoted "
            f"{printed:g}. Its step holds {waits}; layers are cut {cut}. What the paper did "
            "otherwise is not known." + _nearer(K, printed)
        )


def _nearer(K: int, printed: float) -> str:
    """That equal stages without links are near the quoted cell, of one of which the simulation is not."""
    if abs(ideal(K) / printed - 1) > TOLERANCE:
        return ""
    return (
        f" The uniform ideal, {ideal(K):.2f}, is within {TOLERANCE:.0%} of quoted there while the "
        "simulation is not."
    )


def _what(results: Results, found: list[Series]) -> str:
    """Which device, link and N the cost model was given, and which clock the emulation ran on."""
    modelled = [
        row for one in found for row in one.rows if row.fidelity == "simulated" and row.K == 2
    ]
    words = []
    for row in modelled[:1]:
        stages = costs(results, row)
        if stages is not None:
            speed = (
                f"{stages.link.bytes_per_second / 1e9:.1f} GB/s and "
                f"{1e6 * stages.link.latency:.0f} us a message"
            )
            words.append(
                f"Simulated: the cost model of the profile {row.spec.profile}, "
                f"messages to the host and back at {speed}, each direction of each boundary by "
                "itself; nothing was computed."
            )
    batches = dict.fromkeys(f"{model_name(row.model)} N={row.N}" for row in modelled)
    if batches:
        words.append(f"{', '.join(batches)}.")
    emulated = [row for one in found for row in one.rows if row.fidelity == "emulated"]
    stretches = [row.spec.stretch or 1.0 for row in emulated]
    if stretches:
        words.append(
            f"Emulated: K real processes that wait out the same costs. {clock(stretches)} Each "
            "step is longer than simulated by the runtime on this machine's cores, not the "
            "paper's, the base's and the cell's by different parts, so a ratio can come out on "
            "either side of the simulated one."
        )
    return " ".join(words)


def links(results: Results) -> Table:
    """What transfers take of the simulated step, and the step without them; the cut is kept."""
    quoting = beside_paper(results, NAME)
    pairs = [_links(results, one, row, quoting) for one, row in _simulated(results)]
    columns = "quoted and over K=2" if quoting else "over K=2"
    note = (
        f"Simulated, of the runs of the table before; {columns} as there. Transfer: the share of K "
        "x step in which a stage waits for a message and would not with free ones. Free link: the "
        "same costs, cut and schedule with messages that take no time; its step over the step "
        "with the link. Message: the largest between two stages, its time over F of the slowest "
        "stage; below 1 it can hide behind compute. Computed here from what the runs recorded."
    )
    title = "Table 3, simulated: how much of the step the slow link is"
    return framed("table3_links", title, note, pairs, NAME)


def _simulated(results: Results) -> Iterator[tuple[Series, Run]]:
    for one in series(results):
        for K in KS:
            row = one.run("simulated", K)
            if row is not None and row.status == "done":
                yield one, row


def free_step(results: Results, row: Run) -> float:
    """Seconds of the step of a simulated run if its messages took no time."""
    stages = costs(results, row)
    if stages is None:
        return nan
    return simulate(schedule_of(results, row), replace(stages, link=FREE)).step_time


def _links(results: Results, one: Series, row: Run, quoting: bool) -> Pair:
    stages = costs(results, row)
    free, base = free_step(results, row), one.run("simulated", 2)
    free_base = free_step(results, base) if base and base.status == "done" else nan
    size = max(stages.activations, default=nan) if stages else nan
    message = _seconds(stages.link, size) / max(stages.forward) if stages else nan
    about = {("", "model"): one.title, ("", "K"): row.K}
    found = {
        ("step (ms)", "simulated"): 1e3 * row.step_s,
        ("transfer", "simulated"): parts(results, row).get("transfer", nan),
        ("free link", "step over step"): free / row.step_s,
        **({("over K=2", "quoted"): quoted(one.model, row.K)} if quoting else {}),
        ("over K=2", "simulated"): over_k2(results, row).value,
        ("over K=2", "free link"): free_base / free,
        ("message", "MiB"): size / 2**20,
        ("message", "time over F"): message,
    }
    shown = about | {key: number(value) for key, value in found.items()}
    shown["step (ms)", "simulated"] = number(1e3 * row.step_s, 1)
    shown["transfer", "simulated"] = percent(found["transfer", "simulated"])
    shown["free link", "step over step"] = number(found["free link", "step over step"], 3)
    return shown, about | found


def _seconds(link: LinkSpeed, size: float) -> float:
    return link.latency + size / link.bytes_per_second


def against_tpus(results: Results) -> Table:
    """Whether GPUs without fast links scale as TPUs do: Table 3 beside the row M=32 of Table 2."""
    pairs = [
        _tpus(results, one.model, K) for one in series(results) if one.papers_size for K in KS[1:]
    ]
    note = (
        f"Throughput over that of K=2 at M={M}. TPU: Table 2's row M={M}, divided here by its own "
        "K=2; its models are twice as large, AmoebaNet-D (18, 256) and 48 layers. Simulated, TPU: "
        f"Table 2's runs at the same N for every K, cut by time. {_sentence(results)}"
    )
    title = "Table 3 beside Table 2: do GPUs without NVLink scale as TPUs do?"
    ran = any(row.status != "planned" for one in series(results) for row in one.rows)
    missing = (
        f"{NOT_RUN} at this scale, whose models are of another size than the paper's" if ran else ""
    )
    unique = list({str(pair[0]): pair for pair in pairs}.values())
    return framed("table3_tpu", title, note, unique, NAME, missing=missing)


def _tpus(results: Results, model: str, K: int) -> Pair:
    about = {("", "model"): model_name(model), ("", "K"): K}
    found = {
        ("quoted", "P100"): quoted(model, K),
        ("quoted", "TPU"): _printed(table2(), model, K) / _printed(table2(), model, 2),
        ("simulated", "P100"): simulated_over_k2(results, model, K),
        ("simulated", "TPU"): tpu_over_k2(results, model, K),
    }
    for name in ("quoted", "simulated"):
        found[name, "P100 over TPU"] = found[name, "P100"] / found[name, "TPU"]
    order = sorted(found, key=lambda key: key[0])
    shown = about | {key: number(found[key]) for key in order}
    return shown, about | {key: found[key] for key in order}


def simulated_over_k2(results: Results, model: str, K: int) -> float:
    """The simulated cell at the paper's size; NaN where there is none."""
    for one, row in _simulated(results):
        if one.papers_size and (one.model, row.K) == (model, K):
            return over_k2(results, row).value
    return nan


def tpu_over_k2(results: Results, model: str, K: int) -> float:
    """The same of Table 2's plain simulated runs: all K at one N, cut by time."""
    for row in rows_of(
        results, experiment="table2", model=model, fidelity="simulated", K=K, M=M, remat="always"
    ):
        spec = row.spec
        if (
            row.group == f"{model}-simulated"
            and spec.memory is None
            and at_papers_size(results, row)
        ):
            return over_k2(results, row).value
    return nan


def _sentence(results: Results) -> str:
    """Whether the simulation has AmoebaNet scale better on P100s at K=4, as the paper's cells do."""
    model = "amoebanet-d"
    ours, theirs = simulated_over_k2(results, model, 4), tpu_over_k2(results, model, 4)
    printed, renormalised = (
        quoted(model, 4),
        _printed(table2(), model, 4) / _printed(table2(), model, 2),
    )
    words = (
        f"Quoted, AmoebaNet at K=4 gains more on P100s ({printed:g}) than on TPUs "
        f"({renormalised:.2f})"
    )
    if isnan(ours) or isnan(theirs):
        return f"{words}; whether the simulation has that too was not run."
    if ours > theirs:
        times = f"{ours / theirs:.2f} times as much, quoted {printed / renormalised:.2f}"
        return f"{words}, and so it does in the simulation ({ours:.2f} and {theirs:.2f}: {times})."
    return (
        f"{words}; the simulation has it the other way round ({ours:.2f} and {theirs:.2f}), so as "
        "modelled neither the devices nor the links explain the paper's order."
    )
