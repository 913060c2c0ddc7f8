"""Behind Table 1: the paper's sizes counted, what else was varied, what trained here, counts against an allocator."""

from typing import TYPE_CHECKING, Any

from experiments.table1.fits import (
    NAME,
    Found,
    activations,
    amount,
    as_printed,
    found,
    found_size,
    heading,
    short,
    times,
    variant,
)
from repro.harness.spec import ENOUGH
from repro.paper import table1, torchgpipe
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent, table_of_frames

if TYPE_CHECKING:
    from repro.harness.results import Results


def runs(results: "Results") -> list[Table | None]:
    """All of them, None for what there is nothing of."""
    return [printed(results), by_m(results), here(results), checked(results)]


def printed(results: "Results") -> Table | None:
    """The paper's own sizes: what they take by our count, beside torchgpipe's."""
    from pandas import DataFrame

    lines = [
        _printed_line(fit)
        for fit in found(results, fidelity="counted")
        if fit.given and fit.spec.memory != ENOUGH
    ]
    if not lines:
        return None
    theirs = [peer.values["model_memory_gib"] or 0 for peer in torchgpipe("amoebanetd_memory")]
    note = (
        "Each of the paper's sizes counted at N=128 (AmoebaNet-D) or 32 (Transformer). Peak "
        "activations: all stages together. torchgpipe's are of its own cell, M=128, cut as it "
        "published, from its allocator's cache on Tesla P40s, which keeps more than tensors take; "
        f"its model memory is {min(theirs):g} to {max(theirs):g} GiB."
    )
    return table_of_frames(
        "table1_printed", "The paper's sizes, counted", note, DataFrame(lines), experiment=NAME
    )


def _printed_line(fit: Found) -> dict[str, Any]:
    cut, model = fit.one, fit.spec.model
    size = next((s for s in table1() if (s.model, s.name) == (model, fit.column)), None)
    peers = (
        {peer.name.split()[0]: peer for peer in torchgpipe("amoebanetd_memory")}
        if model != "transformer"
        else {}
    )
    peer = peers.get(f"pipeline-{fit.spec.K}") if fit.spec.M == fit.spec.N else None
    theirs = peer.values["peak_activation_gib"] if peer else None
    told = (
        "out of memory"
        if fit.naive and peers
        else f"{theirs:g} GiB"
        if theirs is not None
        else EMPTY
    )
    shares = [stage.total for stage in cut.stages]
    activation = f"{size.peak_activation_gb:g}" if size else EMPTY
    assert fit.spec.memory is not None
    return heading(fit) | {
        "size": fit.size(cut),
        "M": fit.spec.M,
        "parameters, quoted": as_printed(size),
        "counted": f"{cut.parameters:,}",
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
            cell = found_size(fit) + (f": {short(fit.best.parameters)}" if fit.best else "")
            lines.setdefault(key, {})[f"K={fit.spec.K}"] = cell
    if not lines:
        return None
    rows = [
        {"model": model_name(model), "setting": words, **cells}
        for (model, words), cells in lines.items()
    ]
    note = (
        "Counted on 8 GB (AmoebaNet-D) and 16 GiB (Transformer; decimal: 16 GB) a stage, all but "
        "Naive-1 with re-materialization."
    )
    title = "The largest model against what the paper does not print"
    return table_of_frames(
        "table1_varied", title, note, DataFrame(rows).fillna(EMPTY), experiment=NAME
    )


def here(results: "Results") -> Table | None:
    """What really trained within the limit, and what did not."""
    from pandas import DataFrame

    fits = [fit for fit in found(results, fidelity="measured") if not fit.given]
    if not fits:
        return None
    naives = {(f.spec.model, f.row.scale): f for f in fits if f.naive}
    lines = [_here_line(fit, naives.get((fit.spec.model, fit.row.scale))) for fit in fits]
    note = (
        "Each size was trained for two steps by K processes, each within the limit; the largest "
        "one trained, the next one ran out of memory on the stage that is named. On a CPU the "
        "limit is on bytes of live tensors, on a GPU on the allocator. Measured over counted: "
        "peak bytes of the fullest stage."
    )
    return table_of_frames(
        "table1_here", "Table 1 measured small", note, DataFrame(lines), experiment=NAME
    )


def _here_line(fit: Found, naive: Found | None) -> dict[str, Any]:
    limit = fit.spec.memory or 0
    line: dict[str, Any] = heading(fit) | {
        "scale": fit.row.scale,
        "limit": f"{limit / 2**20:,.0f} MiB",
    }
    line |= {
        "N": fit.spec.N,
        "M": fit.spec.M,
        "counted": fit.size(fit.counted) if fit.counted else "none",
    }
    line |= {"measured": found_size(fit), "scale-up": times(fit, naive)}
    ran = next((t for t in fit.tried if fit.best and t.args == fit.best.args), None)
    over = next(
        (t for t in fit.tried if t.status == "oom" and fit.above and t.args == fit.above.args),
        None,
    )
    line["measured peaks, MiB"] = (
        " ".join(f"{peak / 2**20:.1f}" for peak in ran.peak_bytes)
        if ran and ran.peak_bytes
        else EMPTY
    )
    line["measured over counted"] = (
        number(max(ran.peak_bytes) / max(ran.counted_bytes), 3) if ran and ran.peak_bytes else EMPTY
    )
    line["next size"] = (
        f"{fit.size(fit.above)}: {over.reason.split(':')[0]}" if over and fit.above else EMPTY
    )
    return line


def checked(results: "Results") -> Table | None:
    """Counted memory of each stage against what the allocator's own events say."""
    from pandas import DataFrame

    lines = []
    for fit in found(results, fidelity="measured", memory=ENOUGH):
        for tried in fit.tried:
            for j, (count, pair) in enumerate(
                zip(tried.counted_bytes, tried.allocator_bytes or [], strict=False)
            ):
                place = {key: getattr(fit.spec, key) for key in ("K", "M", "checkpoint")}
                sizes = {
                    "counted": count,
                    "measured": pair[0],
                    "kernels' workspace": pair[1] - pair[0],
                }
                shown = {f"{name}, KiB": f"{size / 1024:,.1f}" for name, size in sizes.items()}
                line = {"model": model_name(fit.spec.model), **place, "stage": j, **shown}
                lines.append(line | {"counted over measured": number(count / pair[0], 4)})
    if not lines:
        return None
    note = (
        "Small models, N=8, trained by K processes. Measured: peak of the bytes that torch's CPU "
        "allocator handed out and took back, from torch.profiler's memory events, and of messages "
        "in shared memory; what is handed out and taken back inside one operator is a kernel's "
        "workspace, and is how much higher the peak is with it. Counting does not see that. What "
        "lay there before the step is added by its size. Measured are also 5 KiB of the user's "
        "random state, which the engine puts aside during a step, and which are not counted."
    )
    title = "Counted memory against the allocator's events"
    return table_of_frames("table1_check", title, note, DataFrame(lines), experiment=NAME)
