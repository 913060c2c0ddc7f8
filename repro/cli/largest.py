"""`repro predict --largest`: the largest model that fits into a memory, counted on fake tensors."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from repro.cli.answers import print_answer, same
from repro.cli.source import PredictOptions, memory_of
from repro.costs.size_ladder import refuse_single_size, size_ladders
from repro.harness.catalog import pairs
from repro.harness.spec import assigned
from repro.harness.terminal import live
from repro.harness.text import above, size

if TYPE_CHECKING:
    from repro.costs.fit import Cut, Ladder, Step


def answer(options: PredictOptions) -> int:
    """Print the largest model that fits into a memory; 1 if none fits."""
    from repro.costs.fit import largest
    from repro.models import Model, build

    refuse_single_size(options.model)
    step = _step(options)
    memory = memory_of(options, step.config.stages)
    if memory is None:
        raise ValueError("--largest: give the memory of each stage; try --largest 8GB")
    args = pairs("model_args", options.model_args)
    ladders = size_ladders(options.model, args)
    with live(f"counting {options.model}") as show:

        def counted(**args: Any) -> Model:
            show(f"counting {options.model} with {assigned(args)}")
            return build(options.model, **args)

        found = largest(counted, step, memory, ladders)
    best, next_one = found.best, found.above
    settings = {
        "fidelity": "counted",
        "model": options.model,
        "K": step.config.stages,
        "M": step.config.micro_batches,
        **same(options, "N", "schedule", "optimizer"),
    }
    sentence = _sentence(found, args, memory)
    fields = settings | {  # sizes in bytes
        "recompute": options.recompute,
        "model_args": args,
        "memory": memory,
        "largest": best and best.plain(),
        "next": next_one and next_one.plain(),
        "answer": sentence,
    }
    shown = settings | {
        "recompute": options.recompute,
        "sizes": assigned(args) or None,
        "memory": f"{size(memory)} of each stage, in float32",
        "cut": best and cut_text(best.balance),
        "answer": sentence,
    }
    print_answer(shown, fields, as_json=options.json)
    return 0 if best is not None else 1


def _step(options: PredictOptions) -> "Step":
    from repro.costs.fit import Step
    from repro.gpipe import PipelineConfig
    from repro.gpipe.schedule.kinds import SCHEDULES
    from repro.harness.tasks.optimizers import OPTIMIZERS

    if len(options.K) > 1 or len(options.M) > 1:
        raise ValueError("--K, --M: with --largest allowed is one value of each; give one")
    (K,), (M,) = options.K or (1,), options.M or (min(32, options.N),)
    if K < 1 or not 1 <= M <= options.N:
        raise ValueError(f"--K {K}, --M {M}: allowed is K from 1, and M from 1 to N={options.N}")
    if SCHEDULES[options.schedule].interleaved:
        raise ValueError(f"--schedule {options.schedule}: with --largest a device has one stage")
    config = PipelineConfig(K, M, recompute=options.recompute, schedule=options.schedule)
    return Step(config, options.N, partial(OPTIMIZERS[options.optimizer], lr=0.01))


def _sentence(found: "Ladder", given: Mapping[str, Any], memory: int) -> str:
    """The largest size, and why it is not larger."""

    def name(cut: "Cut") -> str:
        """`L=24 (305,213,440 parameters)`."""
        chosen = {name: value for name, value in cut.args.items() if name not in given}
        return f"{assigned(chosen) or 'this size'} ({cut.parameters:,} parameters)"

    why = f"the search ended at {found.varied}={found.limit}"
    if found.varied is None:
        why = "only this size was counted: leave out L or D of --model-args to vary it"
    if found.above is not None:
        why = f"{name(found.above)} takes {above(found.above.fullest, memory)} on its fullest stage"
    if found.best is None:
        smallest = "the smallest size, " if found.varied else ""
        return f"nothing fits: {smallest}{why}; try more stages"
    used = size(found.best.fullest)
    return f"largest: {name(found.best)}, with {used} on its fullest stage; {why}"


def cut_text(counts: Sequence[int]) -> str:
    """`14+13x126+13`: equal neighbours are written once, with their number."""
    texts = []
    for count, equal in groupby(counts):
        times = len(list(equal))
        texts.append(f"{count}x{times}" if times > 1 else str(count))
    return "+".join(texts)
