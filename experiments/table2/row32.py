"""Table 2's row of M=32: one cause after another, other protocols and other people's numbers."""

from dataclasses import dataclass
from functools import partial
from math import isnan, nan

from experiments.table2.recorded import CAUSES, MODELS, Protocol, protocol, quoted, titled
from experiments.table2.runs import KS, MS, NAME
from repro.harness.results import Results
from repro.paper import theory, torchgpipe
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

M = MS[-1]
KS_ABOVE_1 = KS[1:]
PEER = "torchgpipe on P40s (quoted)"
PREDICTED = "and update: predicted"
WITHOUT_RECOMPUTE = "predicted, base without recompute"
_PROTOCOLS = {
    "by memory": "predicted, N by memory",
    "by parameters": "predicted, cut by parameters",
}
Ratios = dict[int, float]  # K -> throughput at M=32 over K=2, M=1


def tables(results: Results) -> list[Table]:
    """The row of M=32, one explanation a line, over both bases; none before it was simulated."""
    controlled = [protocol(results, model, "controlled") for model in MODELS]
    simulated = [runs for runs in controlled if runs]
    if not simulated:
        return []
    lines = [
        Explanation(runs.model, name, ratios, {K: quoted(runs.model, K, M) for K in KS_ABOVE_1})
        for runs in simulated
        for name, ratios in row(results, runs.model).items()
    ]
    columns: list[Column[Explanation]] = [
        Column(("", "model"), lambda line: plain(model_name(line.model))),
        Column(("", "explanation"), lambda line: plain(line.name), ("", "M=32")),
    ]
    columns += [Column(("over K=2, M=1", f"K={K}"), partial(_ratio, K)) for K in KS_ABOVE_1]
    columns.append(Column(("over K=2, M=1", "off by up to"), _off))
    columns += [
        Column(("over K=2, M=32", f"K={K}"), partial(_renormalised, K)) for K in KS_ABOVE_1[1:]
    ]
    columns.append(Column(("over K=2, M=32", "off by up to"), _off_renormalised))
    note = (
        "Throughput at M=32; from imbalance to predicted each simulated line has one cause more "
        "than the one above it, at one N. Off: the largest difference from the quoted cells, with "
        "which the paper's uncertain base, K=2 with one micro-batch, cancels out over K=2, M=32."
    )
    title = titled("Table 2's row of M=32, one cause after another, over both bases", simulated)
    return [declared("table2_m32", title, note, lines, columns, NAME)]


@dataclass(frozen=True)
class Explanation:
    """One explanation of the row of a model."""

    model: str
    name: str
    ratios: Ratios
    quoted: Ratios


def row(results: Results, model: str) -> dict[str, Ratios]:
    """M=32 over K=2, M=1: quoted, ideal, one cause more each time, other protocols, torchgpipe."""
    controlled = protocol(results, model, "controlled")
    rows = {
        "quoted": {K: quoted(model, K, M) for K in KS_ABOVE_1},
        "ideal": {K: theory.speedup_over_k2m1(K, M, "early") for K in KS_ABOVE_1},
    }
    for cause, name in CAUSES.items():
        name = name if cause == "imbalance" else f"and {name}"
        rows[name] = {K: controlled.cause_ratio(cause, K, M) for K in KS_ABOVE_1}
    rows[PREDICTED] = {K: controlled.ratio(K, M) for K in KS_ABOVE_1}
    for other, name in _PROTOCOLS.items():
        runs = protocol(results, model, other)
        if runs and runs.papers_size == controlled.papers_size:
            rows[name] = {K: runs.ratio(K, M) for K in KS_ABOVE_1}
    shorter = _base_without_recompute(controlled)
    if not isnan(shorter):
        rows[WITHOUT_RECOMPUTE] = {K: controlled.ratio(K, M) * shorter for K in KS_ABOVE_1}
    if model == "amoebanet-d":
        peers = {(peer.K, peer.M): peer.values["ratio"] for peer in torchgpipe("amoebanetd_speed")}
        rows[PEER] = {K: peers[K, M] or nan for K in KS_ABOVE_1}
    return rows


def _base_without_recompute(controlled: Protocol) -> float:
    """The step of K=2, M=1 that keeps its activations, over the one that recomputes.

    With one micro-batch the first stage recomputes while it waits, so only the last stage's
    recomputation lengthens the step.
    """
    modelled, step = controlled.modelled(2, 1), controlled.step(2, 1)
    return (step - modelled.stages.recompute[-1]) / step if modelled else nan


def renormalised(ratios: Ratios) -> Ratios:
    """The same over K=2, M=32."""
    return {K: value / ratios[2] for K, value in ratios.items()}


def off(ratios: Ratios, printed: Ratios) -> float:
    """The largest difference from the quoted cells, as a share of them."""
    return max(abs(ratios[K] / printed[K] - 1) for K in printed)


def _ratio(K: int, line: Explanation) -> Cell:
    return plain(number(line.ratios[K]))


def _renormalised(K: int, line: Explanation) -> Cell:
    return plain(number(renormalised(line.ratios)[K]))


def _off(line: Explanation) -> Cell:
    return _share(line, off(line.ratios, line.quoted))


def _off_renormalised(line: Explanation) -> Cell:
    return _share(line, off(renormalised(line.ratios), renormalised(line.quoted)))


def _share(line: Explanation, share: float) -> Cell:
    known = line.name != "quoted" and not isnan(share)
    return plain(f"{share:.0%}" if known else EMPTY)
