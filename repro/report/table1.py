"""Table 1: the largest model that fits, quoted beside counted at the same size and measured small.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from typing import TYPE_CHECKING, Any

from repro.harness.spec import ENOUGH
from repro.paper import Size, table1, table1_claims, torchgpipe
from repro.report.compare import rows_of
from repro.report.fits import (
    BATCH,
    MODELS,
    NAME,
    Found,
    M,
    activations,
    amount,
    found,
    given,
    heading,
    only,
    searched,
    short,
    swapped,
    variant,
)
from repro.report.laws import laws
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, number, percent
from repro.report.table1_why import differences

if TYPE_CHECKING:
    from pandas import DataFrame

    from repro.harness.results import Results


def tables(results: "Results") -> list[Table]:
    """The tables of the experiment; none if it was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    made = [
        main(results),
        memory(results),
        why(results),
        printed(results),
        by_m(results),
        here(results),
        checked(results),
        laws(results),
    ]
    return [table for table in made if table is not None]


def main(results: "Results") -> Table:
    """Table 1, one line a column of the paper's, and those that only the small scale has."""
    fits = found(results)
    note = (
        "Counted: the real stages and schedule on fake tensors of float32, plain attention, N=128 (AmoebaNet-D) or 32, "
        f"M={M} (not printed, so inferred; a table below has others), Naive-1 without GPipe; where none fits, the part "
        "of the memory that the smallest takes. Measured, small: scaled-down models, trained within a limit for each "
        "stage's process; only their ratios compare. Times: parameters over those of that column; (text) is what the "
        f"paper says, other quoted ratios are of its cells.{''.join(_naive(model, fits) for model in MODELS)}"
    )
    title = "Table 1 (v5 and NeurIPS): the largest model that fits, on 8 GB (AmoebaNet-D) and 16 GiB (Transformer) each"
    return Table("table1", title, note, _framed([_line(place, fits) for place in _columns(fits)]), experiment=NAME)


def _naive(model: str, fits: list[Found]) -> str:
    """Why the counted factors over Naive-1 are so much larger than the paper's."""
    most = only(searched(model, fits)[::-1], lambda fit: not fit.naive)
    less = only([fit for fit in fits if fit.spec.model == model], lambda fit: fit.naive and BATCH[model] > fit.spec.N)
    if not (most and most.best and less and less.best) or less.spec.fidelity != "counted":
        return ""
    times = most.best["parameters"] / less.best["parameters"]
    return (
        f" Naive-1 of {model_name(model)} hardly fits at N={BATCH[model]} in float32; over one of N={less.spec.N}, "
        f"{less.size(less.best)}, {most.column} has {times:.1f} times the parameters."
    )


def memory(results: "Results") -> Table:
    """Table 1's memory cells, of the paper's own sizes."""
    fits = found(results)
    note = (
        f"The paper's own sizes, M={M}; sums over accelerators. 12 bytes each: weights, gradients and RMSProp's mean "
        "square of every parameter. Peak activations: everything else at the peak of each stage. Activations / "
        "parameters: over 12 bytes each. Quoted, corrected: the Transformer's two Naive-1 cells put in each other's "
        "place."
    )
    lines = [_memory_line(place, fits) for place in _columns(fits) if place[3] is not None]
    title = "Table 1 (v5 and NeurIPS): what the memory is taken by, GB (AmoebaNet-D) and GiB (Transformer)"
    return Table("table1_memory", title, note, _framed(lines), experiment=NAME)


def _framed(lines: list[dict[tuple[str, str], Any]]) -> "DataFrame":
    from pandas import DataFrame, MultiIndex

    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    return shown


def _columns(fits: list[Found]) -> list[tuple[str, str, int, Size | None]]:
    """(model, column, K, the paper's cell) of every line, in the order of K."""
    places: dict[tuple[str, int, str], Size | None] = {
        (size.model, size.accelerators, size.name): size for size in table1()
    }
    for fit in fits:
        if fit.spec.fidelity == "measured" and not fit.given:
            places.setdefault((fit.spec.model, fit.spec.K, fit.column), None)
    order = sorted(places, key=lambda place: (MODELS.index(place[0]), place[1], place[2]))
    return [(model, name, K, places[model, K, name]) for model, K, name in order]


def _line(place: tuple[str, str, int, Size | None], fits: list[Found]) -> dict[tuple[str, str], Any]:
    model, name, _, size = place
    full = searched(model, fits)
    counted = only(full, lambda fit: fit.column == name) if size else None
    own = [fit for fit in fits if fit.spec.model == model and fit.spec.fidelity == "measured" and not fit.given]
    own = [fit for fit in own if (fit.spec.memory or 0) < 2**30]
    small = only(own, lambda fit: fit.column == name)
    line: dict[tuple[str, str], Any] = {("", "model"): model_name(model), ("", "column"): name}
    line["largest", "quoted"] = _size(size)
    line["largest", "counted"] = _largest(counted) if size else EMPTY
    line["largest", "measured, small"] = EMPTY if own and small is None else _largest(small)
    line["parameters", "quoted"] = _printed(size)
    line["parameters", "counted"] = short(counted.best["parameters"]) if counted and counted.best else EMPTY
    for base in ("Naive-1", "Pipeline-1"):
        words = f"times {base}'s"
        line[words, "quoted"] = _claim(size, base)
        line[words, "counted"] = _times(counted, only(full, lambda fit, base=base: fit.column == base))
        line[words, "measured, small"] = _times(small, only(own, lambda fit, base=base: fit.column == base))
    return line


def _memory_line(place: tuple[str, str, int, Size | None], fits: list[Found]) -> dict[tuple[str, str], Any]:
    model, name, _, size = place
    assert size is not None
    counted = only(given(fits, size), lambda fit: fit.naive or fit.spec.M == M)
    cut = counted.one if counted else None
    ratio = size.peak_activation_gb / size.parameter_memory_gb
    line: dict[tuple[str, str], Any] = {("", "model"): model_name(model), ("", "column"): name}
    line["12 bytes each", "quoted"] = f"{size.parameter_memory_gb:g}"
    line["12 bytes each", "counted"] = amount(model, 12 * cut["parameters"]) if cut else EMPTY
    line["peak activations", "quoted"] = f"{size.peak_activation_gb:g}"
    line["peak activations", "counted"] = amount(model, activations(cut)) if cut else EMPTY
    line["activations / parameters", "quoted"] = number(ratio)
    line["activations / parameters", "quoted, corrected"] = number(1 / ratio if swapped(size) else ratio)
    line["activations / parameters", "counted"] = number(activations(cut) / (12 * cut["parameters"])) if cut else EMPTY
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


def _claim(size: Size | None, base: str) -> str:
    """What the text says, else the ratio of the printed parameters."""
    under = next((one for one in table1() if size and (one.model, one.name) == (size.model, base)), None)
    if size is None or under is None or size.parameters < under.parameters:
        return EMPTY
    said = [c for c in table1_claims() if (c.model, c.accelerators, c.over) == (size.model, size.accelerators, base)]
    if said and size.name != base:
        return f"{said[0].times:g}x (text)"
    return f"{size.parameters / under.parameters:.1f}x"


def _largest(fit: Found | None) -> str:
    """The size, or what the smallest one takes where none fits."""
    if fit is None:
        return NOT_RUN
    if fit.best is None:
        if fit.above is None or not fit.spec.memory:
            return "none"
        return f"none ({fit.size(fit.above)}: {fit.above['fullest'] / fit.spec.memory:.0%})"
    return fit.size(fit.best)


def _times(fit: Found | None, base: Found | None) -> str:
    if fit is None or fit.best is None or base is None or base.best is None:
        return EMPTY
    times = fit.best["parameters"] / base.best["parameters"]
    return f"{times:.1f}x" if times >= 1 else EMPTY


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

    lines = [
        _printed_line(fit) for fit in found(results, fidelity="counted") if fit.given and fit.spec.memory != ENOUGH
    ]
    if not lines:
        return None
    note = (
        "Each of the paper's sizes counted at N=128 (AmoebaNet-D) or 32 (Transformer). Peak activations: all stages "
        "together. torchgpipe's are of its own cell, M=128, cut as it published, from its allocator's cache on Tesla "
        "P40s, which keeps more than tensors take; its model memory is 12 bytes a parameter, "
        "0.91 to 20.62 GiB."
    )
    return Table("table1_printed", "The paper's sizes, counted", note, DataFrame(lines), experiment=NAME)


def _printed_line(fit: Found) -> dict[str, Any]:
    cut, model = fit.one, fit.spec.model
    size = next((s for s in table1() if (s.model, s.name) == (model, fit.column)), None)
    peers = {peer.name.split()[0]: peer for peer in torchgpipe("amoebanetd_memory")} if model != "transformer" else {}
    peer = peers.get(f"pipeline-{fit.spec.K}") if fit.spec.M == fit.spec.N else None
    theirs = peer.values["peak_activation_gib"] if peer else None
    told = "out of memory" if fit.naive and peers else f"{theirs:g} GiB" if theirs is not None else EMPTY
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
        "torchgpipe, quoted": told,
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
    return Table("table1_varied", title, note, DataFrame(rows).fillna(EMPTY), experiment=NAME)


def here(results: "Results") -> Table | None:
    """What really trained within the limit, and what did not."""
    from pandas import DataFrame

    fits = [fit for fit in found(results, fidelity="measured") if not fit.given]
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


def checked(results: "Results") -> Table | None:
    """Counted memory of each stage against what the allocator's own events say."""
    from pandas import DataFrame

    lines = []
    for fit in found(results, fidelity="measured", memory=ENOUGH):
        for tried in fit.tried:
            for j, (count, pair) in enumerate(
                zip(tried["counted_bytes"], tried["allocator_bytes"] or [], strict=False)
            ):
                place = {key: getattr(fit.spec, key) for key in ("K", "M", "checkpoint")}
                sizes = {"counted": count, "measured": pair[0], "kernels' workspace": pair[1] - pair[0]}
                shown = {f"{name}, KiB": f"{size / 1024:,.1f}" for name, size in sizes.items()}
                line = {"model": model_name(fit.spec.model), **place, "stage": j, **shown}
                lines.append(line | {"counted over measured": number(count / pair[0], 4)})
    if not lines:
        return None
    note = (
        "Small models, N=8, trained by K processes. Measured: peak of the bytes that torch's CPU allocator handed out "
        "and took back, from torch.profiler's memory events, and of messages in shared memory; what is handed out and "
        "taken back inside one operator is a kernel's workspace, and is how much higher the peak is with it. Counting "
        "does not see that. What lay there before the step is added by its size. Measured are also 5 KiB of the user's "
        "random state, which the engine puts aside during a step, and which are not counted."
    )
    title = "Counted memory against the allocator's events"
    return Table("table1_check", title, note, DataFrame(lines), experiment=NAME)


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
