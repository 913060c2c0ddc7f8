"""Table 1: the printed sizes and the largest that fit, counted at the paper's size.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.experiments.table1 import runs as plan
from repro.experiments.table1.runs import ABOUT, NAME, size_of
from repro.harness.results import GIB, Results, Run
from repro.harness.schema import CutModel, Fitted
from repro.harness.spec import UNLIMITED_MEMORY, RunSpec
from repro.harness.text import EMPTY, ranged, size
from repro.paper.numbers import Quoted, table1, torchgpipe
from repro.report import style
from repro.report.claim import Claim, Estimate, number
from repro.report.compare import rows_of
from repro.report.figures import Picture
from repro.report.framed import estimated, framed
from repro.report.table import Cell, Table

UNITS = {"amoebanet-d": ("GB", 10**9), "transformer": ("GiB", 2**30)}  # of memory in Table 1
# Half a unit of the last digit is what rounding takes, and the paper cuts digits off too: it prints
# 542M for 542.7M.
DIGITS = 1.5
CELL = 0.10  # share of a printed number by which ours may differ
COUNTED = 1.0  # percent by which counted bytes may differ from those of tensors
REASONS = {  # beside the verdict on a claim
    "parameters of AmoebaNet-D Pipeline-8, (72, 512)": "misprinted beside it: 12 bytes each are "
    "21.6 GB and not 24.62, and 1.8B are 22 times 82M and not 25 times as in section 3",
    "parameters of Transformer Naive-1, L=3": "with Pipeline-1 it gave the constants of its size",
    "parameters of Transformer Pipeline-1, L=13": "with Naive-1 it gave the constants of its size",
    "peak activations of Transformer Naive-1, L=3": "misprinted: swapped with the 11.7 GiB of "
    "parameters, as 12 bytes x 282.2M are 3.15 GiB",
}
OPEN = "other readings"  # of M and of the optimizer's slots
KINDS = {"boundary": "boundary inputs", "messages": "messages, buffers"}
HIGHEST = 20  # GiB of the figure: higher bars are broken, with their number


@dataclass(frozen=True)
class Column:
    """A column of Table 1, and ours with each reading; nothing unless all were counted."""

    paper: Quoted
    sizes: dict[str, CutModel]  # the printed size
    searches: dict[str, Fitted]  # for the largest

    @property
    def size(self) -> str:
        return _size_text(size_of(self.paper))

    @property
    def name(self) -> str:
        return f"{style.model_name(self.paper.model)} {self.paper.name}, {self.size}"

    @property
    def parameters(self) -> dict[str, float]:
        """By definition of the model: the paper has none of AmoebaNet-D, and torchgpipe another."""
        ours = {}
        if self.sizes:
            ours["the authors' code"] = float(self.sizes[plan.SHOWN].parameters)
            for row in torchgpipe("amoebanetd_memory"):
                if row.name.endswith(self.size):
                    ours["torchgpipe's code"] = float(row.values["parameters"])
        return ours

    @property
    def activations(self) -> dict[str, float]:
        """All but the 12 bytes of each parameter, over all stages, in `UNITS`.

        With one slot the 12 bytes are weights, gradients and mean square. With two they are
        weights, mean square and momentum, and gradients are activations.
        """
        totals = {}
        for reading, cut in self.sizes.items():
            kinds = ["parameters", "optimizer"] + ["gradients"] * reading.startswith("one slot")
            kept = [stage.total - sum(map(stage.bytes_of, kinds)) for stage in cut.stages]
            totals[reading] = sum(kept) / UNITS[self.paper.model][1]
        return totals

    @property
    def most_parameters(self) -> dict[str, float]:
        return {
            reading: float(fit.largest.parameters) if fit.largest else 0.0
            for reading, fit in self.searches.items()
        }


def tables(results: Results) -> list[Table]:
    runs = rows_of(results, NAME)
    lines = []
    for column in _columns(results):
        line = {"column": column.name, "parameters paper": column.paper.parameters}
        line["parameters counted"] = _spread(column.parameters)[0]
        line["activations (GB or GiB) paper"] = column.paper.peak_activation_gb
        line |= estimated("activations (GB or GiB) counted", _spread(column.activations))
        line |= estimated("largest counted", _spread(column.most_parameters))
        line["largest counted"] = _with_size(column)
        line["trained on a GPU"] = _on_a_gpu(runs, column.paper)
        lines.append(line)
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


def claims(results: Results) -> Iterator[Claim]:
    """Three of each column, those of the largest model first, and one about counting."""
    for column in reversed(_columns(results)):
        paper, of_transformer = column.paper, column.paper.model == "transformer"
        yield _claim(
            "Table 1, sizes",
            f"parameters of {column.name}",
            column.parameters,
            paper.parameters,
            DIGITS * paper.parameters_digit,
            fitted=of_transformer and paper.accelerators == 1,
        )
        yield _claim(
            "Table 1, memory",
            f"peak activations of {column.name}",
            column.activations,
            paper.peak_activation_gb,
            CELL * paper.peak_activation_gb,
            unit=UNITS[paper.model][0],
            fitted=of_transformer,  # by the reading that is shown
        )
        yield _claim(
            "Table 1, largest",
            f"parameters of the largest that fits, {column.name}",
            column.most_parameters,
            paper.parameters,
            CELL * paper.parameters,
        )
    yield _allocator_claim(results)


def figures(results: Results) -> Iterator[Picture]:
    columns = [column for column in _columns(results) if column.sizes]
    if columns:
        yield "kinds", _kinds(columns), {}


def _columns(results: Results) -> list[Column]:
    runs = rows_of(results, NAME, fidelity="counted", status="done")
    columns = []
    for paper in table1():
        printed = _fits_of(runs, plan.counted(paper, size_of(paper)))
        # A size that does not fit is the next one up.
        sizes = {name: cut for name, fit in printed.items() if (cut := fit.largest or fit.next)}
        columns.append(Column(paper, sizes, _fits_of(runs, plan.counted(paper, {}))))
    return columns


def _fits_of(runs: Sequence[Run], specs: Mapping[str, RunSpec]) -> dict[str, Fitted]:
    """What was found for each spec; nothing unless all were run."""
    fits = {}
    for name, spec in specs.items():
        found = [Fitted.model_validate(run.fit) for run in runs if run.spec == spec]
        if not found:
            return {}
        fits[name] = found[0]
    return fits


def _on_a_gpu(runs: Sequence[Run], paper: Quoted) -> str:
    """How training the printed size went."""
    trained, words = plan.trained(paper), []
    for run in runs:
        if run.spec == trained and run.status.startswith("oom"):
            words.append("out of memory")
        if run.spec == trained and run.done:
            words.append("out of memory" if run.size == "nothing fits" else "trains")
    return ", ".join(dict.fromkeys(words)) or EMPTY


def _claim(
    exhibit: str, what: str, ours: Mapping[str, float], paper: float, off: float, **more: Any
) -> Claim:
    """One that was counted at the paper's size, with each setting that the paper leaves open."""
    why = [REASONS[what]] if what in REASONS else []
    agree = [setting for setting, value in ours.items() if abs(value - paper) <= off]
    if 0 < len(agree) < len(ours):
        why.append(f"agrees only with {' and with '.join(agree)}")
    estimates = [number(value) for value in ours.values()]
    text = "; ".join(why)
    return Claim(exhibit, what, estimates, "counted", paper, off, why=text, others=OPEN, **more)


def _allocator_claim(results: Results) -> Claim:
    """Of all stages that were trained the one whose bytes differ most from the counted ones."""
    done = rows_of(results, NAME, fidelity="measured", status="done")
    printed = [plan.trained(paper) for paper in table1()]
    on_gpu = _off([run for run in done if run.spec in printed])
    on_cpu = _off([run for run in done if run.spec.memory == UNLIMITED_MEMORY])
    return Claim(
        "Table 1, counted bytes",
        "error of our byte counts, at worst",
        [number(max(off)) for off in (on_gpu, on_cpu) if off],
        "measured",
        most=(COUNTED,),
        unit="%",
        why=f"our limit: {COUNTED:g} %; {len(on_gpu)} stages of printed sizes on a GPU, "
        f"{len(on_cpu)} small ones on a CPU",
    )


def _off(runs: Sequence[Run]) -> list[float]:
    """Percent by which the counted bytes of each stage differ from those of its tensors."""
    found = []
    for tried in (tried for run in runs for tried in Fitted.model_validate(run.fit).tried):
        # On a CPU peak memory is that of tensors alone.
        tensors = [each[0] for each in tried.allocator_bytes or ()] or tried.peak_bytes or []
        pairs = zip(tried.counted_bytes, tensors, strict=False)  # no bytes of one that did not fit
        found += [100 * abs(counted / real - 1) for counted, real in pairs]
    return found


def _with_size(column: Column) -> Cell:
    """`L=118, 6.07B (4.86B to 7.69B)`."""
    value, low, high = _spread(column.most_parameters)
    shown = next(iter(column.searches.values()), None)
    if shown is None or shown.largest is None:
        return Cell(value, "none" if shown else EMPTY)
    return Cell(value, f"{_size_text(shown.largest.args)}, {ranged(value, low, high)}")


def _spread(values: Mapping[str, float]) -> Estimate:
    """With the first setting, which is shown, and the least and the most of several."""
    if len(values) < 2:
        return number(next(iter(values.values()), nan))
    return next(iter(values.values())), min(values.values()), max(values.values())


def _size_text(args: Mapping[str, Any]) -> str:
    return f"({args['L']}, {args['D']})" if "D" in args else f"L={args['L']:,}"


def _kinds(columns: Sequence[Column]) -> Figure:
    """The memory of the fullest stage of each printed size, by kind; a panel for each model."""
    models = [*dict.fromkeys(column.paper.model for column in columns)]
    figure, (panels,) = style.grid(1, len(models), 3.2)
    for axes, model in zip(panels, models, strict=True):
        _stacked(axes, model, [column for column in columns if column.paper.model == model])
    style.legend_below(figure, panels[0])
    return figure


def _stacked(axes: Axes, model: str, columns: Sequence[Column]) -> None:
    fullest = [
        max(column.sizes[plan.SHOWN].stages, key=lambda stage: stage.total) for column in columns
    ]
    places, filled = range(len(columns)), [0.0] * len(columns)
    for kind, colour in style.MEMORY.items():
        heights = [stage.bytes_of(kind) / GIB for stage in fullest]
        label = KINDS.get(kind, kind) if kind != "buffers" else None  # of the colour of messages
        axes.bar(places, heights, 0.8, filled, color=colour, label=label)
        filled = [below + height for below, height in zip(filled, heights, strict=True)]
    for place, height in zip(places, filled, strict=True):
        if height > HIGHEST:
            axes.text(place, 0.98 * HIGHEST, size(GIB * height), fontsize=8, ha="center", va="top")
            gap = [0.85 * HIGHEST, 0.89 * HIGHEST]
            axes.plot([place - 0.45, place + 0.45], gap, color="white", linewidth=4)
    memory = plan.MEMORY[model]
    axes.axhline(memory / GIB, color=style.THEORY, linewidth=1, linestyle="--")
    axes.set(ylim=(0, HIGHEST), yticks=range(0, HIGHEST + 1, 4))
    axes.set_ylabel("memory at the peak (GiB), counted")
    axes.set_title(f"{style.model_name(model)}: {size(memory)} each, N={plan.N_OF[model]}")
    labels = [f"{column.paper.name}\n{column.size}".replace("ipeline", "") for column in columns]
    axes.set_xticks([*places], labels)
    axes.grid(axis="x", visible=False)
