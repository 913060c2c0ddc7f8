"""`repro fit`: the largest model that fits into a memory per stage, counted on fake tensors."""

import dataclasses
import json
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.options import check_range, parse_named
from repro.harness.catalog import pairs
from repro.harness.spec import Checkpoint, Optimizer, ScheduleName, assigned

if TYPE_CHECKING:
    from repro.costs.fit import Cut, Fit, Step

_MOST_UP_TO = 2**16
BATCH = {"amoebanet-b": 128, "amoebanet-d": 128}  # mini-batches of Table 1; 32 for all else
DEFAULT_M = 32  # and two slots of RMSProp: the reading that docs/results.md favours for Table 1


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Find the largest model that fits into a given memory per stage, as in Table 1.

    Tensors are counted, not allocated, so any size works on any machine. [MODEL] is transformer
    (varied in L), amoebanet-d (in D, for L = 18, 36, 72), timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run (varied in the argument of --vary).
    """

    memory: str
    """of each stage, such as 8GB (10^9 bytes) or 8GiB (2^30)"""
    model: str = ""
    """the model, if it is not named first"""
    stages: int = 1
    """K"""
    micro_batches: int | None = None
    """M; by default 32, which the authors published for Table 1's widths, or a smaller batch"""
    batch: int | None = None
    """mini-batch N; by default Table 1's: 128 for AmoebaNet, 32 for every other model"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """fixed arguments of the model, such as T=512"""
    vary: str | None = None
    """the argument to increase, starting at 1"""
    up_to: int | None = None
    """the largest value of that argument; by default 4096, for AmoebaNet's D 2048"""
    checkpoint: Checkpoint = "always"
    """which micro-batches are recomputed; never with --micro-batches 1 is training without GPipe"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    optimizer: Optimizer | Literal["none"] = "rmsprop-momentum"
    """whose state counts; rmsprop-momentum has two slots for each parameter: with it and M=32 the
    activations of Table 1's Transformer are counted nearest to the printed ones"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, sizes in bytes"""


def main(arguments: list[str]) -> int:
    options = parse_named(
        FitOptions, arguments, "fit", "model", "try `repro fit amoebanet-d --memory 8GB`"
    )
    from repro.costs.units import parse_bytes

    memory, unit = parse_bytes("--memory", options.memory)
    step = _step(options)
    fit = _search(options, step, memory)
    if options.json:
        print(json.dumps(_plain(options, step, memory, fit)))
    else:
        print(_answer(options, step, memory, unit, fit))
    return 0 if fit.best is not None else 1


def _step(options: FitOptions) -> "Step":
    from repro.costs.fit import Step
    from repro.gpipe import PipelineConfig
    from repro.harness.tasks.optimizers import OPTIMIZERS

    batch = BATCH.get(options.model, 32) if options.batch is None else options.batch
    check_range("stages", options.stages, 1024)
    check_range("batch", batch, 2**20)
    check_range("up-to", options.up_to, _MOST_UP_TO)
    optimizer = None
    if options.optimizer != "none":
        optimizer = partial(OPTIMIZERS[options.optimizer], lr=0.01)
    M = min(DEFAULT_M, batch) if options.micro_batches is None else options.micro_batches
    if not 1 <= M <= batch:
        raise ValueError(f"--micro-batches {M}: allowed is 1 to the batch of {batch}")
    config = PipelineConfig(
        options.stages, M, checkpoint=options.checkpoint, schedule=options.schedule
    )
    return Step(config, batch, optimizer)


def _search(options: FitOptions, step: "Step", memory: int) -> "Fit":
    from repro.costs.fit import Search
    from repro.costs.size_ladder import size_ladders
    from repro.models import build

    model = options.model
    if options.vary is not None:
        _check_varied(model, options.vary)
    args = pairs("model_args", options.model_args)
    return Search(partial(build, model), step, memory).largest(
        size_ladders(model, args, options.vary, options.up_to)
    )


def _check_varied(model: str, name: str) -> None:
    from repro.models import parameters

    parameter = parameters(model).get(name)
    if parameter is None:
        return  # the model's builder refuses it, and lists its arguments
    default = parameter.default
    if isinstance(default, bool) or parameter.annotation in (bool, "bool"):
        kind = "true or false"
    elif isinstance(default, str) or parameter.annotation in (str, "str"):
        kind = "text"
    else:
        return
    value = "" if default is parameter.empty else f", by default {default!r}"
    raise ValueError(
        f"--vary {name}: it is {kind}{value}; allowed is an argument that is a whole number"
    )


def _answer(options: FitOptions, step: "Step", memory: int, unit: str, found: "Fit") -> str:
    """The answer for the terminal.

    Args:
        options: of the command.
        step: the counted training step.
        memory: bytes of a stage.
        unit: "GB" or "GiB", as the user wrote it.
        found: the answer of the search.
    """
    from repro.costs.units import readable

    readable_size = partial(readable, unit=unit)
    best, above = found.best, found.above
    stages = "1 stage" if step.config.stages == 1 else f"{step.config.stages} stages"
    lines = [
        f"{stages} of {readable_size(memory)} each; N={step.batch}, M={step.config.micro_batches}, "
        f"re-materialization {step.config.checkpoint}, schedule {step.config.schedule}, optimizer "
        f"{options.optimizer}; counted: tensors only, in the model's own number formats"
    ]
    if best is None:
        lines.append("nothing fits")
    else:
        which = f"any {found.varied}, such as" if found.unchanged else "largest:"
        lines += [
            f"{which} {_name(best)}; layers {_counts(best.balance)}",
            "",
            *_table(best, unit),
            "",
        ]
    if above is not None:
        size = "one size up" if best else "the smallest"
        ratio = above.fullest / memory
        excess = f"{ratio:,.0f} times the memory"
        if ratio < 11:
            excess = f"{ratio - 1:.1%} more than the memory"
        remedy = "more stages"
        if step.config.micro_batches < step.batch:
            remedy = "more stages or smaller micro-batches"
        lines.append(
            f"{size}, {_name(above)}, takes {readable_size(above.fullest)} on its fullest stage: "
            f"{excess}; {remedy} would help"
        )
    elif best is not None:
        used = f"{readable_size(best.fullest)} of {readable_size(memory)}"
        lines.append(_search_end(found, used))
    if found.refused:
        first, count = found.refused[0], len(found.refused)
        left_out = "one size was left out"
        if count > 1:
            left_out = f"{count} sizes were left out, since the model refuses them"
        lines.append(f"{left_out}; {assigned(first.args)}: {first.reason}")
    return "\n".join(lines)


def _search_end(found: "Fit", used: str) -> str:
    """Why the search ended although everything fitted."""
    if found.varied is None:
        return (
            f"its fullest stage takes {used}; no argument was left to vary, so only this size was "
            "counted: --vary NAME varies one, or leave one out of --model-args"
        )
    if found.unchanged:
        return (
            f"{found.varied} does not change the model: its fullest stage always takes "
            f"{used}; --vary NAME varies another argument"
        )
    further = min(2 * found.limit, _MOST_UP_TO)
    hint = f"; --up-to {further} searches further" if further > found.limit else ""
    return (
        f"search limit reached at {found.varied}={found.limit}: the fullest stage takes {used}, "
        f"so larger models may fit{hint}"
    )


def _name(cut: "Cut") -> str:
    """`L=24 (305.2 million parameters)`."""
    count = f"{cut.parameters:,}"
    if cut.parameters >= 10**6:
        count = f"{cut.parameters / 1e6:,.1f} million"
    return f"{assigned(cut.args) or 'this size'} ({count} parameters)"


def _counts(balance: tuple[int, ...]) -> str:
    """`14+13x126+13`: equal neighbours are written once, with their number."""
    texts = []
    for count, equal in groupby(balance):
        times = len(list(equal))
        texts.append(f"{count}x{times}" if times > 1 else str(count))
    return "+".join(texts)


def _table(cut: "Cut", unit: str) -> list[str]:
    """Lines of a table: memory of each stage by kind; one line for equal neighbours."""
    from repro.costs import KINDS
    from repro.costs.units import readable

    kinds = [kind for n, kind in enumerate(KINDS) if any(stage.kinds[n] for stage in cut.stages)]
    rows = [["stage", *kinds, "total"]]
    first = 0
    for stage, equal in groupby(cut.stages):
        last = first + len(list(equal)) - 1
        name = str(first) if first == last else f"{first}-{last}"
        sizes = [*(stage.by_kind[kind] for kind in kinds), stage.total]
        rows.append([name, *(readable(size, unit) for size in sizes)])
        first = last + 1
    if len(cut.stages) > 1:
        sizes = [sum(stage.by_kind[kind] for stage in cut.stages) for kind in kinds]
        sizes.append(sum(stage.total for stage in cut.stages))
        rows.append(["all", *(readable(size, unit) for size in sizes)])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _plain(options: FitOptions, step: "Step", memory: int, found: "Fit") -> dict[str, Any]:
    return {
        "model": options.model,
        "memory": memory,
        "fidelity": "counted",
        "K": step.config.stages,
        "M": step.config.micro_batches,
        "N": step.batch,
        "checkpoint": step.config.checkpoint,
        "schedule": step.config.schedule,
        "optimizer": options.optimizer,
        "largest": found.best and found.best.plain(),
        "next": found.above and found.above.plain(),
        "limit_reached": found.above is None
        and found.best is not None
        and found.varied is not None
        and not found.unchanged,
        "unchanged": found.unchanged,
        "refused": [{"args": dict(size.args), "reason": size.reason} for size in found.refused],
    }
