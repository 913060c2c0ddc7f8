"""The breakdown of a step (NeurIPS version of arXiv:1811.06965, Table 4): the paper's pie beside ours, part by part.

The pie bears neither model nor K nor M. The paper's text says two partitions; M=16 is inferred from
the pie's own bubble, so that row is fitted and proves nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import isnan, nan
from typing import TYPE_CHECKING

from experiments.breakdown.runs import NAME, K, M
from experiments.table2.recorded import at_papers_size
from repro.harness.results import Results, Run
from repro.paper import breakdown as paper_breakdown
from repro.paper import theory
from repro.report.bars import drawable, stack
from repro.report.compare import beside_paper, fidelities, optimizers, rows_of, where
from repro.report.grid import Cell, Column, declared, plain, share
from repro.report.rounds import parts
from repro.report.style import PARTS, grid, model_name
from repro.report.table import EMPTY, NOT_RUN, Table, percent
from repro.report.texts import BUBBLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FOLDED = ("breakdown_points*",)
CLOSE = 0.02  # of the step: as near as a share has to be for "consistent"
PART_WORDS = {"setup": "set-up", "imbalance": "load imbalance", "update": "weight update"}
Key = tuple[str, str]  # (model and where, fidelity), as shown
# the pie's, then ours
_ORDER = ("computation", "recompute", "imbalance", "bubble", "setup", "update", "transfer")


def tables(results: Results) -> list[Table]:
    """Both; none if the experiment was never planned."""
    return [main(results), by_m(results)] if rows_of(results, experiment=NAME) else []


def quoted() -> dict[str, float]:
    """The pie, as shares of the step."""
    return {share.part: share.percent / 100 for share in paper_breakdown()}


PART: Column[str] = Column("part", lambda part: plain(PART_WORDS.get(part, part)))
PIE: Column[str] = Column(("quoted", "pie"), lambda part: share(quoted().get(part, nan)))


def columns(results: Results, micro_batches: int = M) -> dict[Key, Run]:
    """The runs at K=2 and this M: model and fidelity -> row; the place is named where a pair comes from several."""
    rows = [row for row in rows_of(results, experiment=NAME, K=K) if micro_batches == row.M]
    pairs = [(row.model, row.fidelity) for row in rows]
    found: dict[Key, Run] = {}
    for row, pair in zip(rows, pairs, strict=True):
        name = model_name(row.model) + (
            f" ({where(results, row)})" if pairs.count(pair) > 1 else ""
        )
        found[name, row.fidelity] = row
    order = fidelities(rows)
    return dict(sorted(found.items(), key=lambda pair: (order.index(pair[0][1]), pair[0][0])))


def main(results: Results) -> Table:
    """One line a part: quoted, each run's share, and what a simulation at the paper's size says of the quoted."""
    runs = columns(results)
    shares = {run: parts(results, row) for run, row in runs.items()}
    quoting = beside_paper(results, NAME)
    judged = {
        name: shares[name, fidelity]
        for (name, fidelity), row in runs.items()
        if quoting
        and fidelity == "simulated"
        and at_papers_size(results, row)
        and shares[name, fidelity]
    }
    devices = dict.fromkeys(
        f"{name} on the profile {row.spec.profile}, N={row.N}"
        for (name, fidelity), row in runs.items()
        if fidelity == "simulated"
    )
    of_the_pie = (
        f" K is from the text, M={M} from the pie's own bubble, so the bubble row is fitted and "
        "proves nothing. The model of the pie is not printed either."
    )
    verdicts = (
        " Measured: scaled-down models on this machine, which can show a trend. Consistent: a "
        f"simulation at the paper's size within {100 * CLOSE:g} points; a slice of at most twice "
        "that is too small to tell. Transfer is no slice of the pie."
    )
    note = (
        f"Shares of K x step at K={K}, M={M}, median over rounds.{of_the_pie if quoting else ''} "
        + (f"Simulated: {'; '.join(devices)}. " if devices else "")
        + (
            "Emulated: the same costs, real processes that wait; the runtime's own time is in "
            f"transfer.{verdicts if quoting else ''} {BUBBLE} {optimizers(results, runs.values())}"
        )
    ).strip()
    title = "Where the time of a step goes" + " (NeurIPS Table 4, not in v5)" * quoting
    pie = quoted()

    def share_of(part: str, run: Key) -> Cell:
        word = NOT_RUN if runs[run].status == "planned" else runs[run].status
        cell = share(shares[run].get(part, nan))
        return cell if word == "done" else replace(cell, text=word)

    def against(part: str, name: str) -> Cell:
        value, printed = judged[name][part], pie.get(part, nan)
        return Cell(value - printed, verdict(part, value, printed))

    made: list[Column[str]] = [PART, *[PIE] * quoting]
    made += [
        Column((fidelity, name), partial(share_of, run=(name, fidelity))) for name, fidelity in runs
    ]
    made += [
        Column(("simulated against quoted", name), partial(against, name=name)) for name in judged
    ]
    why: Column[str] = Column("why", lambda part: Cell(text=_why(part, judged)), csv="")
    made += [why] * quoting
    return declared("breakdown", title, note, _ORDER, made, NAME)


def verdict(part: str, share: float, printed: float) -> str:
    """`+1.4 points, consistent`; the bubble's is fitted."""
    if isnan(printed) or isnan(share):
        return EMPTY
    off = f"{100 * (share - printed):+.1f} points"
    if part == "setup":
        return f"{off}, not modelled"
    if printed <= 2 * CLOSE and part != "bubble":
        return f"{off}, too small a slice to tell"
    if part == "bubble":
        return f"{off}, fitted"
    return f"{off}, consistent" if abs(share - printed) <= CLOSE else f"{off}, not consistent"


def _why(part: str, judged: dict[str, dict[str, float]]) -> str:
    """What is behind a line's differences, from the numbers themselves."""
    pie = quoted()
    if not judged:
        return EMPTY
    if part in ("computation", "recompute"):
        rest = pie[part] / (1 - pie["setup"])
        ratio = ", ".join(
            f"{name} {found['recompute'] / found['computation']:.3f}"
            for name, found in judged.items()
        )
        if part == "computation":
            return f"simulated steps have no set-up; without it the pie has {percent(rest)}"
        return (
            f"recompute over computation: quoted {pie['recompute'] / pie['computation']:.3f}, "
            f"simulated {ratio}; F:R:B = 1:1:2 gives 0.333"
        )
    return {
        "imbalance": "depends on the model and on the cut; the pie's are not printed",
        "bubble": (
            f"M={M} was chosen to fit: early recompute gives "
            f"{percent(theory.bubble(K, M, 'early'))} of a step without set-up, update and "
            "imbalance"
        ),
        "setup": "in no profile, so simulated steps have none",
        "update": _times(pie["update"], {name: found["update"] for name, found in judged.items()}),
        "transfer": "no slice of the pie",
    }[part]


def _times(printed: float, ours: dict[str, float]) -> str:
    """How far apart small slices are as a factor, which points hide."""
    factors = ", ".join(f"{name} {printed / share:.0f}" for name, share in ours.items() if share)
    return (
        f"quoted (by subtraction) over simulated: {factors}; of so small a slice a tolerance in "
        "points asks little"
    )


def by_m(results: Results) -> Table:
    """The simulated runs for M = 8, 16, 32 beside the pie."""
    quoting = beside_paper(results, NAME)
    rows = rows_of(results, experiment=NAME, fidelity="simulated", K=K)
    Ms = sorted({row.M for row in rows})
    found = {
        (name, m): parts(results, row)
        for m in Ms
        for (name, fidelity), row in columns(results, m).items()
        if fidelity == "simulated"
    }
    names = dict.fromkeys(name for name, _ in found)
    made: list[Column[str]] = [PART, *[PIE] * quoting]
    for name in names:
        for m in (m for m in Ms if (name, m) in found):
            shares = found[name, m]
            made.append(
                Column(
                    (f"{name}, simulated", f"M={m}"),
                    lambda part, at=shares: share(at.get(part, nan)),
                )
            )
    theirs = f"The paper's M is not printed: only the bubble tells M={M} apart. " if quoting else ""
    note = f"Simulated shares of K x step at K={K}. {theirs}{BUBBLE}"
    title = "Where the time of a step goes, simulated, by M"
    return declared("breakdown_by_m", title, note, _ORDER, made, NAME, folded=True)


def figures(results: Results, _rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """Name, figure and caption of each."""
    hidden = any(
        parts(results, row).get("imbalance", 0) <= -0.005 for row in columns(results).values()
    )
    pie = (
        ", beside the pie of NeurIPS Table 4: its K is said in the text, its M inferred from its "
        "own bubble"
    )
    caption = (
        f"Where a step at K={K}, M={M} goes{pie if beside_paper(results, NAME) else ''}. {BUBBLE}"
    )
    updates = optimizers(results, columns(results).values())
    shortened = (
        " Imbalance is negative where an unequal cut shortens the wait; here it is taken off the "
        "bubble."
    )
    yield "parts", figure(results), " ".join(filter(None, (caption + shortened * hidden, updates)))


def figure(results: Results) -> "Figure | None":
    """One bar a run, under the pie's."""
    pie = {part: 100 * share for part, share in quoted().items()}
    quoting = beside_paper(results, NAME)
    bars = [("quoted: NeurIPS Table 4", pie)] if quoting else []
    first = len(bars)
    for (name, fidelity), row in columns(results).items():
        shares = parts(results, row)
        if shares:
            size = "" if at_papers_size(results, row) else f", {row.scale} size"
            bars.append(
                (
                    f"{fidelity}{size}: {name}",
                    {part: 100 * share for part, share in drawable(shares).items()},
                )
            )
    if len(bars) == first:
        return None
    made, ((axes,),) = grid(1, 1, 0.9 + 0.34 * len(bars))
    stack(axes, bars)
    theirs = "; of quoted K is from the text, M inferred" if quoting else ""
    axes.set(xlabel="share of K x step time (%)", title=f"K={K}, M={M}{theirs}")
    made.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
    return made
