"""`repro fit`: the largest model that fits into a memory per stage, counted on fake tensors."""

import dataclasses
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from annotated_types import Interval

from repro.cli.answers import AnswerOptions, same, tell
from repro.cli.options import MiniBatch, parse
from repro.cli.source import ModelName, ModelOptions
from repro.costs.size_ladder import MOST, size_ladders
from repro.costs.units import parse_bytes, readable
from repro.harness.catalog import pairs
from repro.harness.sizes import DEFAULT_N
from repro.harness.spec import Checkpoint, Optimizer, ScheduleName, assigned

if TYPE_CHECKING:
    from repro.costs.fit import Cut, Ladder, Step

_DEFAULT_M = 32  # and two slots of RMSProp: the reading that docs/results.md favours for Table 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitOptions(AnswerOptions, ModelOptions):
    """Find the largest model that fits into a given memory per stage, as in Table 1.

    Tensors are counted, not allocated, so any size works on any machine. [MODEL] is transformer
    (varied in L), amoebanet-d (in D, for L = 18, 36, 72), timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run (varied in the argument of --vary).
    """

    model: ModelName = tyro.MISSING
    """named first"""
    memory: str
    """of each stage, such as 8GB (10^9 bytes) or 8GiB (2^30)"""
    K: Annotated[int, Interval(ge=1, le=1024)] = 1
    """stages"""
    M: int | None = None
    """micro-batches; by default 32, which the authors published for Table 1's widths, or a smaller
    N"""
    N: MiniBatch = DEFAULT_N
    """mini-batch; Table 1 has 128 for AmoebaNet"""
    vary: str | None = None
    """the argument to increase, starting at 1"""
    up_to: Annotated[int | None, Interval(ge=1, le=MOST)] = None
    """the largest value of that argument; by default the search goes on until one does not fit"""
    checkpoint: Checkpoint = "always"
    """which micro-batches are recomputed; never with --M 1 is training without GPipe"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    optimizer: Optimizer | Literal["none"] = "rmsprop-momentum"
    """whose state counts; rmsprop-momentum has two slots for each parameter: with it and M=32 the
    activations of Table 1's Transformer are counted nearest to the printed ones"""


def main(arguments: list[str]) -> int:
    options = parse(FitOptions, arguments, "repro fit")
    from repro.costs.fit import largest
    from repro.models import build

    memory, unit = parse_bytes("--memory", options.memory)
    step = _step(options)
    args = pairs("model_args", options.model_args)
    ladders = size_ladders(options.model, args, options.vary, options.up_to)
    found = largest(partial(build, options.model), step, memory, ladders)
    best, above = found.best, found.above
    settings = {
        "model": options.model,
        "memory": memory,
        "fidelity": "counted",
        "K": step.config.stages,
        "M": step.config.micro_batches,
        "N": step.batch,
        **same(options, "checkpoint", "schedule", "optimizer"),
    }
    fields = settings | {  # sizes in bytes
        "largest": best and best.plain(),
        "next": above and above.plain(),
        "limit_reached": bool(best and not above and found.varied and not found.unchanged),
        "unchanged": found.unchanged,
        "refused": [{"args": dict(one.args), "reason": one.reason} for one in found.refused],
    }
    terminal = settings | {"memory": f"{readable(memory, unit)} of each stage"}
    if best is None:
        terminal["largest"] = "nothing fits"
    else:
        named = f"any {found.varied}, such as {_name(best)}" if found.unchanged else _name(best)
        terminal |= {"largest": named, "layers": _counts(best.balance)}
        terminal["counted"] = _stages(best, unit)
    terminal["end"] = _end(found, memory, unit)
    if found.refused:
        count, first = len(found.refused), found.refused[0]
        terminal["left out"] = (
            f"{count} size{'s' if count > 1 else ''} that the model refuses; "
            f"{assigned(first.args)}: {first.reason}"
        )
    tell(terminal, fields, as_json=options.json)
    return 0 if best is not None else 1


def _step(options: FitOptions) -> "Step":
    from repro.costs.fit import Step
    from repro.gpipe import PipelineConfig
    from repro.harness.tasks.optimizers import OPTIMIZERS

    M = min(_DEFAULT_M, options.N) if options.M is None else options.M
    if not 1 <= M <= options.N:
        raise ValueError(f"--M {M}: allowed is 1 to N={options.N}")
    make = None if options.optimizer == "none" else partial(OPTIMIZERS[options.optimizer], lr=0.01)
    config = PipelineConfig(options.K, M, checkpoint=options.checkpoint, schedule=options.schedule)
    return Step(config, options.N, make)


def _end(found: "Ladder", memory: int, unit: str) -> str:
    cut = found.above or found.best
    assert cut is not None
    used = f"its fullest stage takes {readable(cut.fullest, unit)} of {readable(memory, unit)}"
    if cut is found.above:
        size = "one size up" if found.best else "the smallest size"
        return f"{size}, {_name(cut)}, does not fit: {used}; more stages would help"
    if found.varied is None:
        return f"{used}; only this size was counted: --vary NAME varies an argument"
    if found.unchanged:
        return f"{used}, whatever {found.varied} is; --vary NAME varies another argument"
    limit = f"search limit reached at {found.varied}={found.limit}"
    return f"{limit}: {used}"


def _stages(cut: "Cut", unit: str) -> list[dict[str, str]]:
    """Memory of each stage by kind; one line for equal neighbours."""
    from repro.costs.stage import KINDS

    lines: dict[str, dict[str, int]] = {}  # stages -> bytes by kind
    first = 0
    for stage, equal in groupby(cut.stages):
        last = first + len(list(equal)) - 1
        lines[str(first) if first == last else f"{first}-{last}"] = {**stage.by_kind}
        first = last + 1
    if len(cut.stages) > 1:
        lines["all"] = {kind: sum(stage.by_kind[kind] for stage in cut.stages) for kind in KINDS}
    return [
        {"stage": name}
        | {kind: readable(line[kind], unit) if line[kind] else "-" for kind in KINDS}
        | {"total": readable(sum(line.values()), unit)}
        for name, line in lines.items()
    ]


def _name(cut: "Cut") -> str:
    """`L=24 (305,213,440 parameters)`."""
    return f"{assigned(cut.args) or 'this size'} ({cut.parameters:,} parameters)"


def _counts(balance: tuple[int, ...]) -> str:
    """`14+13x126+13`: equal neighbours are written once, with their number."""
    texts = []
    for count, equal in groupby(balance):
        times = len(list(equal))
        texts.append(f"{count}x{times}" if times > 1 else str(count))
    return "+".join(texts)
