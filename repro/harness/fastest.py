"""Search for the fastest plan to train a model on some devices.

A plan is a run: schedule, K, D, M, recompute mode and cut. `repro.harness.predict` gives its step
and its memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from itertools import product
from math import inf, log
from operator import itemgetter
from typing import Any

from repro.gpipe.core.layers import on_meta, refuse_shared
from repro.gpipe.schedule.kinds import SCHEDULES
from repro.harness.predict import SPLIT, Calibrated, Prediction, Source, predict
from repro.harness.spec import Recompute, RunSpec, ScheduleName
from repro.harness.text import above

# Schedules, and how many stages a rank has.
ORDERS: tuple[tuple[ScheduleName, int | None], ...] = (
    ("gpipe", None),
    ("1f1b", None),
    ("interleaved-1f1b", 2),
    ("naive", None),
    ("zb-h1", None),
    ("interleaved-zb", 2),
    ("zb", None),
)
# Of a single stage: each backward follows its forward, so one micro-batch is in memory at a time.
ALONE: ScheduleName = "1f1b"
RECOMPUTE_MODES: tuple[Recompute, ...] = ("always", "except_last", "never")
TIE = 0.005  # steps that differ by less than about this share count as equally long
Family = tuple[str, int, int, str]  # schedule, K, D, recompute mode: plans that differ in M
Order = tuple[int, int, float, float]


def order(plan: Prediction) -> Order:
    """Sorts plans: of about equally long steps, fewer devices come first, and then less memory."""
    return _length(plan.step_s), plan.spec.K * plan.spec.D, max(plan.peaks or [0]), plan.step_s


def _length(step_s: float) -> int:
    return round(log(step_s) / TIE)


@dataclass
class Search:
    """The plans of a model on some devices."""

    source: Source  # what the layers cost
    plain: RunSpec  # plain training on one device: model, mini-batch and optimizer
    devices: int  # how many there are
    memory: float = inf  # bytes of each
    note: Callable[[str], None] = lambda _text: None  # shows how far the search is

    def best(self, top: int = 5) -> list[Prediction]:
        """The `top` best plans that fit: of each schedule, K, D and recompute mode the best M.

        A one-line ValueError if none fits.
        """
        found: dict[Family, Prediction] = {}
        least = cache(self._least)
        interleaved: dict[tuple[int, int], int] = {}  # (K, D) -> bytes of the leanest such plan
        reason = ""
        for plan in self._ascending():
            # Memory takes long to count, so not for a plan that is slower than those to be shown.
            family = plan.spec.schedule, plan.spec.K, plan.spec.D, plan.spec.recompute
            shown = sorted(found.values(), key=order)[:top]
            if len(shown) == top and _length(plan.step_s) > _length(shown[-1].step_s):
                break
            if family in found and _length(plan.step_s) > _length(found[family].step_s):
                continue
            pair = plan.spec.K, plan.spec.D
            is_interleaved = plan.spec.stages_per_rank is not None
            if not is_interleaved and least(*pair) > self.memory:
                continue
            fitting = self._fitting(plan)
            if fitting is None and is_interleaved:
                taken = max(plan.peaks or [0])
                interleaved[pair] = min(taken, interleaved.get(pair, taken))
            if fitting is None or (family in found and order(found[family]) < order(fitting)):
                continue
            try:
                refuse_shared(self._modules, fitting.counts)
            except ValueError as error:
                reason = str(error)
            else:
                found[family] = fitting
        if not found:
            sizes = {(*pair, least(*pair)) for pair in self._pairs}
            sizes |= {(*pair, size) for pair, size in interleaved.items()}
            raise ValueError(reason or self._reason(*min(sizes, key=itemgetter(2))))
        return sorted(found.values(), key=order)[:top]

    def _ascending(self) -> Iterator[Prediction]:
        """All plans, by the length of their steps; one is predicted when its bound is the least."""
        specs = [spec for pair in self._pairs for spec in self._specs(*pair)]
        waiting: list[tuple[float, int, RunSpec | Prediction]] = [
            (self._bound(spec), number, spec) for number, spec in enumerate(specs)
        ]
        heapify(waiting)
        while waiting:
            _, number, plan = heappop(waiting)
            if isinstance(plan, Prediction):
                yield plan
                continue
            at = f"{plan.method}, K={plan.K}, D={plan.D}, M={plan.M}"
            self.note(f"predicting one of {len(specs)} plans: {at}")
            predicted = predict(plan, self.source)
            heappush(waiting, (predicted.step_s, number, predicted))

    @cached_property
    def _modules(self) -> list[Any]:
        return [*on_meta(self.source.model.layers)]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """(K, D) that the devices and the mini-batch allow: K x D divides the devices."""
        devices, N = self.devices, self.plain.N
        pairs = product(range(1, min(devices, len(self._modules)) + 1), range(1, devices + 1))
        return [(K, D) for K, D in pairs if devices % (K * D) == 0 and N % D == 0]

    def _least(self, K: int, D: int) -> int:
        """Bytes that each plan of one stage a rank takes at least on its fullest device.

        One micro-batch is in memory at a time: one example, whose gradients are added to those of
        another, or all examples, whose gradients are added to none.
        """
        schedule: ScheduleName = "naive" if K > 1 else ALONE
        replica = self.plain.N // D
        fullest = []
        for M, examples in ((min(2, replica), 1), (1, replica)):
            lean = {"K": K, "D": D, "M": M, "N": D * M * examples, "schedule": schedule}
            spec = self.plain.model_copy(update=lean | {"recompute": "always"})
            fullest.append(self.source.tasks(spec, examples).cut.fullest)
        return min(fullest)

    def _specs(self, K: int, D: int) -> Iterator[RunSpec]:
        """The plans of a (K, D), with equal micro-batches of a size that has known times.

        With one micro-batch all schedules of one stage a rank are naive model parallelism.
        """
        replica = self.plain.N // D
        timed = self.source.calibration if isinstance(self.source, Calibrated) else None
        Ms = [M for M in range(1, replica + 1) if replica % M == 0]
        Ms = [M for M in Ms if timed is None or timed.covers(replica // M)]
        for M, (schedule, per_rank) in product(Ms, ORDERS):
            if K == 1:
                taken = schedule == ALONE
            elif M == 1 and per_rank is None:
                taken = schedule == "naive"
            else:
                taken = K * (per_rank or 1) <= len(self._modules)
            # Where each backward follows its own forward, "except_last" recomputes nothing.
            in_turn = M == 1 or schedule == "naive" or K == 1
            has_last = not in_turn and not SCHEDULES[schedule].ready
            modes = [mode for mode in RECOMPUTE_MODES if has_last or mode != "except_last"]
            for mode in modes if taken else ():
                fields = {"K": K, "D": D, "M": M, "schedule": schedule, "recompute": mode}
                yield self.plain.model_copy(update=fields | {"stages_per_rank": per_rank})

    def _bound(self, spec: RunSpec) -> float:
        """Seconds that a step takes at least: the work of the busiest rank of the best cut.

        With the naive schedule one rank computes at a time. Timed layers have no bound, since they
        are faster while other ranks wait.
        """
        if isinstance(self.source, Calibrated):
            return 0.0
        layers = self.source.layers(self.source.examples(spec), spec.recompute)
        factor = SPLIT if SCHEDULES[spec.schedule].split else 1.0
        work = [F + factor * B for F, B in zip(layers.forward, layers.backward, strict=True)]
        if spec.recompute == "always":
            work = [seconds + R for seconds, R in zip(work, layers.recompute, strict=True)]
        if spec.schedule == "naive":
            return spec.M * sum(work)
        return spec.M * max(max(work), sum(work) / spec.K)

    def _fitting(self, plan: Prediction) -> Prediction | None:
        """The plan if it fits, else the same with the fastest cut that does."""
        if max(plan.peaks or [0]) <= self.memory:
            return plan
        if plan.spec.stages_per_rank is not None:
            return None
        cost = self.source.cost(plan.spec, plan.examples)
        counts = self.source.tasks(plan.spec, plan.examples).cheapest(int(self.memory), cost)
        return predict(plan.spec, self.source, counts) if counts else None

    def _reason(self, K: int, D: int, size: int) -> str:
        """Why there is no plan; `size` is what the leanest one takes, which has this K and D."""
        if size <= self.memory and isinstance(self.source, Calibrated):
            sizes = self.source.calibration.sizes
            return (
                f"N = {self.plain.N}: layers were timed for micro-batches of {sizes[0]} to "
                f"{sizes[-1]} examples, and no such size divides it; try a multiple of {sizes[0]}"
            )
        return (
            f"nothing fits: the leanest plan (K={K}, D={D}) takes {above(size, self.memory)} on "
            "its fullest device; try that much memory, more devices or a smaller mini-batch"
        )
