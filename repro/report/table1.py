"""Table 1: the largest model that fits, quoted beside counted at the same size and measured small.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from typing import TYPE_CHECKING, Any

from repro.paper import Size, table1, table1_claims, torchgpipe
from repro.report.compare import rows_of
from repro.report.fits import (
    ENOUGH,
    MODELS,
    NAME,
    Found,
    activations,
    amount,
    found,
    heading,
    lasting,
    only,
    short,
    swapped,
    variant,
)
from repro.report.laws import laws
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, number, percent
from repro.report.table1_why import differences

if TYPE_CHECKING:
    from repro.harness.results import Results


def tables(results: "Results") -> list[Table]:
    """The tables of the experiment; none if it was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    made = [main(results), why(results), printed(results), by_m(results), here(results), laws(results)]
    return [table for table in made if table is not None]


def main(results: "Results") -> Table:
    """Table 1, one line a column of the paper's, and those that only the small scale has."""
    from pandas import DataFrame, MultiIndex

    fits = found(results)
    lines = [_line(size, fits) for size in _columns(fits)]
    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    used = only(fits, lambda fit: not fit.naive)
    note = (
        f"Counted: the real stages and schedule on fake tensors of float32, plain attention, M={used and used.spec.M} "
        "(not printed, so inferred; the table below has others), Naive-1 without GPipe. 12 bytes each: weights, "
        "gradients and RMSProp's mean square. Peak activations: everything else, summed over accelerators. Quoted, "
        "corrected: with the Transformer's two Naive-1 memory cells put in each other's place. Measured, small: "
        "scaled-down models, trained within a limit for each stage's process; only their scale-up compares. Scale-up: "
        "parameters over Naive-1's, or over Pipeline-1's."
    )
    title = "Table 1 (v5 and NeurIPS): the largest model that fits, on 8 GB (AmoebaNet-D) and 16 GiB (Transformer) each"
    return Table("table1", title, note, shown, experiment=NAME)


def _columns(fits: list[Found]) -> list[tuple[str, str, int, Size | None]]:
    """(model, column, K, the paper's cell) of every line, in the order of K."""
    places: dict[tuple[str, int, str], Size | None] = {
        (size.model, size.accelerators, size.name): size for size in table1()
    }
    for fit in fits:
        if fit.spec.fidelity == "measured":
            places.setdefault((fit.spec.model, fit.spec.K, fit.column), None)
    order = sorted(places, key=lambda place: (MODELS.index(place[0]), place[1], place[2]))
    return [(model, name, K, places[model, K, name]) for model, K, name in order]


def _line(place: tuple[str, str, int, Size | None], fits: list[Found]) -> dict[tuple[str, str], Any]:
    model, name, _, size = place
    searched = [fit for fit in fits if fit.spec.model == model and not fit.given]
    full = [fit for fit in searched if not fit.spec.model_args]
    counted = only(full, lambda fit: fit.column == name) if size else None
    own = [fit for fit in searched if fit.spec.fidelity == "measured"]
    small = only(own, lambda fit: fit.column == name)
    best = counted.best if counted else None
    line: dict[tuple[str, str], Any] = {("", "model"): model_name(model), ("", "column"): name}
    line["largest", "quoted"] = _size(size)
    line["largest", "counted"] = _largest(counted) if size else EMPTY
    line["largest", "measured, small"] = _largest(small)
    line["parameters", "quoted"] = _printed(size)
    line["parameters", "counted"] = short(best["parameters"]) if best else EMPTY
    line["12 bytes each", "quoted"] = f"{size.parameter_memory_gb:g}" if size else EMPTY
    line["12 bytes each", "counted"] = amount(model, 12 * best["parameters"]) if best else EMPTY
    line["peak activations", "quoted"] = f"{size.peak_activation_gb:g}" if size else EMPTY
    line["peak activations", "counted"] = amount(model, activations(best)) if best else EMPTY
    ratios = _ratios(size)
    line["activations / parameters", "quoted"] = number(ratios[0])
    line["activations / parameters", "quoted, corrected"] = number(ratios[1])
    line["activations / parameters", "counted"] = number(activations(best) / lasting(best)) if best else EMPTY
    for words, base in (("scale-up", "Naive-1"), ("over Pipeline-1", "Pipeline-1")):
        line[words, "quoted"] = _claim(size) if base == "Naive-1" else _quoted_times(size, base)
        line[words, "counted"] = _times(counted, only(full, lambda fit, base=base: fit.column == base))
        line[words, "measured, small"] = _times(small, only(own, lambda fit, base=base: fit.column == base))
    return line


def _size(size: Size | None) -> str:
    if size is None:
        return EMPTY
    return f"L={size.L}" if size.D is None else f"({size.L}, {size.D})"


def _printed(size: Size | None) -> str:
    """With the digits that the paper prints."""
    if size is None:
        return EMPTY
    return f"{size.parameters / 1e9:g}B" if size.parameters >= 1e9 else f"{size.parameters / 1e6:g}M"


def _ratios(size: Size | None) -> tuple[float | None, float | None]:
    """Activations over parameters as printed, and with swapped cells put right."""
    if size is None:
        return None, None
    ratio = size.peak_activation_gb / size.parameter_memory_gb
    return ratio, 1 / ratio if swapped(size) else ratio


def _claim(size: Size | None) -> str:
    """What the text says, else the ratio of the printed parameters."""
    if size is None:
        return EMPTY
    said = [c for c in table1_claims() if (c.model, c.accelerators) == (size.model, size.accelerators)]
    return f"{said[0].times:g}x (text)" if said and size.name != "Naive-1" else _quoted_times(size, "Naive-1")


def _quoted_times(size: Size | None, base: str) -> str:
    if size is None:
        return EMPTY
    under = next(one for one in table1() if (one.model, one.name) == (size.model, base))
    return f"{size.parameters / under.parameters:.1f}x"


def _largest(fit: Found | None) -> str:
    """The size, or what the smallest one takes where none fits."""
    if fit is None:
        return NOT_RUN
    if fit.best is None:
        assert fit.above is not None
        assert fit.spec.memory is not None
        return f"none: {fit.size(fit.above)} takes {fit.above['fullest'] / fit.spec.memory:.1f} times the memory"
    return fit.size(fit.best)


def _times(fit: Found | None, base: Found | None) -> str:
    if fit is None or fit.best is None or base is None or base.best is None:
        return EMPTY
    return f"{fit.best['parameters'] / base.best['parameters']:.1f}x"


def why(results: "Results") -> Table | None:
    """Every cell that differs, each with one sentence computed from the counts."""
    from pandas import DataFrame

    lines = differences(found(results))
    if not lines:
        return None
    note = "One line for each printed cell that counting does not give, or that the paper itself contradicts."
    return Table("table1_why", "Table 1: where counted differs from quoted", note, DataFrame(lines), experiment=NAME)


def printed(results: "Results") -> Table | None:
    """The paper's own sizes: what they take by our count, beside torchgpipe's."""
    from pandas import DataFrame

    lines = [_printed_line(fit) for fit in found(results) if fit.given and fit.spec.memory != ENOUGH]
    if not lines:
        return None
    note = (
        "Each of the paper's sizes counted at N=128 (AmoebaNet-D) or 32 (Transformer). Peak activations: all stages "
        "together. torchgpipe's are of its own cell, M=128, cut as it published, from its allocator's cache on Tesla "
        "P40s, its model memory 12 bytes a parameter."
    )
    return Table("table1_printed", "The paper's sizes, counted", note, DataFrame(lines), experiment=NAME)


def _printed_line(fit: Found) -> dict[str, Any]:
    cut, model = fit.one, fit.spec.model
    size = next((s for s in table1() if (s.model, s.name) == (model, fit.column)), None)
    peers = {peer.name.split()[0]: peer for peer in torchgpipe("amoebanetd_memory")} if model != "transformer" else {}
    peer = peers.get(f"pipeline-{fit.spec.K}") if fit.spec.M == fit.spec.N else None
    theirs = peer.values["peak_activation_gib"] if peer else None
    shares = [stage["total"] for stage in cut["stages"]]
    activation = f"{size.peak_activation_gb:g}" if size else EMPTY
    assert fit.spec.memory is not None
    return heading(fit) | {
        "size": fit.size(cut),
        "M": fit.spec.M,
        "parameters, quoted": _printed(size),
        "counted": f"{cut['parameters']:,}",
        "peak activations, quoted": activation,
        "peak activations, counted": amount(model, activations(cut)),
        "torchgpipe, quoted": f"{theirs:g} GiB" if theirs is not None else EMPTY,
        "fullest stage, counted": amount(model, max(shares)),
        "emptiest": amount(model, min(shares)),
        "of the memory": percent(max(shares) / fit.spec.memory),
    }


def by_m(results: "Results") -> Table | None:
    """How the largest model depends on what the paper does not print: M, attention, and N of Naive-1."""
    from pandas import DataFrame

    lines: dict[tuple[str, str], dict[str, str]] = {}
    for fit in found(results, fidelity="counted"):
        if not fit.given and not set(fit.spec.model_args) - {"attention"}:
            key = (fit.spec.model, variant(fit))
            cell = _largest(fit) + (f": {short(fit.best['parameters'])}" if fit.best else "")
            lines.setdefault(key, {})[f"K={fit.spec.K}"] = cell
    if not lines:
        return None
    rows = [{"model": model_name(model), "setting": words, **cells} for (model, words), cells in lines.items()]
    note = "Counted on 8 GB (AmoebaNet-D) and 16 GiB (Transformer) a stage. All but Naive-1 with re-materialization."
    title = "The largest model against what the paper does not print"
    return Table("table1_m", title, note, DataFrame(rows).fillna(EMPTY), experiment=NAME)


def here(results: "Results") -> Table | None:
    """What really trained within the limit, and what did not."""
    from pandas import DataFrame

    fits = found(results, fidelity="measured")
    if not fits:
        return None
    naives = {(f.spec.model, f.row["scale"]): f for f in fits if f.naive}
    lines = [_here_line(fit, naives.get((fit.spec.model, fit.row["scale"]))) for fit in fits]
    note = (
        "Each size was trained for two steps by K processes, each within the limit; the largest one trained, the next "
        "one ran out of memory on the stage that is named. On a CPU the limit is on bytes of live tensors, on a GPU on "
        "the allocator. Measured over counted: peak bytes of the fullest stage."
    )
    return Table("table1_here", "Table 1 measured small", note, DataFrame(lines), experiment=NAME)


def _here_line(fit: Found, naive: Found | None) -> dict[str, Any]:
    limit = fit.spec.memory or 0
    line: dict[str, Any] = heading(fit) | {"scale": fit.row["scale"], "limit": f"{limit / 2**20:,.0f} MiB"}
    line |= {"N": fit.spec.N, "M": fit.spec.M, "counted": fit.size(fit.counted) if fit.counted else "none"}
    line |= {"measured": _largest(fit), "scale-up": _times(fit, naive)}
    ran = next((t for t in fit.tried if fit.best and t["args"] == fit.best["args"]), None)
    over = next((t for t in fit.tried if t["status"] == "oom" and fit.above and t["args"] == fit.above["args"]), None)
    line["measured peaks, MiB"] = " ".join(f"{peak / 2**20:.1f}" for peak in ran["peak_bytes"]) if ran else EMPTY
    line["measured over counted"] = number(max(ran["peak_bytes"]) / max(ran["counted_bytes"]), 3) if ran else EMPTY
    line["next size"] = f"{fit.size(fit.above)}: {over['reason'].split(':')[0]}" if over and fit.above else EMPTY
    return line
