"""How slow a link may get: Table 3's measured runs at K=2 whose messages are slowed down, over a link that is not."""

from dataclasses import dataclass
from math import inf, nan
from typing import Any

from repro.gpipe.partition.layer_profile import LinkSpeed
from repro.harness.results import Results, Run
from repro.harness.spec import RunSpec
from repro.report.compare import optimizers, rows_of, speed_name, where
from repro.report.ratio import NO_INTERVAL
from repro.report.rounds import Spread, parts, spread, spread_numbers, step_over
from repro.report.style import model_name
from repro.report.table import Table, framed, number, percent

NAME = "table3"
THROTTLED = "-throttled"  # ends the names of these groups
COST = 0.1  # of the step: from where on a link is said to cost
Pair = tuple[dict[Any, Any], dict[Any, Any]]


@dataclass(frozen=True)
class Slowed:
    """One run over the same with its link not throttled: a speed in bytes/s (inf: not throttled), step over step."""

    row: Run
    speed: float
    ratio: Spread


def slowed(results: Results) -> list[list[Slowed]]:
    """For every model and place its runs, the fastest link first."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for row in rows_of(results, experiment=NAME):
        if row.group.endswith(THROTTLED):
            groups.setdefault((row.model, *row.place), []).append(row)
    return [_of_group(results, groups[key]) for key in sorted(groups)]


def _of_group(results: Results, rows: list[Run]) -> list[Slowed]:
    base = next((row for row in rows if row.spec.link is None), None)
    made = []
    for row in rows:
        link = row.spec.link
        ratio = (
            (1.0, nan, nan)
            if row is base and row.status == "done"
            else step_over(results, row, base)
        )
        made.append(Slowed(row, (link.bytes_per_second or inf) if link else inf, ratio))
    return sorted(made, key=lambda one: -one.speed)


def throttled(results: Results) -> Table:
    """Step, message and transfer for each speed of the link."""
    found = slowed(results)
    note = (
        "Measured, scaled-down models on CPU processes: their compute over their messages is not "
        "that of the paper's models, so this shows a trend. Step over step: of the same round, "
        "over that of the link not throttled (shared memory); bootstrap 95 % interval, "
        f"{NO_INTERVAL}, ~ where it spans 1. Message: one micro-batch's activations; not recorded "
        "for AmoebaNet, where they depend on the cut. Transfer: share of K x step. "
        + " ".join(
            [
                optimizers(results, (one.row for some in found for one in some), always=True),
                *sentences(results),
            ]
        )
    )
    title = "Table 3, measured small: K=2 with a link throttled to several speeds"
    return framed(
        "table3_throttled",
        title,
        note,
        [_line(results, one) for some in found for one in some],
        NAME,
    )


def _line(results: Results, one: Slowed) -> Pair:
    row, spec = one.row, results.specs[one.row.id]
    size = message_bytes(spec)
    link = LinkSpeed(bytes_per_second=one.speed)
    about = {
        "model": model_name(row.model),
        "where": where(results, row),
        "link": speed_name(one.speed),
    }
    about |= {"status": row.status, "rounds": len(row.rounds)}
    found = {
        ("measured", "step (ms)"): 1e3 * row.step_s,
        ("measured", "transfer"): parts(results, row).get("transfer", nan),
        ("message", "KiB"): size / 1024,
        ("message", "ms on this link"): 1e3 * link.seconds(int(size))
        if size == size and one.speed < inf
        else nan,
    }
    shown = {("", key): value for key, value in about.items()}
    shown |= {("measured", "step (ms)"): number(found["measured", "step (ms)"], 1)}
    shown |= {("measured", "step over step"): spread(one.ratio)}
    shown |= {("measured", "transfer"): percent(found["measured", "transfer"])}
    shown |= {("message", "KiB"): number(found["message", "KiB"], 0)}
    shown |= {("message", "ms on this link"): number(found["message", "ms on this link"])}
    data = {("", key): value for key, value in about.items()} | {
        ("", "bytes_per_second"): one.speed
    }
    return shown, data | found | spread_numbers("measured", "step over step", one.ratio)


def message_bytes(spec: RunSpec) -> float:
    """Bytes of one micro-batch of float32 between two stages; NaN where it depends on the cut, as in AmoebaNet."""
    if spec.model != "transformer" or not {"T", "d"} <= spec.model_args.keys():
        return nan
    return 4.0 * spec.N / spec.M * spec.model_args["T"] * spec.model_args["d"]


def sentences(results: Results) -> list[str]:
    """For each model, between which speeds a step becomes a tenth longer."""
    groups = slowed(results)
    several = len({one.row.model for some in groups for one in some}) < len(groups)
    said = (_sentence(some, where(results, some[0].row) if several else "") for some in groups)
    return [words for words in said if words]


def _sentence(some: list[Slowed], place: str) -> str:
    """Only what the intervals show, and only of speeds that were tried."""
    done = [one for one in some if one.speed < inf and one.ratio[0] == one.ratio[0]]
    if not done:
        return ""
    name = model_name(done[0].row.model) + (f" ({place})" if place else "")
    if all(one.ratio[1] != one.ratio[1] for one in done):
        return (
            f"{name}: too few rounds to say from which speed on a link costs {COST:.0%} of the "
            "step."
        )
    costly = [one for one in done if one.ratio[0] >= 1 + COST and one.ratio[1] > 1]
    if not costly:
        return (
            f"{name}: at no speed that was tried is a cost of {COST:.0%} shown; {_told(done[-1])}."
        )
    cheap = [one for one in done if one.speed > costly[0].speed and one.ratio[2] < 1 + COST]
    before = (
        f"less than that at {_told(cheap[-1])}"
        if cheap
        else "less is shown at no speed that was tried"
    )
    return f"{name}: a link costs {COST:.0%} of the step or more at {_told(costly[0])}, {before}."


def _told(one: Slowed) -> str:
    """`100 MB/s (1.17 [1.12, 1.20] times)`."""
    return f"{speed_name(one.speed)} ({spread(one.ratio)} times)"
