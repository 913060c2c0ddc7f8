"""Table 2 under other protocols: mini-batches as large as memory allows, stages cut by parameters.

The paper adjusted its mini-batch to memory and prints none, so its ratios mix the pipeline with the
batch. Cells above the plain ideal of every pipeline at a fixed batch are found by arithmetic; each
gets a sentence.
"""

from math import isnan, nan
from typing import TYPE_CHECKING, Any

from experiments.table2.recorded import (
    MODELS,
    NAME,
    TOLERANCE,
    Protocol,
    another_size,
    places,
    protocol,
    quoted,
    warning,
)
from repro.paper import theory
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, number, table_of_frames
from repro.report.texts import IDEAL, PLAIN

if TYPE_CHECKING:
    from repro.harness.results import Results

WIDTHS = ("by memory", "half widths, by memory")
NOTHING = "nothing fits"
# whose models the note names: the others are the first's
_DESCRIBED = ("controlled", "half widths, by memory")


def tables(results: "Results") -> list[Table]:
    """Both tables; none before anything was simulated, and of another size than the paper's no argument."""
    found = {model: of(results, model) for model in MODELS}
    if not any(found.values()):
        return []
    full = {
        model: {name: some for name, some in own.items() if some.papers_size}
        for model, own in found.items()
    }
    return [protocols(found), *([beyond(full)] if any(full.values()) else [])]


def of(results: "Results", model: str) -> dict[str, Protocol]:
    """The simulated protocols of a model that were run."""
    names = ("controlled", *WIDTHS, "by parameters")
    return {name: some for name in names if (some := protocol(results, model, name))}


def protocols(found: dict[str, dict[str, Protocol]]) -> Table:
    """One line a cell: quoted, each protocol with the N that it took, both ideals."""
    from pandas import DataFrame, MultiIndex

    lines = [
        _line(found[model], model, *place)
        for model in MODELS
        if found[model]
        for place in places(model)
    ]
    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    abouts = dict.fromkeys(
        some.about for model in MODELS for name, some in found[model].items() if name in _DESCRIBED
    )
    owns = [some for own in found.values() for some in own.values()]
    note = warning(owns) + (
        "Throughput in examples per second over that of K=2, M=1 under the same protocol. All but "
        "quoted and ideal is simulated: controlled, one N for all cells; by memory, the largest N "
        "of which every stage is counted to fit (multiples of M, micro-batches of 1, 2, 3, 4, 6, "
        "8, 12, ... examples), 8 GB or 16 GiB each; half widths, the same of a Transformer of "
        "half the widths, since the paper prints none for this table; by parameters, stages with "
        f"even numbers of parameters. {IDEAL} {PLAIN} Above plain: no pipeline at a fixed N can, "
        "but by recomputing early. Memory is counted with RMSProp, 12 bytes a parameter, as in "
        f"Table 1. Models: {'; '.join(abouts)}."
    )
    size = another_size(owns)
    title = (
        f"Table 2 under three protocols{', ' * bool(size)}{size}: one N, N by memory, and cut by "
        "parameters"
    )
    return table_of_frames("table2_protocols", title, note, shown, _data(found), NAME)


def _line(found: dict[str, Protocol], model: str, K: int, M: int) -> dict[tuple[str, str], Any]:
    printed, plain = quoted(model, K, M), theory.speedup_over_k2m1(K, M, "plain")
    line: dict[tuple[str, str], Any] = {
        ("", "model"): model_name(model),
        ("", "K"): K,
        ("", "M"): M,
    }
    line["", "quoted"] = f"{printed:g}" + " above plain" * (printed > plain)
    line["simulated", "controlled"] = _ratio(found.get("controlled"), K, M)
    for name in WIDTHS:
        line["simulated", name] = _ratio(found.get(name), K, M)
        line["simulated", f"N {name}" if name == "by memory" else "its N"] = _batch(
            found.get(name), K, M
        )
    line["simulated", "by parameters"] = _ratio(found.get("by parameters"), K, M)
    line["plain ideal", "over K=2, M=1"] = number(plain)
    line["ideal", "over K=2, M=1"] = number(theory.speedup_over_k2m1(K, M, "early"))
    return line


def _ratio(some: Protocol | None, K: int, M: int) -> str:
    if some is None:
        return EMPTY
    if some.N(K, M) == 0:
        return NOTHING
    return NOT_RUN if isnan(some.throughput(K, M)) else number(some.ratio(K, M))


def _batch(some: Protocol | None, K: int, M: int) -> str:
    return str(some.N(K, M) or EMPTY) if some else EMPTY


def _data(found: dict[str, dict[str, Protocol]]) -> Any:
    """The same as plain numbers."""
    from pandas import DataFrame

    lines = []
    for model in MODELS:
        for K, M in places(model) if found[model] else ():
            line: dict[str, Any] = {"model": model, "K": K, "M": M, "quoted": quoted(model, K, M)}
            for name, some in found[model].items():
                line |= {f"{name}, simulated": some.ratio(K, M), f"{name}: N": some.N(K, M)}
            line |= {
                f"{form} ideal": theory.speedup_over_k2m1(K, M, form) for form in ("plain", "early")
            }
            lines.append(line)
    return DataFrame(lines)


def above(model: str) -> list[tuple[int, int]]:
    """The paper's cells that no pipeline reaches at a fixed N: above the plain ideal."""
    return [
        at
        for at in places(model)
        if quoted(model, *at) > theory.speedup_over_k2m1(*at, "plain") + 1e-9
    ]


def beyond(found: dict[str, dict[str, Protocol]]) -> Table:
    """Each cell above the plain ideal: whether mini-batches by memory reach it, and a sentence."""
    from pandas import DataFrame

    lines = [
        _beyond(found[model], model, *at) for model in MODELS if found[model] for at in above(model)
    ]
    note = (
        f"Cells above the plain ideal over that of K=2, M=1, found by this arithmetic. {IDEAL} "
        f"{PLAIN} Reached: the simulated ratio is at least the quoted; explained: to "
        f"{TOLERANCE:.0%}. Simulated batches differ in how often weights and update are read and "
        "how many operators start; that a matrix unit is slower on few examples is in no cost "
        "here, so a slower base of K=2, M=1 than this is possible and stays unproven."
    )
    title = (
        "Table 2's cells above the plain formula of a fixed mini-batch: does a mini-batch by "
        "memory reach them?"
    )
    return table_of_frames("table2_beyond", title, note, DataFrame(lines), experiment=NAME)


def _beyond(found: dict[str, Protocol], model: str, K: int, M: int) -> dict[str, str]:
    printed, plain = quoted(model, K, M), theory.speedup_over_k2m1(K, M, "plain")
    line = {
        "cell": f"{model_name(model)}, K={K}, M={M}",
        "quoted": f"{printed:g}",
        "plain ideal": number(plain),
    }
    line["ideal"] = number(theory.speedup_over_k2m1(K, M, "early"))
    for name in WIDTHS:
        line[name] = _reach(found.get(name), printed, K, M)
    return line | {"what it explains": _sentence(found, printed, K, M)}


def _reach(some: Protocol | None, printed: float, K: int, M: int) -> str:
    """`2.41 of 3.2 (75 %), N=8` or that it is reached, or that nothing fits."""
    cell = _ratio(some, K, M)
    if some is None or isnan(some.ratio(K, M)):
        return cell
    ratio = some.ratio(K, M)
    near = (
        f"{ratio / printed:.0%} of it"
        if ratio < printed * (1 - TOLERANCE)
        else f"within {TOLERANCE:.0%}"
    )
    return f"{cell}, N={some.N(K, M)}: " + ("reached" if ratio >= printed else near)


def _sentence(found: dict[str, Protocol], printed: float, K: int, M: int) -> str:
    """What the batch does to this cell, from the largest protocol that reaches it or comes nearest."""
    ratios = {name: found[name].ratio(K, M) for name in WIDTHS if name in found}
    known = {name: ratio for name, ratio in ratios.items() if not isnan(ratio)}
    if not known:
        return "by memory it was not simulated, or nothing fits: no evidence"
    name = max(known, key=lambda name: known[name])
    best, most = known[name], found[name]
    batch = f"N grows from {most.N(2, 1)} to {most.N(K, M)} ({name})"
    own = found["controlled"].ratio(K, M) if "controlled" in found else nan
    enough = printed * (1 - TOLERANCE)
    if own >= enough:
        share = (own - 1) / (printed - 1)
        words = (
            f"no batch is needed: one N gives {own:.2f}, {share:.0%} of what the quoted is above "
            "1, because recomputing early beats the plain ideal"
        )
    elif best >= enough:
        words = f"a batch would explain it: {batch}, and the base pays most for its small one"
        if any(most.N(*at) == 0 for at in most.rows):
            words += "; but so other cells that the paper prints do not fit"
    else:
        words = (
            f"not explained: {batch}, and the base would have to be {printed / best:.2f} times "
            "slower than here"
        )
    missing = [other for other in WIDTHS if other in found and found[other].N(K, M) == 0]
    if missing:
        words += (
            "; at Table 1's widths and RMSProp's 12 bytes a parameter not even one example for "
            "each micro-batch fits"
        )
    return words
