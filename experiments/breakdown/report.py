"""The breakdown of a step (NeurIPS version of arXiv:1811.06965, Table 4), part by part.

The pie bears neither model nor K nor M. The paper's text says two partitions; M=16 is inferred from
the pie's own bubble, so that row is fitted and proves nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.breakdown.runs import ABOUT, MODELLED, NAME, K, M
from repro.claims.all_claims import SHARE, cell_id, verdicts_on
from repro.claims.claim import Evidence, Fidelity
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.paper import theory
from repro.paper.numbers import breakdown
from repro.report import style
from repro.report.compare import beside_paper, fits
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import Form, framed, or_status, with_parts
from repro.report.table import Table

LONG_NAMES = style.PART_NAMES | {"imbalance": "load imbalance", "update": "weight update"}
PIE = {slice_.part: slice_.percent / 100 for slice_ in breakdown()}
_ORDER = ["computation", "recompute", "imbalance", "bubble", "setup", "update", "transfer"]
# The pipeline of equal stages that recomputes early: its step is 4M + 3(K-1) forwards long.
_STEP = theory.step_time(K, M, "early")
ARITHMETIC = {
    "computation": 3 * M / _STEP,
    "recompute": M / _STEP,
    "bubble": theory.bubble(K, M, "early"),
}
SHOWN = Shown(
    NAME,
    "part | quoted pie | ideal arithmetic | measured AmoebaNet-D | measured Transformer | "
    "simulated AmoebaNet-D | verdict",
)


def shares(results: Results) -> Frame:
    """A line for each run with a column for each part's share of K x step."""
    frame = with_parts(runs_frame(results, NAME, K=K))
    for part in _ORDER:
        frame[part] = or_status(frame, part)
    sizes = frame["model"].map(lambda model: MODELLED[model]["paper"])
    frame["full_size"] = frame["model_args"] == sizes
    names = frame["model"].map(style.model_name)
    alike = frame.duplicated(["model", "fidelity", "M"], keep=False)
    frame["name"] = names.where(~alike, names + " (" + frame["where"] + ")")
    order = frame["fidelity"].map([*style.MARKERS].index)
    return frame.assign(order=order).sort_values(["order", "name"])


def tables(results: Results) -> list[Table]:
    """One line a part: quoted, each run's share, and how near a full-size simulation is."""
    runs = select(shares(results), M=M)
    table = pd.DataFrame({"part": [LONG_NAMES.get(part, part) for part in _ORDER]}, index=_ORDER)
    table["quoted pie"] = pd.Series(PIE)
    table["ideal arithmetic"] = pd.Series(ARITHMETIC)
    for name, line in runs.set_index(runs["fidelity"] + " " + runs["name"]).iterrows():
        table[name] = line[_ORDER]
    forms: dict[str, Form] = dict.fromkeys(table.columns, ".1%")
    for _, line in select(runs, fidelity="simulated", full_size=True, done=True).iterrows():
        name = f"simulated against quoted {line['name']}"
        table[name] = line[_ORDER].astype(float) - table["quoted pie"]
        forms[name] = lambda share: f"{100 * share:+.1f} points"
    verdicts = verdicts_on([cell_id(NAME, part) for part in PIE], evidence(results))
    table["verdict"] = pd.Series(verdicts, PIE)
    return [framed(results, NAME, table, ABOUT, forms=forms, K=K, M=M, tolerance=SHARE)]


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> ours: AmoebaNet-D at the paper's size, in percent of K x step.

    The paper prints no M, so other M stand beside the inferred one. An emulated step has no set-up
    by design, so its parts are not those of the pie.
    """
    frame = select(shares(results), model="amoebanet-d", full_size=True, done=True)
    # A simulation that is counted not to fit its device shows nothing.
    frame = frame.loc[frame["run"].map(fits).astype(bool)]
    for fidelity, lines in select(frame, fidelity=["measured", "simulated"]).groupby("fidelity"):
        by_m = {line["M"]: line for line in lines.to_dict("records")}
        if M in by_m:
            for part in PIE:
                yield cell_id(NAME, part), _evidence(by_m, fidelity, part)
            for name in ("23 %", "a third"):
                yield cell_id(NAME, "recompute", name), _evidence(by_m, fidelity, "recompute")
            overhead = cell_id(NAME, "recompute", "a quarter")
            yield overhead, _evidence(by_m, fidelity, "recompute", over="computation")


def _evidence(by_m: Mapping[int, Any], fidelity: Fidelity, part: str, over: str = "") -> Evidence:
    values = {m: 100 * line[part] / (line[over] if over else 1) for m, line in by_m.items()}
    ours = values.pop(M)
    others = {f"M={m}": [value] for m, value in values.items()}
    about: dict[str, Any] = {"papers_size": True, "setting": f"M={M}", "others": others}
    return Evidence(ours, fidelity, (by_m[M]["id"],), **about)


def figures(results: Results) -> Iterator[Picture]:
    yield "parts", figure(results), {"K": K, "M": M}


def figure(results: Results) -> Figure | None:
    runs = select(shares(results), M=M, done=True).dropna(subset=_ORDER)
    if not len(runs):
        return None
    bars = []
    if beside_paper(results, NAME):
        bars.append(("quoted: NeurIPS Table 4", {part: 100 * PIE[part] for part in PIE}))
    for line in runs.to_dict("records"):
        size = "" if line["full_size"] else f", {line['scale']} size"
        percents = drawable({part: 100 * line[part] for part in _ORDER})
        bars.append((f"{line['fidelity']}{size}: {line['name']}", percents))
    drawn, ((axes,),) = style.grid(1, 1, 0.9 + 0.34 * len(bars))
    stack(axes, bars)
    axes.set(xlabel="share of K x step time (%)", title=f"K={K}, M={M}")
    style.legend_below(drawn, axes)
    return drawn


def drawable(parts: dict[str, float]) -> dict[str, float]:
    """The same shares with none below 0: what an unequal cut shortens is taken off the bubble."""
    positive = {part: max(0.0, share) for part, share in parts.items()}
    positive["bubble"] += sum(min(0.0, share) for share in parts.values())
    return positive


def stack(axes: Axes, bars: list[tuple[str, dict[str, float]]]) -> None:
    """One horizontal bar of parts in percent for each (name, parts), the first on top."""
    left = [0.0] * len(bars)
    for part, colour in style.PARTS.items():
        shares = [parts.get(part, 0.0) for _, parts in bars]
        drawn = axes.barh(range(len(bars)), shares, left=left, **style.part_look(part))
        # A narrow part has no room for its number.
        numbers = [f"{share:.0f}" if share >= 4 else "" for share in shares]
        look = {"fontsize": 8.5, "color": style.ink(colour)}
        texts = axes.bar_label(drawn, numbers, label_type="center", **look)
        if style.part_look(part)["hatch"]:
            for text in texts:
                text.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 1})
        left = [before + share for before, share in zip(left, shares, strict=True)]
    style.rows_of_names(axes, [name for name, _ in bars])
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
