"""Search for the fastest plan to train a model on some devices, and why the others lose.

A plan says how the devices are used: schedule, K, D, M, checkpoint mode and cut. Its step and its
memory are those of `repro.harness.predict`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import itemgetter
from typing import Any

from repro.costs.error_bars import ErrorBar, step_error
from repro.costs.units import readable
from repro.gpipe.core.layers import Layer, on_meta, refuse_shared
from repro.harness.predict import Calibrated, Source, predict
from repro.harness.sizes import in_blocks
from repro.harness.spec import Checkpoint, Optimizer, RunSpec, ScheduleName
from repro.simulate.calibration import Calibration

# Schedules, and how many stages a rank holds; those that are not executed cannot be measured.
ORDERS: tuple[tuple[ScheduleName, int | None], ...] = (
    ("gpipe", None),
    ("1f1b", None),
    ("interleaved-1f1b", 2),
    ("naive", None),
)
REFERENCE = "naive"  # the schedule that is shown for comparison
# Of a single stage: each backward follows its forward, so one micro-batch is in memory at a time.
ALONE: ScheduleName = "1f1b"
CHECKPOINTS: tuple[Checkpoint, ...] = ("always", "except_last", "never")
# Steps that differ by less than this share count as equally long; then the plan with less memory is
# better.
TIE = 0.005
Family = tuple[str, int, int, str]  # schedule, K, D, checkpoint mode: plans that differ in M


@dataclass(frozen=True)
class Plan:
    """One way to use the devices, with its simulated step and its counted memory."""

    spec: RunSpec  # the run that measures the plan, with the layers of each stage
    step_s: float
    parts: Mapping[str, float]  # cause -> seconds of the step, a mean over the stages
    idle: float  # share of K x step in which stages do not work
    peak_bytes: tuple[int, ...] = ()  # of each rank of one replica; empty if not counted
    refused: str = ""  # why `repro.gpipe.Pipeline` does not take its cut

    @property
    def devices(self) -> int:
        return self.spec.K * self.spec.D

    @property
    def examples(self) -> int:
        return self.spec.N // self.spec.D // self.spec.M

    @property
    def peak(self) -> int:
        return max(self.peak_bytes)

    @property
    def fullest(self) -> int:
        return self.peak_bytes.index(self.peak)

    @property
    def order(self) -> tuple[float, int, int]:
        return self.step_s, self.devices, self.peak

    def share(self, cause: str) -> float:
        return self.parts[cause] / self.step_s


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes:
        plans: those that fit, from the best on: of each schedule, K, D and checkpoint mode the best
            M. The worst are left out.
        too_large: plans faster than the best one that do not fit or are refused; fastest first.
        do_not_fit: the leanest plan of each (K, D) that does not fit at all, most devices first.
    """

    plans: tuple[Plan, ...]
    reference: Plan | None  # the best naive model parallelism that fits
    too_large: tuple[Plan, ...]
    do_not_fit: tuple[Plan, ...]
    one_device_bytes: int  # needed without a pipeline and without recomputation
    examined: int  # plans that were simulated
    error: ErrorBar | None  # of a step; None where not known


def why_slower(plan: Plan, best: Plan) -> str:
    ratio = plan.step_s / best.step_s - 1
    memory = plan.peak / best.peak
    if ratio <= TIE and memory >= 1:
        amount = f"{memory:.2f} times the memory" if f"{memory:.2f}" != "1.00" else "as much memory"
        return f"as fast, with {amount} on its fullest stage"
    slower = f"{ratio:.1%} slower" if ratio < 1 else f"{1 + ratio:.1f} times as long"
    cause = max(plan.parts, key=lambda name: plan.parts[name] - best.parts[name])
    return f"{slower}: {_reason(cause, plan, best)}"


def _reason(cause: str, plan: Plan, best: Plan) -> str:
    if cause == "computation" and plan.devices < best.devices:
        return f"computes on fewer devices: {plan.devices} instead of {best.devices}"
    if cause == "computation" and plan.examples < best.examples:
        return f"smaller micro-batches: {plan.examples} instead of {best.examples} examples"
    if cause == "recompute" and best.spec.checkpoint == "never":
        return "recomputes what fits without"
    own, others = plan.share(cause), best.share(cause)
    return f"{cause} {own:.0%} instead of {others:.0%}"


@dataclass
class Question:
    """How some devices train a model best; `answer` searches all plans."""

    source: Source  # what the layers cost
    model_args: Mapping[str, Any]
    devices: int  # how many there are
    memory: int  # bytes of each
    N: int  # mini-batch, of all replicas together
    optimizer: Optimizer = "sgd"  # whose state counts
    examined: int = 0  # plans that were simulated

    @property
    def model(self) -> str:
        return self.source.model.name if self.source.model else ""

    @cached_property
    def _one_device(self) -> RunSpec:
        fields: dict[str, Any] = {"N": self.N, "optimizer": self.optimizer, "K": 1, "M": 1}
        fields |= {"model_args": dict(self.model_args), "checkpoint": "never"}
        fields |= in_blocks("laptop")
        return RunSpec(model=self.model, **fields)

    @property
    def _timed(self) -> Calibration | None:
        return self.source.calibration if isinstance(self.source, Calibrated) else None

    @cached_property
    def _L(self) -> int:
        return len(self.source.counter)

    def answer(self, top: int = 5) -> Advice:
        """The `top` best plans; a one-line ValueError if none fits."""
        memory = self.memory
        # The leanest plan has micro-batches of one example, 1F1B, and recomputes everything.
        lean = {pair: self._leanest(*pair, self.N // pair[1]) for pair in self._pairs}
        cuts = {pair: self.source.cuts_by_memory(spec).evenest() for pair, spec in lean.items()}
        needed = {pair: max(self._peaks(spec, cuts[pair])) for pair, spec in lean.items()}
        fitting_pairs = [pair for pair, size in needed.items() if size <= memory]
        if not fitting_pairs:
            (K, D), size = min(needed.items(), key=lambda item: item[1])
            raise self._nothing_fits(K, D, size)
        specs = [spec for pair in fitting_pairs for spec in self._specs(*pair)]
        if not specs and self._timed:
            timed = self._timed.sizes
            raise ValueError(
                f"N = {self.N}: layers were timed for micro-batches of {timed[0]} to "
                f"{timed[-1]} examples, and no such size divides it; try a multiple of "
                f"{timed[0]}, or calibrate with another --N and --smallest"
            )
        fitting, too_large = self._examine(specs, top)
        if not fitting:
            leanest = min(too_large, key=lambda plan: plan.peak)
            if leanest.refused:
                raise ValueError(leanest.refused)
            raise self._nothing_fits(leanest.spec.K, leanest.spec.D, leanest.peak)
        ranked = _ranked(fitting.values())
        fastest: dict[Family, Plan] = {}  # faster than the best one, but too large or refused
        for plan in sorted(too_large, key=lambda plan: plan.step_s):
            if plan.step_s < ranked[0].step_s:
                fastest.setdefault(_family(plan.spec), plan)
        # Of pairs that do not fit, with the smallest micro-batches that were timed.
        smallest = {pair: self._micro_batches(pair[1])[-1:] for pair in needed}
        others = [
            self._with_memory(self._plan(self._leanest(*pair, M)))
            for pair, size in needed.items()
            for M in smallest[pair]
            if size > memory
        ]
        return Advice(
            tuple(ranked[:top]),
            next((plan for plan in ranked if plan.spec.schedule == REFERENCE), None),
            tuple(fastest.values()),
            tuple(sorted(others, key=lambda plan: -plan.devices)),
            self._peaks(self._one_device, (self._L,))[0],
            self.examined,
            step_error(self.source.durations),
        )

    def _examine(self, specs: list[RunSpec], top: int) -> tuple[dict[Family, Plan], list[Plan]]:
        """The best plan that fits of each family, and plans that would be better but do not fit.

        Plans that cannot be shown any more, of `top` families, are neither simulated nor counted.
        """
        fitting: dict[Family, Plan] = {}
        too_large: list[Plan] = []
        bounds = [(self._bound(spec), spec) for spec in specs]
        for bound, spec in sorted(bounds, key=itemgetter(0)):
            rival = fitting.get(_family(spec))
            shown = sorted(plan.step_s for plan in fitting.values())[:top]
            # As fast as those that are shown, to a tie, it may still take less memory.
            is_too_slow = len(shown) == top and bound > shown[-1] * (1 + TIE)
            if is_too_slow and spec.schedule != REFERENCE:
                continue
            if rival is not None and bound > rival.step_s:
                continue
            plan = self._plan(spec)
            if rival is not None and plan.step_s > rival.step_s:
                continue
            plan = self._with_memory(plan)
            if plan.refused or plan.peak > self.memory:
                too_large.append(plan)
            elif rival is None or plan.order < rival.order:
                fitting[_family(spec)] = plan
        return fitting, too_large

    @cached_property
    def _modules(self) -> Sequence[Layer]:
        return [*on_meta(self.source.model.layers)] if self.source.model else []

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        """(K, D) that the devices and the mini-batch allow: K x D divides the devices."""
        devices = self.devices
        pairs = product(range(1, min(devices, self._L) + 1), range(1, devices + 1))
        return [(K, D) for K, D in pairs if devices % (K * D) == 0 and self.N % D == 0]

    def _micro_batches(self, D: int) -> list[int]:
        """Values of M for a replica's part of the mini-batch: equal, and of sizes with times."""
        replica = self.N // D
        Ms = [M for M in range(1, replica + 1) if replica % M == 0]
        return [M for M in Ms if not self._timed or self._timed.covers(replica // M)]

    def _leanest(self, K: int, D: int, M: int) -> RunSpec:
        lean = {"K": K, "D": D, "M": M, "schedule": "1f1b", "checkpoint": "always"}
        return self._one_device.model_copy(update=lean)

    def _specs(self, K: int, D: int) -> Iterator[RunSpec]:
        """The runs that measure the plans of a (K, D).

        With one micro-batch all schedules that hold one stage on each rank are naive model
        parallelism.
        """
        for M, (schedule, per_rank) in product(self._micro_batches(D), ORDERS):
            if K == 1:
                taken = schedule == ALONE
            elif M == 1 and per_rank is None:
                taken = schedule == REFERENCE
            else:
                taken = K * (per_rank or 1) <= self._L
            # Where each backward follows its own forward, "except_last" recomputes nothing.
            in_turn = M == 1 or schedule == "naive" or K == 1
            modes = [mode for mode in CHECKPOINTS if not in_turn or mode != "except_last"]
            for mode in modes if taken else ():
                fields = {"K": K, "D": D, "M": M, "schedule": schedule, "checkpoint": mode}
                yield self._one_device.model_copy(update=fields | {"stages_per_rank": per_rank})

    def _bound(self, spec: RunSpec) -> float:
        """Seconds that a step takes at least: the work of the busiest rank of the best cut.

        Of the naive schedule it is the work of all ranks, since one computes at a time. With a
        calibration it is zero, since layers are faster while other ranks wait.
        """
        if self._timed:
            return 0.0
        layers = self.source.layers(self.source.examples(spec), spec.checkpoint)
        work = [F + B for F, B in zip(layers.forward, layers.backward, strict=True)]
        if spec.checkpoint == "always":
            work = [seconds + R for seconds, R in zip(work, layers.recompute, strict=True)]
        if spec.schedule == "naive":
            return spec.M * sum(work)
        return spec.M * max(max(work), sum(work) / spec.K)

    def _plan(self, spec: RunSpec, counts: tuple[int, ...] = ()) -> Plan:
        self.examined += 1
        step = predict(spec, self.source, counts)
        spec = spec.model_copy(update={"balance": step.counts})
        plan = Plan(spec, step.step_s, step.parts, step.idle_over_total)
        try:
            refuse_shared(self._modules, step.counts)
        except ValueError as error:
            return replace(plan, refused=str(error))
        return plan

    def _with_memory(self, plan: Plan) -> Plan:
        """Count the memory of a plan; where it does not fit, of the cut that takes the least."""
        spec = plan.spec
        assert isinstance(spec.balance, tuple)
        counted = replace(plan, peak_bytes=self._peaks(spec, spec.balance))
        if counted.peak <= self.memory or spec.stages_per_rank is not None:
            return counted
        cuts = self.source.cuts_by_memory(spec)
        if cuts.pack(self.memory) is None:
            return counted
        counts = cuts.evenest()
        peaks = self._peaks(spec, counts)
        if max(peaks) > self.memory:
            return counted
        return replace(self._plan(spec, counts), peak_bytes=peaks)

    def _peaks(self, spec: RunSpec, counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.source.peaks(spec, self.source.examples(spec), counts) or ())

    def _nothing_fits(self, K: int, D: int, size: int) -> ValueError:
        return ValueError(
            f"memory = {readable(self.memory, 'GB')}: nothing fits; the leanest plan "
            f"(K={K}, D={D}, all recomputed, the smallest micro-batches) takes "
            f"{readable(size, 'GB')} on its fullest device; try that much memory, more devices or "
            "a smaller mini-batch"
        )


def _family(spec: RunSpec) -> Family:
    return spec.schedule, spec.K, spec.D, spec.checkpoint


def _ranked(plans: Iterable[Plan]) -> list[Plan]:
    """From the best on. Of plans as fast as the fastest, to a tie, fewer devices come first."""
    ordered = sorted(plans, key=lambda plan: plan.order)
    limit = ordered[0].step_s * (1 + TIE) if ordered else 0.0
    ties = [plan for plan in ordered if plan.step_s <= limit]
    ties.sort(key=lambda plan: (plan.devices, plan.peak))
    return ties + ordered[len(ties) :]
