"""Why a cell of Table 1 differs from what is counted: one sentence each, computed from the counts."""

from collections.abc import Iterator
from statistics import median

from experiments.table1.fits import (
    MODELS,
    Found,
    M,
    activations,
    amount,
    given,
    only,
    searched,
    short,
    swapped,
    unit,
)
from repro.paper import Size, table1, table1_claims
from repro.report.style import model_name

Line = dict[str, str]
_CLOSE = 0.005  # a printed number that counting gives to half a percent is not told


def differences(fits: list[Found]) -> list[Line]:
    """All of them; none where nothing was counted at the paper's size."""
    lines: list[Line] = []
    for size in table1():
        own = given(fits, size)
        if own and (own[0].naive or own[0].spec.M == M):
            lines += _of_column(size, own, fits)
    return lines and [*lines, *_micro_batches(fits), *_claims(fits)]


def _of_column(size: Size, own: list[Found], fits: list[Found]) -> Iterator[Line]:
    """`own`: the paper's size at several M."""
    place = {"column": f"{model_name(size.model)}, {size.name}"}
    ours = only(searched(size.model, fits), lambda fit: fit.column == size.name)
    if ours is not None and (ours.best is None or ours.best.args != own[0].one.args):
        line = _largest(size, own[0], ours)
        line["why"] += _decimal(own[0], ours, fits)
        yield place | line
    counted = own[0].one.parameters
    if abs(counted / size.parameters - 1) > _CLOSE:
        yield place | _parameters(size, counted)
    name, factor = unit(size.model)
    twelve = 12 * counted / factor
    if abs(size.parameter_memory_gb / twelve - 1) > 0.02:
        yield place | _parameter_memory(size, counted, twelve, name)
    if own[0].naive or len(own) > 1:
        yield place | _activation(size, own)


def _largest(size: Size, own: Found, ours: Found) -> Line:
    """Why the search ends elsewhere."""
    cell = {"cell": "largest", "quoted": own.size(own.one)}
    cell["counted"] = ours.size(ours.best) if ours.best else "none"
    memory = own.spec.memory or 1
    fullest = own.one.fullest
    takes = (
        f"{own.size(own.one)} takes {amount(size.model, fullest)} on its fullest stage here at "
        f"M={own.spec.M}"
    )
    if fullest > memory and not own.naive:
        return cell | {"why": f"{takes}, {fullest / memory - 1:.1%} more than there is"}
    if fullest > memory:
        each = activations(own.one) / own.spec.N
        printed = _activations_of(size) * unit(size.model)[1]
        words = (
            f"{own.size(own.one)} keeps {amount(size.model, activations(own.one))} of activations "
            f"at N={own.spec.N} in float32, {amount(size.model, each)} an example; the paper's "
            f"{_activations_of(size):g} is what {printed / each:.0f} examples keep, so it cannot "
            f"be all {own.spec.N} in float32 at once"
        )
        return cell | {"why": words}
    used = (size.parameter_memory_gb + size.peak_activation_gb) / (
        size.accelerators * size.device_memory_gb
    )
    words = (
        f"{takes}, {fullest / memory:.0%} of the memory, so there is room for a larger one; the "
        f"paper's own cells come to {used:.0%} of its devices'"
    )
    return cell | {"why": words}


def _decimal(own: Found, ours: Found, fits: list[Found]) -> str:
    """Where the search ends if the same number of GB is meant in the other unit."""
    same = {"memory", "fidelity"}
    others = [
        f for f in fits if f.spec.model_dump(exclude=same) == ours.spec.model_dump(exclude=same)
    ]
    other = only(
        others, lambda fit: fit.spec.memory != ours.spec.memory and fit.spec.fidelity == "counted"
    )
    if other is None or other.best is None:
        return ""
    end = (
        "there, as the paper's"
        if other.best.args == own.one.args
        else f"at {other.size(other.best)}"
    )
    return (
        f"; were the unit decimal ({(other.spec.memory or 0) / 1e9:g} GB), the search would end "
        f"{end}"
    )


def _activations_of(size: Size) -> float:
    """As printed, but where the two memory cells are swapped."""
    return size.parameter_memory_gb if swapped(size) else size.peak_activation_gb


def _parameters(size: Size, counted: int) -> Line:
    words = (
        f"the authors' published code defines {counted:,}, "
        f"{100 * (counted / size.parameters - 1):+.1f} %"
    )
    return {
        "cell": "parameters",
        "quoted": short(size.parameters),
        "counted": short(counted),
        "why": words,
    }


def _parameter_memory(size: Size, counted: int, twelve: float, name: str) -> Line:
    """Swapped cells, or bytes a parameter that are not 12."""
    cell = {
        "cell": "parameter memory",
        "quoted": f"{size.parameter_memory_gb:g}",
        "counted": f"{twelve:.2f} {name}",
    }
    if swapped(size):
        words = (
            f"12 bytes times {counted / 1e6:.1f}M is {twelve:.2f} {name}, the number printed one "
            "row lower: the two memory cells of this column are swapped"
        )
    else:
        each = size.parameter_memory_gb * unit(size.model)[1] / size.parameters
        words = f"printed are {each:.1f} bytes a printed parameter, not the 12 that the text says"
    return cell | {"why": words}


def _activation(size: Size, own: list[Found]) -> Line:
    """How many examples a micro-batch must have had for the printed activations, if they grow evenly with them."""
    model = size.model
    cell = {"cell": "peak activations", "quoted": f"{size.peak_activation_gb:g}"}
    cell["counted"] = amount(model, activations(own[0].one))
    if swapped(size):
        cell["quoted"] += f" ({_activations_of(size):g})"
    examples = _examples(size, own)
    if own[0].naive:
        return cell | {
            "why": (
                f"without micro-batches activations grow with N; printed is what N={examples:.0f} "
                "keep"
            )
        }
    words = (
        f"on the line through both what is printed is reached with {examples:.1f} examples in a "
        f"micro-batch, M={own[0].spec.N / examples:.0f}"
        if examples >= 1
        else (
            "what is printed is less than one example takes: tensors were smaller than float32, "
            "or fewer were kept"
        )
    )
    both = " and ".join(f"{amount(model, activations(fit.one))} at M={fit.spec.M}" for fit in own)
    return cell | {"why": f"counted are {both}; {words}"}


def _examples(size: Size, own: list[Found]) -> float:
    """Examples that are kept at once for the printed activations: a line through the counts, or through nothing."""
    printed = _activations_of(size) * unit(size.model)[1]
    mine = sorted((fit.spec.N / fit.spec.M, activations(fit.one)) for fit in own)
    (n, low), (m, high) = (mine[0], mine[-1]) if len(mine) > 1 else ((0, 0), mine[0])
    return n + (printed - low) * (m - n) / (high - low)


def _micro_batches(fits: list[Found]) -> Iterator[Line]:
    """The M that the printed activations of one model's columns point to, all together."""
    for model in MODELS:
        found = []
        for size in table1():
            own = given(fits, size) if size.model == model and size.name != "Naive-1" else []
            if len(own) > 1 and _examples(size, own) > 0:
                found.append(own[0].spec.N / _examples(size, own))
        if found:
            words = (
                "the M at which the counted activations of the paper's sizes are the printed "
                f"ones; their median is {median(found):.0f}. The breakdown of the NeurIPS version "
                "fits M=16 at K=2"
            )
            place = {
                "column": f"{model_name(model)}, all Pipelines",
                "cell": "M",
                "quoted": "not printed",
            }
            yield place | {"counted": ", ".join(f"{M:.0f}" for M in found), "why": words}


def _claims(fits: list[Found]) -> Iterator[Line]:
    """The text's scale-ups, from the table's own cells."""
    sizes = {(size.model, size.name): size for size in table1()}
    for claim in table1_claims():
        size, base = (
            sizes[claim.model, f"Pipeline-{claim.accelerators}"],
            sizes[claim.model, claim.over],
        )
        times = size.parameters / base.parameters
        words = f"{short(size.parameters)} over {short(base.parameters)} is {times:.1f}"
        by_memory = size.parameter_memory_gb * unit(claim.model)[1] / 12
        if abs(times / claim.times - 1) > 0.05:
            words += (
                f"; the printed {size.parameter_memory_gb:g} GB are {short(by_memory)} parameters "
                f"of 12 bytes, and that over {short(base.parameters)} is "
                f"{by_memory / base.parameters:.1f}: the two cells never agreed"
            )
        place = {"column": f"{model_name(claim.model)}, {size.name}", "cell": "scale-up (text)"}
        pair = [
            only(searched(claim.model, fits), lambda f, n=n: f.column == n)
            for n in (size.name, base.name)
        ]
        ours, naive = (fit.best if fit else None for fit in pair)
        counted = f"{ours.parameters / naive.parameters:.1f}x" if ours and naive else "-"
        if not naive:
            words += "; counted there is none, since no Naive-1 fits at the paper's N in float32"
        yield place | {
            "quoted": f"{claim.times:g}x",
            "counted": counted,
            "why": f"from quoted cells: {words}",
        }
