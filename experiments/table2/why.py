"""What the predictions of Table 2 say: its row of M=32 cause by cause, and sentences computed from the runs."""

from math import isnan
from typing import TYPE_CHECKING

from experiments.table2.recorded import (
    MODELS,
    NAME,
    RUNGS,
    TOLERANCE,
    Protocol,
    another_size,
    protocol,
    quoted,
    warning,
)
from repro.gpipe.schedule.kinds import make_schedule
from repro.paper import theory, torchgpipe
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, table_of_frames
from repro.report.texts import IDEAL
from repro.simulate import StageCosts, simulate

if TYPE_CHECKING:
    from repro.harness.results import Results

MANY = 32
KS = (2, 4, 8)
Ratios = dict[int, float]  # K -> throughput at M=32 over K=2, M=1


def tables(results: "Results") -> list[Table]:
    """The row of M=32 with one explanation a line, and sentences, which only models of the paper's size have."""
    from pandas import DataFrame

    owns = [own for model in MODELS if (own := protocol(results, model, "controlled"))]
    if not owns:
        return []
    found = {own.model: row(results, own.model) for own in owns}
    said = DataFrame(
        _sentences(results, {own.model: found[own.model] for own in owns if own.papers_size})
    )
    rows = _rows(found, owns)
    return (
        [rows]
        if said.empty
        else [rows, table_of_frames("table2_explained", _TITLE, _NOTE, said, experiment=NAME)]
    )


_TITLE = "Table 2: what the predictions explain, and what they do not"
_NOTE = (
    "Sentences computed from quoted cells and simulated runs. Counted at Table 1's widths, "
    "simulated on device profiles that were not adjusted to any cell of the paper."
)


def row(results: "Results", model: str) -> dict[str, Ratios]:
    """M=32 over K=2, M=1 at every K: quoted, ideal, with one cause more each time, other protocols, other people."""
    own = protocol(results, model, "controlled")
    found = {"quoted": {K: quoted(model, K, MANY) for K in KS}}
    found["ideal"] = {K: theory.speedup_over_k2m1(K, MANY, "early") for K in KS}
    for rung, word in RUNGS.items():
        name = word if rung == "imbalance" else f"and {word}"
        found[name] = {K: own.rung(rung, 2, 1) / own.rung(rung, K, MANY) for K in KS}
    found[_PREDICTED] = {K: own.ratio(K, MANY) for K in KS}
    for name, word in {
        "by memory": "predicted, N by memory",
        "by parameters": "predicted, cut by parameters",
    }.items():
        if (some := protocol(results, model, name)) and some.papers_size == own.papers_size:
            found[word] = {K: some.ratio(K, MANY) for K in KS}
    if costs := own.modelled(2, 1):
        base = simulate(
            make_schedule("gpipe", 2, 1, "never"), StageCosts.from_plain(costs.stages.model_dump())
        ).step_time
        found[_KEPT] = {K: own.ratio(K, MANY) * base / own.step(2, 1) for K in KS}
    if model == "amoebanet-d":
        peers = {(peer.K, peer.M): peer.values["ratio"] for peer in torchgpipe("amoebanetd_speed")}
        found[PEER] = {K: peers[K, MANY] or float("nan") for K in KS}
    return found


PEER = "torchgpipe on P40s (quoted)"
_KEPT = "predicted, base without recompute"
_BATCHES = ("controlled", "by memory", "half widths, by memory")
_PREDICTED = "and update: predicted"


def renormalised(ratios: Ratios) -> Ratios:
    """The same over K=2, M=32."""
    return {K: value / ratios[2] for K, value in ratios.items()}


def off(ratios: Ratios, printed: Ratios) -> float:
    """The largest difference from the quoted cells, as a share of them."""
    return max(abs(ratios[K] / printed[K] - 1) for K in printed)


def _percent(share: float) -> str:
    return EMPTY if isnan(share) else f"{share:.0%}"


def _rows(found: dict[str, dict[str, Ratios]], owns: list[Protocol]) -> Table:
    """One line a model and explanation, over K=2, M=1 and over K=2, M=32."""
    from pandas import DataFrame, MultiIndex

    lines = []
    for model, explanations in found.items():
        printed = explanations["quoted"]
        for name, ratios in explanations.items():
            line = {("", "model"): model_name(model), ("", "M=32"): name}
            for head, some, own in (
                ("over K=2, M=1", ratios, printed),
                ("over K=2, M=32", renormalised(ratios), renormalised(printed)),
            ):
                line |= {(head, f"K={K}"): number(some[K]) for K in KS if some is ratios or K > 2}
                line[head, "off by up to"] = (
                    EMPTY if name == "quoted" else f"{off(some, own):.0%}".replace("nan%", EMPTY)
                )
            lines.append(line)
    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    note = warning(owns) + (
        f"M=32 throughput, all simulated but quoted. {IDEAL} Each line from imbalance to predicted "
        "has one cause more than the one above it, at one N; imbalance is that of multiply-adds. "
        "Off: the largest difference from the quoted cells. Over K=2, M=32 the paper's uncertain "
        "base, K=2 with one micro-batch, cancels out. A base without recompute: one micro-batch "
        "gains no memory from it; thought of after the comparison, so fitted, and no evidence by "
        "itself. torchgpipe's program, batches by memory and devices are others; it is quoted "
        "from its benchmarks."
    )
    size = another_size(owns)
    title = (
        f"Table 2's row of M=32{', ' * bool(size)}{size}, one cause after another, over both bases"
    )
    return table_of_frames("table2_m32", title, note, shown, experiment=NAME)


def _sentences(results: "Results", found: dict[str, dict[str, Ratios]]) -> list[dict[str, str]]:
    lines = []
    if "transformer" in found:
        lines += _softmax(protocol(results, "transformer", "controlled"), found["transformer"])
        lines += _batch(*(_full(results, name) for name in _BATCHES))
        lines += _few(_full(results, "by memory"))
    if "amoebanet-d" in found:
        lines += _weak(found["amoebanet-d"])
    return lines


def _full(results: "Results", name: str) -> Protocol:
    """The Transformer's runs of a protocol, none where they are of another size than the paper's."""
    some = protocol(results, "transformer", name)
    return some if some and some.papers_size else Protocol(results, "transformer", {}, {})


def _listed(ratios: Ratios, Ks: tuple[int, ...] = KS) -> str:
    return ", ".join(number(ratios[K]) for K in Ks)


def _softmax(own: Protocol, found: dict[str, Ratios]) -> list[dict[str, str]]:
    """What the softmax layer does to the row of M=32: its own length, and the ratio with and without it."""
    layer = own.rung("imbalance", 1, 1) / own.rows[2, 1].spec.model_args["L"]
    lengths = (own.rung("ends", 1, 1) - own.rung("imbalance", 1, 1)) / layer
    without, within = found["imbalance"], found[f"and {RUNGS['ends']}"]
    if isnan(lengths) or any(isnan(value) for value in (*without.values(), *within.values())):
        return []
    printed = found["quoted"]
    words = (
        f"The softmax alone costs {lengths:.1f} layers' multiply-adds and cannot be cut, so it "
        "lengthens the last stage or takes a layer off it: without it the row is "
        f"{_listed(without)}, with it {_listed(within)}, against {_listed(printed)} quoted; off by "
        f"up to {off(without, printed):.0%} and {off(within, printed):.0%}. "
    )
    again = renormalised(printed)
    words += f"Over K=2, M=32 they are off by {off(renormalised(without), again):.0%} and "
    words += f"{off(renormalised(within), again):.0%}. "
    here, there = (
        off(within, row) > TOLERANCE >= off(without, bare)
        for without, within, row, bare in (
            (without, within, printed, printed),
            (renormalised(without), renormalised(within), again, again),
        )
    )
    if here and there:
        words += (
            "On both bases the printed row leaves no room for it in one stage: the paper left it "
            "out of what it timed, computed less of it (sampled it), or spread it over the "
            "stages. It does not say which."
        )
    elif here:
        words += (
            "Over K=2, M=1 the printed row leaves no room for it in one stage, over K=2, M=32 it "
            "does: either the paper left it out of what it timed, sampled it or spread it over "
            "the stages, or its base of M=1 was slow. It does not say which."
        )
    else:
        words += "So the row does not tell where the softmax was."
    return [{"of": "Transformer, M=32: the softmax", "what the evidence says": words}]


def _batch(own: Protocol, wide: Protocol, half: Protocol) -> list[dict[str, str]]:
    """What mini-batches by memory do to the Transformer's row of M=32, and what speaks against them."""
    if not (wide and half) or isnan(half.ratio(8, MANY)):
        return []
    printed = {K: quoted("transformer", K, MANY) for K in KS}
    cells = [
        f"K={K} {wide.ratio(K, MANY):.2f} (quoted {printed[K]:g})"
        for K in KS
        if not isnan(wide.ratio(K, MANY))
    ]
    unfit = [f"K={K}, M={M}" for K, M in sorted(wide.rows) if wide.N(K, M) == 0]
    words = f"With the largest N that fits: {', '.join(cells)}, over a base of N={wide.N(2, 1)}. "
    if unfit:
        words += (
            f"But then nothing fits at {' and '.join(unfit)}, cells that the paper prints, so "
            "these cannot be its widths, or not its bytes for each parameter. "
        )
    row, one = ({K: some.ratio(K, MANY) for K in KS} for some in (half, own))
    words += (
        f"At half the widths, over a base of N={half.N(2, 1)}: {_listed(row)}, off by up to "
        f"{off(row, printed):.0%}; at one N and the full widths by {off(one, printed):.0%}. How "
        "far a batch moves the row hangs on widths that are not printed."
    )
    return [{"of": "Transformer, M=32: the batch", "what the evidence says": words}]


def _few(memory: Protocol) -> list[dict[str, str]]:
    """What the paper's M=4 cells are of its M=32 cells, against the ideal's where all examples take the same."""
    words, factors = list[str](), list[float]()
    owns = {K: quoted("transformer", K, 4) / quoted("transformer", K, MANY) for K in KS}
    for K, own in owns.items():
        most = theory.speedup_over_k2m1(K, 4, "early") / theory.speedup_over_k2m1(K, MANY, "early")
        words.append(f"{own:.0%} at K={K} where the ideal is {most:.0%}")
        factors.append(own / most)
    text = (
        f"Quoted M=4 throughput is that of M=32 to {', '.join(words)}. Bubbles alone make four "
        f"micro-batches slower than that, so each example would have been {min(factors):.2f} to "
        f"{max(factors):.2f} times faster at M=4 than at M=32"
    )
    ratios = {K: memory.ratio(K, 4) / memory.ratio(K, MANY) for K in KS} if memory else {}
    known = [f"{ratio:.0%} at K={K}" for K, ratio in ratios.items() if not isnan(ratio)]
    if known:
        short = all(
            ratios[K] < (1 - TOLERANCE) * own for K, own in owns.items() if not isnan(ratios[K])
        )
        text += f"; with mini-batches by memory it is simulated {', '.join(known)}"
        text += ", so the batch does not explain it" if short else ""
    return [{"of": "Transformer, M=4 against M=32", "what the evidence says": f"{text}."}]


def _weak(found: dict[str, Ratios]) -> list[dict[str, str]]:
    """Which cause the evidence supports for AmoebaNet's weak row of M=32."""
    printed = found["quoted"]
    again = renormalised(printed)
    rest = {
        name: ratios
        for name, ratios in found.items()
        if name != "quoted" and not isnan(sum(ratios.values()))
    }
    if not {PEER, _PREDICTED} <= set(rest):
        return []
    gained = {
        name: _share(rest, name, printed)
        for name in list(rest)[1:]
        if name.startswith(("imb", "and"))
    }
    most = max(gained, key=lambda name: gained[name])
    words = ", ".join(
        f"{name.removeprefix('and ').removesuffix(': predicted')} {100 * share:+.0f} %"
        for name, share in gained.items()
    )
    base = (
        f"Over K=2, M=1, quoted {_listed(printed)}: of the way from the ideal to the quoted cells "
        f"(mean over K) the causes go {words}; {most.removeprefix('and ')} most. "
        f"{_nearest(rest, printed)}"
    )
    moved = {name: renormalised(ratios) for name, ratios in rest.items()}
    scale = f"Over K=2, M=32, quoted {_listed(again, KS[1:])}: {_nearest(moved, again)}"
    one = rest[PEER]
    shares = {name: [printed[K] / rest[name][K] for K in KS] for name in (PEER, _PREDICTED)}
    low, high = ([f"{end(shares[name]):.2f}" for name in shares] for end in (min, max))
    other = (
        f"torchgpipe published {_listed(one)} with M=32 on other devices, over K=2, M=32 "
        f"{_listed(renormalised(one), KS[1:])}, off by up to {off(renormalised(one), again):.0%}. "
        f"The paper's cells are {low[0]} to {high[0]} of torchgpipe's at every K, and {low[1]} to "
        f"{high[1]} of those predicted. {_alike(shares)}"
    )
    names = ("over K=2, M=1", "over K=2, M=32", "other people's")
    return [
        {"of": f"AmoebaNet-D, M=32: {name}", "what the evidence says": text}
        for name, text in zip(names, (base, scale, other), strict=True)
    ]


def _alike(shares: dict[str, list[float]]) -> str:
    """Whether what is missing depends on K, beside another program and beside the prediction."""
    even = {name: max(values) <= (1 + TOLERANCE) * min(values) for name, values in shares.items()}
    if not even[PEER]:
        return "So what is missing depends on K, and no single cost explains it."
    words = (
        "Beside torchgpipe what is missing is alike at every K, as a cost of 32 micro-batches "
        "would be, of which memory-bound operators are one, or a base of M=1 that is faster than "
        "the rest; imbalance, cut and transfer would grow with K."
    )
    return words + (
        ""
        if even[_PREDICTED]
        else " Beside the prediction it is not, so this is a hint and no proof."
    )


def _share(found: dict[str, Ratios], name: str, printed: Ratios) -> float:
    """What a line takes off the one above it, as a share of ideal minus quoted, mean over K."""
    names = list(found)
    above = found[names[names.index(name) - 1]]
    return sum((above[K] - found[name][K]) / (found["ideal"][K] - printed[K]) for K in KS) / len(KS)


def _nearest(found: dict[str, Ratios], printed: Ratios) -> str:
    """Each whole explanation's largest difference, and whether the best is within the tolerance."""
    whole = {
        name: ratios
        for name, ratios in found.items()
        if "predicted" in name or name in ("ideal", "imbalance")
    }
    whole.pop(_KEPT, None)  # thought of afterwards
    differences = {
        name.removeprefix("and update: "): off(ratios, printed) for name, ratios in whole.items()
    }
    best = min(differences, key=lambda name: differences[name])
    words = ", ".join(f"{name} by {share:.0%}" for name, share in differences.items())
    end = f"Nearest is {best}" + (
        "." if differences[best] <= TOLERANCE else ", and that does not explain the row."
    )
    return f"Off by up to: {words}. {end}"
