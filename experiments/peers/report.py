"""Our pipeline beside other libraries: which trains as one device would, and how their steps compare.

Pure functions of recorded results. A run belongs here if a peer library ran it, or if a peer ran the same point.
"""

import dataclasses
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Any

from pandas import DataFrame

from repro.gpipe.schedule.kinds import make_schedule, written_out
from repro.gpipe.schedule.replay import replay
from repro.paper.theory import UNIT_COSTS
from repro.report.compare import NO_INTERVAL, PLACE, Ratio, Row, fidelities, matching, over, rows_of, suffix
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number
from repro.report.texts import IDEAL

if TYPE_CHECKING:
    from repro.harness.results import Results

NAME = "peers"
WHY = False
FOLDED = ("peers_points*",)
NAMES = {
    "repro": "ours",
    "torch": "torch.distributed.pipelining, ScheduleGPipe",
    "torchgpipe": "torchgpipe 0.0.7",
}


def tables(results: "Results") -> list[Table]:
    """What was checked, what was timed, and what noise alone does."""
    rows = rows_of(results, experiment=NAME)
    checked = [row for row in rows if results.specs[row["run"]].task == "check"]
    timed = [row for row in rows if results.specs[row["run"]].task == "train"]
    found = [checks(results, NAME, checked)] * bool(checked)
    found += [speed(results, NAME, f, matching(timed, {"fidelity": f})) for f in fidelities(timed)]
    return found + [noise(results, NAME, timed)] * any(_twin(results, row) for row in timed)


def checks(results: "Results", experiment: str, rows: list[Row]) -> Table:
    """Library x check: the verdict with the greatest difference from the unsplit model, and the evidence."""
    shown, data = [], []
    for row in rows:
        rounds = results.rounds_of(row)
        place = {"library": NAMES[row["library"]], "scale": row["scale"], "model": model_name(row["model"])}
        if not rounds:
            shown.append({**place, "status": row["status"]})
            continue
        found = rounds[-1]["checks"]
        shown.append({**place, "status": row["status"], **{name: _verdict(one) for name, one in found.items()}})
        data += [{**place, "check": name, **one} for name, one in found.items()]
    note = (
        "Each library against the unsplit model on the same micro-batches, K=2, always recomputed; in brackets the "
        "greatest difference. Gradients and loss: of the mini-batch mean. Batch norm: running statistics after one "
        "step are to have moved once, by the mini-batch's mean and unbiased variance. Evaluation: with whatever "
        "statistics training left. Dropout: gradients with recomputation against those without. Unequal: one example "
        f"more than a multiple of M. {_evidence(data)}"
    )
    return Table(
        f"{experiment}_checks",
        "Does each library train as one device would?",
        note,
        DataFrame(shown).fillna(EMPTY),
        DataFrame(data) if data else None,
        experiment,
    )


def _verdict(found: dict[str, Any]) -> str:
    return found["verdict"] if found["value"] is None else f"{found['verdict']} ({found['value']:.1e})"


def _evidence(data: list[dict[str, Any]]) -> str:
    """What lies behind every verdict that is not `ok`."""
    return " ".join(
        f"{one['library']}, {one['check']}: {one['evidence'].rstrip('.')}."
        for one in data
        if one["verdict"] in ("wrong", "refused")
    )


def speed(results: "Results", experiment: str, fidelity: str, rows: list[Row]) -> Table:
    """Step time of ours and of each peer, their ratio, and what of it the schedules explain where stages are equal."""
    lines = [_pair(results, row) for row in rows if row["library"] != "repro"]
    known = f" {IDEAL} Here the peer's ideal step over ours." * (fidelity == "emulated")
    remainder = " Runtime: the measured ratio over that." * (fidelity == "emulated")
    note = (
        "Throughput of ours over the peer's at the same model, cut, K, M, N and re-materialization, inside a round; "
        f"[low, high]: bootstrap 95 % interval over rounds, {NO_INTERVAL}; ~ where it spans 1. Steps are medians over "
        f"rounds, timed alike and without spans.{known}{remainder}"
    )
    shown, data = DataFrame([line[0] for line in lines]), DataFrame([line[1] for line in lines])
    title = f"Step time beside other libraries, {fidelity}"
    return Table(f"{experiment}_speed{suffix(fidelity)}", title, note, shown, data, experiment)


def _pair(results: "Results", peer: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """One peer's point and ours, as shown and as numbers."""
    place = {column: peer[column] for column in PLACE}
    run = results.baseline(peer, library="repro")
    own = next(iter(rows_of(results, **place, run=run)), None)
    ratio = over(results, own, library=peer["library"]) if own else Ratio(nan, nan, nan, 0, "not measured")
    keys = ("scale", "K", "M", "N", "fidelity")
    data: dict[str, Any] = {"library": peer["library"], "model": peer["model"], **{key: peer[key] for key in keys}}
    data |= {"ours_s": own["step_s"] if own else nan, "peer_s": peer["step_s"], "ratio": ratio.value}
    data |= {"low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}
    shown = {"peer": peer["library"], "model": model_name(peer["model"]), **{key: peer[key] for key in keys}}
    shown |= {"ours (ms)": number(1e3 * data["ours_s"], 1), "peer (ms)": number(1e3 * peer["step_s"], 1)}
    shown |= {"throughput, ours over peer": str(ratio) if ratio.rounds else peer["status"], "verdict": ratio.verdict}
    if peer["fidelity"] == "emulated" and peer["library"] == "torch":
        ours, theirs = ideal_steps(peer["K"], peer["M"], peer["remat"])
        data |= {"ideal": theirs / ours, "runtime": ratio.value * ours / theirs}
        rest = dataclasses.replace(ratio, **{k: getattr(ratio, k) * ours / theirs for k in ("value", "low", "high")})
        shown |= {"ideal, simulated": number(theirs / ours), f"runtime, {peer['fidelity']}": str(rest)}
    return shown, data


@cache
def ideal_steps(K: int, M: int, remat: str) -> tuple[float, float]:
    """Steps of our schedule and of the peer's in units of F, stages equal, F:R:B = 1:1:2, messages free.

    The peer recomputes a micro-batch only when its gradient has arrived, and runs backwards in the order of the
    forwards; paper/theory.py's early and plain form.
    """
    early = make_schedule("gpipe", K, M, remat)
    kinds = "RB" if remat == "always" else "B"
    orders = [[("F", j, i) for i in range(M)] + [(kind, j, i) for i in range(M) for kind in kinds] for j in range(K)]
    late = written_out("forward order, recomputed late", M, remat, orders, late=True)
    ours, theirs = (replay(schedule, lambda action: UNIT_COSTS[action.kind]).step_time for schedule in (early, late))
    return ours, theirs


def noise(results: "Results", experiment: str, rows: list[Row]) -> Table:
    """The same point measured as two runs, which differ in their seed: a ratio of 1 is to lie in the interval."""
    lines = []
    for row in rows:
        if _twin(results, row):
            ratio = over(results, row, seed=0)
            inside = EMPTY if ratio.low != ratio.low else "yes" if ratio.low <= 1 <= ratio.high else "no"
            keys = ("scale", "K", "M", "N", "fidelity", "rounds")
            place = {"model": model_name(row["model"]), **{key: row[key] for key in keys}}
            lines.append({**place, "ratio": str(ratio), "1 is inside": inside})
    note = f"Throughput with seed 1 over that with seed 0, everything else equal; 95 % interval, {NO_INTERVAL}."
    title = "The same point measured twice: what noise alone does"
    return Table(f"{experiment}_noise", title, note, DataFrame(lines), experiment=experiment)


def _twin(results: "Results", row: Row) -> bool:
    """Whether this run repeats another one with another seed."""
    return results.specs[row["run"]].seed != 0 and results.baseline(row, seed=0) is not None
