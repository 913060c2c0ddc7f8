"""`repro predict`: what a training step takes, which plan is fastest, how large a model can be."""

import dataclasses
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any

from repro.cli import largest
from repro.cli.answers import print_answer, same
from repro.cli.largest import cut_text
from repro.cli.options import parse
from repro.cli.source import Chosen, PredictOptions, chosen, memory_of, this_machine
from repro.gpipe.schedule.kinds import SCHEDULES
from repro.harness import catalog
from repro.harness.sizes import in_blocks, small
from repro.harness.spec import PLAIN, RunSpec, assigned
from repro.harness.terminal import live
from repro.harness.text import EMPTY, TIMES, above, digits, percent, ranged, size

if TYPE_CHECKING:
    from repro.harness.predict import Prediction

# Questions, and the options that only some of them have.
_DEVICE = {"device", "link", "node", "memory", "results"}
_TAKES = {
    "with --largest": {"largest", "K", "M", "schedule", "recompute", "device"},
    "with --K": {*("K", "balance", "M", "D", "schedule", "stages_per_rank", "recompute"), *_DEVICE},
    "without --K": {"devices", "top", *_DEVICE},
}
_OF_ALL = {"model", "model_args", "N", "optimizer", "json"}


@dataclasses.dataclass(frozen=True)
class Found:
    """Predicted steps, and what they are compared with."""

    of: Chosen
    plain: "Prediction"  # plain training on one device
    plans: list["Prediction"]
    one_stage: dict[int, "Prediction"]  # M -> the step of K=1; empty after a search
    memory: int | None  # bytes of a device

    def fits(self, plan: "Prediction") -> bool | None:
        if plan.peaks is None or self.memory is None:
            return None
        return max(plan.peaks) <= self.memory

    @property
    def best(self) -> "Prediction":
        """The fastest plan that fits, which may be plain training; if none fits, the leanest."""
        from repro.harness.fastest import order

        fitting = [plan for plan in (*self.plans, self.plain) if self.fits(plan) is not False]
        best = min(fitting, key=order, default=None)
        if best is None:
            return min(self.plans, key=lambda plan: max(plan.peaks or [0]))
        is_plain = self.plain in fitting and self.plain.step_s <= best.step_s
        return self.plain if is_plain else best

    def row(self, plan: "Prediction") -> dict[str, Any]:
        spec, error = plan.spec, self.of.source.error
        low, high = error.ends(plan.step_s) if error else (None, None)
        alone = self.one_stage.get(spec.M)
        return {
            "method": "plain" if plan is self.plain else spec.method,
            **same(spec, "schedule", "stages_per_rank", "K", "D", "M", "recompute"),
            "step_s": plan.step_s,
            "step_low_s": low,
            "step_high_s": high,
            "throughput": spec.N / plan.step_s,
            "speedup_vs_plain": self.plain.step_s / plan.step_s,
            "speedup_vs_k1": alone.step_s / plan.step_s if alone else None,
            "idle_over_total": plan.idle_over_total,
            "peak_bytes": plan.peaks,
            "fits": self.fits(plan),
            "cut": plan.counts,
        }

    def answer(self) -> str:
        """The fastest plan, in a sentence."""
        best, plain = self.best, self.fits(self.plain)
        of = best.spec
        at = f"{of.method}, K={of.K}, D={of.D}, M={of.M}, recompute {of.recompute}"
        if self.fits(best) is False:
            taken = above(max(best.peaks or [0]), self.memory or 0)
            return (
                f"none of these fits: the leanest, {at}, takes {taken} on its fullest device; try "
                "a larger K or M, or a smaller N"
            )
        if best is self.plain:
            return "fastest: plain training on one device; no plan of these that fits is faster"
        fastest = "fastest" if all(map(self.fits, self.plans)) else "fastest that fits"
        if plain is None:
            fastest = "fastest, if it fits (give --memory)"
        speed = ranged(best.spec.N / best.step_s, unit=self.of.model.unit)
        over_plain = ranged(self.plain.step_s / best.step_s, unit=TIMES)
        sentence = f"{fastest}: {at}: {speed}, {over_plain} over plain training"
        if plain is False:
            sentence += ", which does not fit"
        return sentence


def main(arguments: list[str]) -> int:
    from repro.harness.predict import SPLIT

    options = parse(PredictOptions, arguments, "repro predict")
    _check(options)
    if options.largest is not None:
        return largest.answer(options)
    processes = max(options.K) * options.D if options.K else options.devices
    memory = memory_of(options, processes or 1)
    of = chosen(options, processes, options.N)
    found = _given(options, of, memory) if options.K else _search(options, of, memory)
    fields = {
        "fidelity": "simulated",
        "memory_fidelity": "counted",
        "model": of.model.name,
        "model_args": of.model_args,
        "on": of.on,
        "memory": memory,
        **same(options, "N", "optimizer"),
        "unit": of.model.unit,
        "plain": found.row(found.plain),
        "plans": [found.row(plan) for plan in found.plans],
        # The steps of layers that wait are no guide to training.
        "answer": None if of.waits else found.answer(),
    }
    is_split = not of.waits and any(SCHEDULES[p.spec.schedule].split for p in found.plans)
    terminal = {
        "model": f"{of.model.name} ({assigned(of.model_args) or 'its defaults'}), N={options.N}, "
        f"optimizer {options.optimizer}",
        "on": of.on,
        "memory": memory and f"{size(memory)} of each device",
        "plans": [_cells(row, of.model.unit) for row in (fields["plain"], *fields["plans"])],
        "range": None if of.waits else of.source.range_text,
        "assumed": f"I and W together take {SPLIT} times a backward" if is_split else None,
        "answer": fields["answer"],
        "measure it": None if of.waits or options.K else _sweep(found.best),
    }
    print_answer(terminal, fields, as_json=options.json)
    return 0


def _sweep(plan: "Prediction") -> str:
    """The command that measures a plan."""
    spec = plan.spec
    values = {
        **same(spec, "model", "N", "D", "recompute", "schedule", "stages_per_rank", "optimizer"),
        "model_args": spec.model_args or None,
        "K": (spec.K,),
        "M": (spec.M,),
        "balance": plan.counts if spec.K > 1 else "time",
    }
    # Without arguments the model is as its builder makes it, which a sweep on CPU cores is not.
    on_gpus = " --scale node" if not spec.model_args and small(spec.model, "laptop") else ""
    return f"repro run {catalog.find('sweep').given(values).command}{on_gpus}"


def _cells(row: dict[str, Any], unit: str) -> dict[str, str]:
    """What a terminal shows of a row."""
    step = [1e3 * row[name] for name in ("step_s", "step_low_s", "step_high_s") if row[name]]
    over_plain, over_one = row["speedup_vs_plain"], row["speedup_vs_k1"]
    return {
        "method": row["method"],
        **{name: str(row[name]) for name in ("K", "D", "M")},
        "recompute": row["recompute"],
        "step (ms)": ranged(*step),
        unit: digits(row["throughput"]),
        "over plain": ranged(over_plain, unit=TIMES),
        "over K=1": ranged(over_one, unit=TIMES) if over_one else EMPTY,
        "idle": percent(row["idle_over_total"]),
        "peak": size(max(row["peak_bytes"])) if row["peak_bytes"] else EMPTY,
        "fits": {None: EMPTY, True: "yes", False: "no"}[row["fits"]],
        "cut": cut_text(row["cut"]),
    }


def _check(options: PredictOptions) -> None:
    """Refuse an option that the question does not have, and a missing model."""
    question = "with --K" if options.K else "without --K"
    if options.largest is not None:
        question = "with --largest"
    for field in dataclasses.fields(options):
        is_given = getattr(options, field.name) != field.default
        if is_given and field.name not in _OF_ALL | _TAKES[question]:
            flag = field.name.replace("_", "-")
            raise ValueError(f"--{flag}: has no meaning {question}; leave it out")
    if not options.model:
        raise ValueError("model: name one; try `repro predict transformer --device v100 --K 4`")


def _given(options: PredictOptions, of: Chosen, memory: int | None) -> Found:
    """The steps of each K and M; all are checked before the first."""
    from repro.gpipe.core.layers import refuse_shared
    from repro.harness.predict import predict
    from repro.models import BUILDERS

    default = [M for M in (1, 4, 32) if options.N % (options.D * M) == 0] or [1]
    Ms = list(dict.fromkeys(options.M)) or default
    fields: dict[str, Any] = {
        "model": of.model.name,
        "model_args": of.model_args,
        "fidelity": "simulated",
        "profile": of.profile,
        **same(options, "N", "D", "schedule", "stages_per_rank", "recompute", "optimizer"),
    }
    specs = dict[tuple[int, int], RunSpec]()
    for K, M in product(dict.fromkeys((1, *options.K)), Ms):
        cut = options.balance if options.balance and K > 1 else "time"
        specs[K, M] = RunSpec(**fields, K=K, M=M, balance=cut)
        specs[K, M].check_depth(len(of.model.layers))
    steps = {pair: predict(spec, of.source) for pair, spec in specs.items()}
    plans = [steps[pair] for pair in dict.fromkeys(product(options.K, Ms))]
    for counts in {plan.counts for plan in plans if options.model not in BUILDERS}:
        refuse_shared(of.model.layers, counts)
    plain = predict(specs[1, Ms[0]].model_copy(update=PLAIN), of.source)
    of.warn(options.K, [options.N, *(options.N // options.D // M for M in Ms)])
    return Found(of, plain, plans, {M: steps[1, M] for M in Ms}, memory)


def _search(options: PredictOptions, of: Chosen, memory: int | None) -> Found:
    """The fastest plans on some devices; plain training is not among them."""
    from repro.harness.fastest import Search
    from repro.harness.predict import predict

    if of.waits:
        raise ValueError(
            f"model = '{of.model.name}': its layers take the same time for every micro-batch, so "
            "there is no fastest plan; give --K, or a model that computes"
        )
    devices = options.devices or (this_machine().count if options.device == "here" else None)
    if devices is None:
        raise ValueError("--devices: how many there are; try --devices 8, or give --K 4")
    settings: dict[str, Any] = {"model_args": of.model_args, **in_blocks("laptop")}
    settings |= same(options, "N", "optimizer") | {"K": 1, "M": 1, "recompute": "never"}
    one = RunSpec(model=of.model.name, **settings)
    with live(f"counting {of.model.name}") as show:
        most = inf if memory is None else memory
        plans = Search(of.source, one, devices, most, show).best(options.top)
    of.warn([devices], [options.N])
    is_plain = {"K": 1, "D": 1, "M": 1, "recompute": "never"}
    others = [plan for plan in plans if same(plan.spec, *is_plain) != is_plain]
    return Found(of, predict(one, of.source), others, {}, memory)
