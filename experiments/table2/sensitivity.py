"""How much Table 2's predictions depend on each figure of the device: every one halved, then doubled.

A ratio is over K=2, M=1 with the same figure changed alike, as a device that is slower or faster
than its profile says would give it. The seconds were recorded with the runs, each with its own best
cut.
"""

from typing import TYPE_CHECKING, Any

from experiments.table2.recorded import (
    MODELS,
    NAME,
    Protocol,
    another_size,
    protocol,
    quoted,
    warning,
)
from repro.harness.schema import Dependence
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, framed, number

if TYPE_CHECKING:
    from repro.harness.results import Results

CELLS = ((8, 32), (8, 4), (2, 32))
BASE = (2, 1)
FACTORS = ("halved", "doubled")
# A device's figure -> the report's words.
FIGURES = {
    "matmul_flops": "rate of matrix multiplication",
    "other_flops": "rate of other operators",
    "bytes_per_second": "memory bandwidth",
    "launch_s": "launch of an operator",
    "link_bytes_per_second": "link bandwidth",
    "link_latency_s": "link latency",
}
Cell = tuple[int, int]  # K, M
Line = dict[tuple[str, str], Any]
Ratios = dict[Cell, dict[str, float]]  # cell -> word, such as those of `FACTORS` -> its ratio


def tables(results: "Results") -> list[Table]:
    """One line a model and figure; nothing before runs that recorded it."""
    owns = [protocol(results, model, "controlled") for model in MODELS]
    found = [(own, changed) for own in owns if own and (changed := ratios(own))]
    if not found:
        return []
    pairs = [pair for own, changed in found for pair in _lines(own, changed)]
    owns = [own for own, _ in found]
    inside = [
        _inside(own, changed, cell) for own, changed in found if own.papers_size for cell in CELLS
    ]
    lie = (
        f"{sum(inside)} of {len(inside)} quoted cells lie within the widest range. "
        if inside
        else ""
    )
    note = warning(owns) + (
        "Throughput over that of K=2, M=1, all simulated at one N. Halved / doubled: the same "
        "with that figure of the device, in the base too, every stage cut anew; of launch and "
        "latency half is the faster, of rates double. Rests on: by the profile's own source "
        "texts; fraction assumed: what the maker promises is sourced, the fraction of it that "
        "programs attain is not. Widest range: of single figures; two that are wrong together "
        f"could move more. A factor of two is no error estimate. Nothing is fitted. {lie}About: "
        f"{'; '.join(own.about for own in owns)}."
    )
    size = another_size(owns)
    title = (
        f"How far Table 2's predictions{', ' * bool(size)}{size}{',' * bool(size)} depend on each "
        "figure of the device"
    )
    return [framed("table2_sensitivity", title, note, pairs, NAME)]


def ratios(own: Protocol) -> dict[str, Ratios]:
    """Figure -> ratios over the base with the same change; without those that a run did not record."""
    steps = {cell: _recorded(own, cell) for cell in (*CELLS, BASE)}
    names = [name for name in FIGURES if all(name in found for found in steps.values())]
    return {
        name: {
            cell: {
                word: getattr(steps[BASE][name], word) / getattr(steps[cell][name], word)
                for word in FACTORS
            }
            for cell in CELLS
        }
        for name in names
    }


def widest(own: Protocol, changed: dict[str, Ratios], cell: Cell) -> tuple[float, float, str]:
    """The lowest and the highest ratio that one figure alone can give, and the figure that moves it most."""
    spans = {name: [own.ratio(*cell), *some[cell].values()] for name, some in changed.items()}
    values = [value for some in spans.values() for value in some]
    return (
        min(values),
        max(values),
        max(spans, key=lambda name: max(spans[name]) - min(spans[name])),
    )


def _recorded(own: Protocol, cell: Cell) -> dict[str, Dependence]:
    modelled = own.modelled(*cell)
    return modelled.sensitivity if modelled else {}


def _inside(own: Protocol, changed: dict[str, Ratios], cell: Cell) -> bool:
    low, high, _ = widest(own, changed, cell)
    return low <= quoted(own.model, *cell) <= high


def _lines(own: Protocol, changed: dict[str, Ratios]) -> list[tuple[Line, Line]]:
    """The prediction as it is, one line a figure, and the widest range, each as shown and as numbers."""
    bases = _recorded(own, BASE)
    lines = [
        _line(own, "as it is", EMPTY, {cell: {"as it is": own.ratio(*cell)} for cell in CELLS})
    ]
    lines += [_line(own, FIGURES[name], bases[name].basis, some) for name, some in changed.items()]
    ranges = {cell: widest(own, changed, cell) for cell in CELLS}
    ends: Ratios = {
        cell: {"lowest": low, "highest": high} for cell, (low, high, _) in ranges.items()
    }
    shown, data = _line(own, "widest range", EMPTY, ends)
    words = {
        cell: f"{number(low)} to {number(high)}: {FIGURES[name]}"
        for cell, (low, high, name) in ranges.items()
    }
    shown |= {("", _name(cell)): text for cell, text in words.items()}
    return [*lines, (shown, data)]


def _line(own: Protocol, figure: str, basis: str, values: Ratios) -> tuple[Line, Line]:
    head: Line = {
        ("", "model"): model_name(own.model),
        ("", "figure"): figure,
        ("", "rests on"): basis,
    }
    shown = {
        ("", _name(cell)): " / ".join(map(number, some.values())) for cell, some in values.items()
    }
    data = {
        (_name(cell), word): value for cell, some in values.items() for word, value in some.items()
    }
    return head | shown, head | data


def _name(cell: Cell) -> str:
    return f"K={cell[0]}, M={cell[1]}"
