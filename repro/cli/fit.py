"""`repro fit`: the largest model that fits into a given memory per stage, by counting."""

import dataclasses
import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.options import parse_named
from repro.harness.catalog import pairs
from repro.harness.spec import Checkpoint, Optimizer, ScheduleName, assigned

if TYPE_CHECKING:
    from repro.costs.fit import Cut, Fit, Step

_FURTHEST = 2**16  # --up-to
BATCH = {"amoebanet-b": 128, "amoebanet-d": 128}  # mini-batches of Table 1; 32 for all else


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Find the largest model that fits into a given memory per stage, as in Table 1.

    [MODEL] is transformer (grown in L), amoebanet-d (in D, for L = 18, 36, 72), timm:NAME, or a
    function of your own, import:package.module:function, which is code and is run (grown in the
    argument that --vary names).
    """

    memory: str
    """of each stage, such as 8GB (10^9 bytes) or 8GiB (2^30)"""
    model: str = ""
    """the model, where it is not named first"""
    stages: int = 1
    """K"""
    micro_batches: int | None = None
    """M, at most the batch; by default 16, as in our Table 1; more take less memory"""
    batch: int | None = None
    """mini-batch N; by default Table 1's: 128 for AmoebaNet, 32 for every other model"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """fixed arguments of the model, such as T=512"""
    vary: str | None = None
    """the argument to grow from 1 on"""
    up_to: int | None = None
    """the largest value to try of the argument that grows; by default 4096, or 2048 for D"""
    checkpoint: Checkpoint = "always"
    """which micro-batches are recomputed; never with --micro-batches 1 is training without GPipe"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    optimizer: Optimizer | Literal["none"] = "rmsprop"
    """whose state counts; Table 1 has RMSProp"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, sizes in bytes"""


def main(arguments: list[str]) -> int:
    """The verb."""
    options = parse_named(
        FitOptions, arguments, "fit", "model", "try `repro fit amoebanet-d --memory 8GB`"
    )
    model = options.model
    from repro.costs.units import parse_bytes

    memory, unit = parse_bytes("--memory", options.memory)
    step = _step(options, model)
    found = _search(options, model, step, memory)
    if options.json:
        print(json.dumps(_plain(options, model, step, memory, found)))
    else:
        print(_told(options, step, memory, unit, found))
    return 0 if found.best is not None else 1


def _step(options: FitOptions, model: str) -> "Step":
    from repro.costs.fit import Step
    from repro.harness.tasks.optimizers import OPTIMIZERS

    batch = BATCH.get(model, 32) if options.batch is None else options.batch
    limits = (
        ("stages", options.stages, 1024),
        ("batch", batch, 2**20),
        ("up-to", 1 if options.up_to is None else options.up_to, _FURTHEST),
    )
    for name, value, most in limits:
        if not 1 <= value <= most:
            raise ValueError(f"--{name} {value}: allowed is 1 to {most}")
    optimizer = (
        None if options.optimizer == "none" else partial(OPTIMIZERS[options.optimizer], lr=0.01)
    )
    M = min(16, batch) if options.micro_batches is None else options.micro_batches
    if not 1 <= M <= batch:
        raise ValueError(f"--micro-batches {M}: allowed is 1 to the batch of {batch}")
    return Step(options.stages, M, batch, options.checkpoint, options.schedule, optimizer)


def _search(options: FitOptions, model: str, step: "Step", memory: int) -> "Fit":
    from repro.costs.fit import Search
    from repro.costs.size_ladder import size_ladders
    from repro.models import build

    if options.vary is not None:
        _check_varied(model, options.vary)
    args = pairs("model_args", options.model_args)
    return Search(partial(build, model), step, memory).largest(
        size_ladders(model, args, options.vary, options.up_to)
    )


def _check_varied(model: str, name: str) -> None:
    """Raise a one-line ValueError unless the argument may be a whole number."""
    from repro.models import parameters

    parameter = parameters(model).get(name)
    if parameter is None:
        return  # building the model says what it takes
    given = parameter.default
    if isinstance(given, str | bool) or parameter.annotation in (str, bool, "str", "bool"):
        what = (
            "true or false"
            if isinstance(given, bool) or parameter.annotation in (bool, "bool")
            else "text"
        )
        shown = "" if given is parameter.empty else f", by default {given!r}"
        raise ValueError(
            f"--vary {name}: it is {what}{shown}; allowed is an argument that is a whole number"
        )


def _told(options: FitOptions, step: "Step", memory: int, unit: str, found: "Fit") -> str:
    """The answer for people."""
    from repro.costs.units import readable

    shown = partial(readable, unit=unit)
    lines = [
        f"{step.stages} stage{'s' * (step.stages > 1)} of {shown(memory)} each; N={step.batch}, "
        f"M={step.micro_batches}, re-materialization {step.checkpoint}, schedule {step.schedule}, "
        f"optimizer {options.optimizer}; counted: tensors alone, of the types that the model is "
        "built with"
    ]
    if (best := found.best) is None:
        lines.append("nothing fits")
    else:
        which = f"any {found.varied}, such as" if found.unchanged else "largest:"
        lines += [
            f"{which} {_name(best)}; layers {_counts(best.balance)}",
            "",
            *_table(best, unit),
            "",
        ]
    if (above := found.above) is not None:
        more = above.fullest / memory - 1
        size = "one size up" if best else "the smallest"
        share = (
            f"{more:.1%} more than there is"
            if more < 10
            else f"{more + 1:,.0f} times what there is"
        )
        help_ = "more stages" + " or smaller micro-batches" * (step.micro_batches < step.batch)
        lines.append(
            f"{size}, {_name(above)}, takes {shown(above.fullest)} on its fullest stage: {share}; "
            f"{help_} would help"
        )
    elif best is not None:
        lines.append(_limit(found, f"{shown(best.fullest)} of {shown(memory)}"))
    if found.refused:
        first, count = found.refused[0], len(found.refused)
        were = (
            f"{count} sizes were left out, since the model refuses them"
            if count > 1
            else "one size was left out"
        )
        lines.append(f"{were}; {assigned(first.args)}: {first.reason}")
    return "\n".join(lines)


def _limit(found: "Fit", used: str) -> str:
    """Why the search ended where nothing larger was found not to fit."""
    if found.varied is None:
        return (
            f"its fullest stage takes {used}; no argument was left to grow, so this size alone was "
            "looked at: --vary NAME grows one, or leave one out of --model-args"
        )
    if found.unchanged:
        return (
            f"{found.varied} does not change the model: with every one its fullest stage takes "
            f"{used}; --vary NAME grows another argument"
        )
    further = min(2 * found.limit, _FURTHEST)
    more = f"; --up-to {further} looks further" if further > found.limit else ""
    return (
        f"search limit reached at {found.varied}={found.limit}: the fullest stage takes {used}, "
        f"so larger models may fit{more}"
    )


def _name(cut: "Cut") -> str:
    many = (
        f"{cut.parameters / 1e6:,.1f} million" if cut.parameters >= 10**6 else f"{cut.parameters:,}"
    )
    return f"{assigned(cut.args) or 'this size'} ({many} parameters)"


def _counts(balance: tuple[int, ...]) -> str:
    """`14+13x126+13` for many stages."""
    runs: list[list[int]] = []
    for count in balance:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return "+".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)


def _table(cut: "Cut", unit: str) -> list[str]:
    """Memory of each stage by kind; of many stages that are alike the first."""
    from repro.costs import KINDS
    from repro.costs.units import readable

    kinds = [kind for n, kind in enumerate(KINDS) if any(stage.kinds[n] for stage in cut.stages)]
    rows = [["stage", *kinds, "total"]]
    groups: list[tuple[int, int]] = []
    for j, stage in enumerate(cut.stages):
        if groups and cut.stages[groups[-1][0]] == stage and groups[-1][1] == j - 1:
            groups[-1] = (groups[-1][0], j)
        else:
            groups.append((j, j))
    for first, last in groups:
        stage = cut.stages[first]
        sizes = [*(stage.by_kind[kind] for kind in kinds), stage.total]
        rows.append(
            [
                str(first) if first == last else f"{first}-{last}",
                *(readable(size, unit) for size in sizes),
            ]
        )
    whole = [
        *(sum(s.by_kind[kind] for s in cut.stages) for kind in kinds),
        sum(s.total for s in cut.stages),
    ]
    if len(cut.stages) > 1:
        rows.append(["all", *(readable(size, unit) for size in whole)])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _plain(
    options: FitOptions, model: str, step: "Step", memory: int, found: "Fit"
) -> dict[str, Any]:
    """The answer for programs."""
    return {
        "model": model,
        "memory": memory,
        "fidelity": "counted",
        "K": step.stages,
        "M": step.micro_batches,
        "N": step.batch,
        "checkpoint": step.checkpoint,
        "schedule": step.schedule,
        "optimizer": options.optimizer,
        "largest": found.best and found.best.plain(),
        "next": found.above and found.above.plain(),
        "limit_reached": found.above is None
        and found.best is not None
        and found.varied is not None
        and not found.unchanged,
        "unchanged": found.unchanged,
        "refused": [{"args": dict(one.args), "reason": one.reason} for one in found.refused],
    }
