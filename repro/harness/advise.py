"""Search for the fastest plan to train a model on some devices, and why the others lose.

A plan says how the devices are used: schedule, K, D, M, checkpoint mode and cut. Its step and its
memory are those of `repro.harness.predict`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from repro.costs import device as devices
from repro.costs.units import readable
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule import kinds
from repro.harness.error_bars import ErrorBar
from repro.harness.predict import ALL_REDUCE, Calibrated, Roofline, predict
from repro.harness.spec import Checkpoint, Optimizer, RunSpec, ScheduleName
from repro.io.redact import tilde_to_home
from repro.models import build
from repro.simulate import Calibration

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
class Question:
    """What is to be planned.

    Attributes:
        model: its name.
        model_args: its arguments.
        devices: how many there are.
        memory: bytes of each.
        batch: mini-batch N of all replicas together.
        optimizer: whose state counts.
        profile: of the devices; None with a calibration.
        link: between two devices, instead of the profile's or the calibration's.
        calibration: measured layer times, instead of a profile.
    """

    model: str
    model_args: Mapping[str, Any]
    devices: int
    memory: int
    batch: int
    optimizer: Optimizer = "sgd"
    profile: str | None = None
    link: LinkSpeed | None = None
    calibration: Calibration | None = None

    def source(self) -> Roofline | Calibrated:
        """What the layers cost, and what stages hold."""
        model = build(self.model, **tilde_to_home(dict(self.model_args)))
        if self.calibration is not None:
            return Calibrated(self.calibration, model, self.optimizer, self.link)
        assert self.profile is not None
        device = devices.load(tilde_to_home(self.profile))
        return Roofline(device, model, self.optimizer, link=self.link)


@dataclass(frozen=True)
class Plan:
    """One way to use the devices, with its simulated step and its counted memory.

    Attributes:
        spec: the run that measures the plan, with the layers of each stage.
        step_s: seconds of a step.
        parts: cause -> seconds of the step, a mean over the stages.
        idle: share of K x step in which stages do not work.
        peak_bytes: of each rank of one replica; empty if they were not counted.
    """

    spec: RunSpec
    step_s: float
    parts: Mapping[str, float]
    idle: float
    peak_bytes: tuple[int, ...] = ()

    @property
    def devices(self) -> int:
        """K x D."""
        return self.spec.K * self.spec.D

    @property
    def examples(self) -> int:
        """Examples in a micro-batch."""
        return self.spec.N // self.spec.D // self.spec.M

    @property
    def fullest(self) -> int:
        """Stage, or rank that holds several, that takes the most memory."""
        return self.peak_bytes.index(max(self.peak_bytes))

    @property
    def family(self) -> Family:
        return _family(self.spec)

    @property
    def order(self) -> tuple[float, float, int]:
        return self.step_s, max(self.peak_bytes), self.devices

    def share(self, cause: str) -> float:
        """Share of the step that a cause takes."""
        return self.parts[cause] / self.step_s


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes:
        plans: those that fit, from the best on: of each schedule, K, D and checkpoint mode the best
            M. The worst are left out.
        reference: the best naive model parallelism that fits; None if none does.
        too_large: plans that would be faster than the best one, but do not fit, from the fastest
            on.
        do_not_fit: the leanest plan of each (K, D) that does not fit at all, most devices first.
        one_device_bytes: what one device needs without a pipeline and without recomputation.
        examined: how many plans were simulated.
        error: how far such steps were off where the true length is known.
    """

    plans: tuple[Plan, ...]
    reference: Plan | None
    too_large: tuple[Plan, ...]
    do_not_fit: tuple[Plan, ...]
    one_device_bytes: int
    examined: int
    error: ErrorBar | None


def why_slower(plan: Plan, best: Plan) -> str:
    """In a few words: why a plan that fits is not the best."""
    ratio = plan.step_s / best.step_s - 1
    memory = max(plan.peak_bytes) / max(best.peak_bytes)
    if ratio <= TIE and memory >= 1:
        amount = f"{memory:.2f} times the memory" if f"{memory:.2f}" != "1.00" else "as much memory"
        return f"as fast, with {amount} on its fullest stage"
    slower = f"{ratio:.1%} slower" if ratio < 1 else f"{1 + ratio:.1f} times as long"
    more = {cause: plan.parts[cause] - best.parts[cause] for cause in plan.parts}
    cause = max(more, key=lambda name: more[name])
    return f"{slower}: {_reason(cause, plan, best)}"


def _reason(cause: str, plan: Plan, best: Plan) -> str:
    """What a plan spends more seconds on than the best one."""
    if cause == "computation" and plan.devices < best.devices:
        return f"computes on fewer devices: {plan.devices} instead of {best.devices}"
    if cause == "computation" and plan.examples < best.examples:
        return f"smaller micro-batches: {plan.examples} instead of {best.examples} examples"
    if cause == "recompute" and best.spec.checkpoint == "never":
        return "recomputes what fits without"
    if cause == "bubble":
        return f"bubble {plan.share(cause):.0%} instead of {best.share(cause):.0%}"
    texts = {
        "computation": "computes",
        "recompute": "recomputes",
        "imbalance": "unequal stages wait",
        "transfer": "waits for messages",
        "update": "updates the weights",
        "setup": "sets up",
        ALL_REDUCE: f"sums the gradients of D={plan.spec.D} replicas",
    }
    own, others = plan.share(cause), best.share(cause)
    return f"{texts[cause]} {own:.0%} of the step instead of {others:.0%}"


def advise(question: Question, top: int = 5) -> Advice:
    """Search all plans, and keep the `top` best; a one-line ValueError if none fits."""
    return _Search(question).best(top)


class _Search:
    def __init__(self, question: Question) -> None:
        self._question = question
        self._source = question.source()
        assert self._source.model is not None
        self._L = len(self._source.model.layers)
        self._examined = 0

    def best(self, top: int) -> Advice:
        memory = self._question.memory
        # The leanest plan has micro-batches of one example, 1F1B, and recomputes everything.
        needed = {pair: self._leanest_bytes(*pair) for pair in self._pairs()}
        fitting_pairs = [pair for pair, size in needed.items() if size <= memory]
        if not fitting_pairs:
            (K, D), size = min(needed.items(), key=lambda item: item[1])
            raise self._nothing_fits(K, D, size)
        specs = [spec for pair in fitting_pairs for spec in self._specs(*pair)]
        bounds = sorted(((self._bound(spec), spec) for spec in specs), key=lambda pair: pair[0])
        if not bounds:
            raise self._not_timed()
        fitting, too_large = self._examine(bounds, top)
        if not fitting:
            leanest = min(too_large, key=lambda plan: max(plan.peak_bytes))
            raise self._nothing_fits(leanest.spec.K, leanest.spec.D, max(leanest.peak_bytes))
        ranked = _ranked(fitting.values())
        fastest: dict[Family, Plan] = {}  # of those that are faster than the best and do not fit
        for plan in sorted(too_large, key=lambda plan: plan.step_s):
            if plan.step_s < ranked[0].step_s:
                fastest.setdefault(plan.family, plan)
        others = [self._leanest_plan(*pair) for pair in needed if pair not in fitting_pairs]
        alone = self._spec(1, 1, 1, "gpipe", "never")
        return Advice(
            tuple(ranked[:top]),
            next((plan for plan in ranked if plan.spec.schedule == REFERENCE), None),
            tuple(fastest.values()),
            tuple(sorted(filter(None, others), key=lambda plan: -plan.devices)),
            self._peaks(alone, (self._L,))[0],
            self._examined,
            self._source.error(),
        )

    def _examine(
        self, bounds: Sequence[tuple[float, RunSpec]], top: int
    ) -> tuple[dict[Family, Plan], list[Plan]]:
        """The best plan that fits of each family, and plans that would be better but do not fit.

        Plans that cannot be shown any more are neither simulated nor counted.

        Args:
            bounds: seconds that a step takes at least, and its plan, from the lowest on.
            top: how many families are shown.
        """
        fitting: dict[Family, Plan] = {}
        too_large: list[Plan] = []
        for bound, spec in bounds:
            if not _can_rank(spec, bound, fitting, top):
                continue
            rival = fitting.get(_family(spec))
            plan = self._plan(spec)
            if rival is not None and plan.step_s > rival.step_s:
                continue
            plan = self._with_memory(plan)
            if max(plan.peak_bytes) > self._question.memory:
                too_large.append(plan)
            elif rival is None or plan.order < rival.order:
                fitting[plan.family] = plan
        return fitting, too_large

    def _spec(
        self,
        K: int,
        D: int,
        M: int,
        schedule: ScheduleName,
        checkpoint: Checkpoint,
        stages_per_rank: int | None = None,
    ) -> RunSpec:
        """The run that measures a plan."""
        question = self._question
        return RunSpec(
            model=question.model,
            model_args=dict(question.model_args),
            K=K,
            D=D,
            M=M,
            N=question.batch,
            schedule=schedule,
            stages_per_rank=stages_per_rank,
            checkpoint=checkpoint,
            optimizer=question.optimizer,
        )

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """(K, D) that the devices and the mini-batch allow: K x D divides the devices."""
        question = self._question
        for K in range(1, min(question.devices, self._L) + 1):
            for D in range(1, question.devices // K + 1):
                if question.devices % (K * D) == 0 and question.batch % D == 0:
                    yield K, D

    def _micro_batches(self, D: int) -> list[int]:
        """Values of M for a replica's part of the mini-batch: micro-batches are equal."""
        replica, timed = self._question.batch // D, self._question.calibration
        Ms = [M for M in range(1, replica + 1) if replica % M == 0]
        return Ms if timed is None else [M for M in Ms if timed.covers(replica // M)]

    def _specs(self, K: int, D: int) -> Iterator[RunSpec]:
        for M in self._micro_batches(D):
            for schedule, stages_per_rank in self._orders(K, M):
                for checkpoint in _modes(schedule, K, M):
                    yield self._spec(K, D, M, schedule, checkpoint, stages_per_rank)

    def _orders(self, K: int, M: int) -> list[tuple[ScheduleName, int | None]]:
        """The schedules that K ranks can execute and that differ.

        With one micro-batch all that hold one stage on each rank are naive model parallelism.
        """
        if K == 1:
            return [(ALONE, None)]
        return [
            (schedule, stages_per_rank)
            for schedule, stages_per_rank in ORDERS
            if kinds.SCHEDULES[schedule].executed
            and K * (stages_per_rank or 1) <= self._L
            and (M > 1 or schedule == REFERENCE or stages_per_rank is not None)
        ]

    def _bound(self, spec: RunSpec) -> float:
        """Seconds that a step takes at least: the work of the busiest rank of the best cut.

        Of the naive schedule it is the work of all ranks, since one computes at a time. With a
        calibration it is zero, since layers are faster while other ranks wait.
        """
        if self._question.calibration is not None:
            return 0.0
        layers = self._source.layers(spec.N // spec.D // spec.M, spec.checkpoint)
        work = [F + B for F, B in zip(layers.forward, layers.backward, strict=True)]
        if spec.checkpoint == "always":
            work = [seconds + R for seconds, R in zip(work, layers.recompute, strict=True)]
        if spec.schedule == "naive":
            return spec.M * sum(work)
        return spec.M * max(max(work), sum(work) / spec.K)

    def _plan(self, spec: RunSpec, counts: tuple[int, ...] = ()) -> Plan:
        """Simulate a plan, cut by time unless a cut is given."""
        self._examined += 1
        step = predict(spec, self._source, counts)
        return Plan(
            spec.model_copy(update={"balance": step.counts}),
            step.step_s,
            step.parts,
            step.timeline.bubble_over_total,
        )

    def _with_memory(self, plan: Plan) -> Plan:
        """Count the memory of a plan; where it does not fit, of the cut that takes the least."""
        memory, spec = self._question.memory, plan.spec
        assert isinstance(spec.balance, tuple)
        counted = replace(plan, peak_bytes=self._peaks(spec, spec.balance))
        if max(counted.peak_bytes) <= memory or spec.stages_per_rank is not None:
            return counted
        cuts = self._source.cuts_by_memory(spec, plan.examples)
        if cuts.pack(memory) is None:
            return counted
        counts = cuts.evenest()
        peaks = self._peaks(spec, counts)
        if max(peaks) > memory:
            return counted
        return replace(self._plan(spec, counts), peak_bytes=peaks)

    def _peaks(self, spec: RunSpec, counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._source.peaks(spec, spec.N // spec.D // spec.M, counts) or ())

    def _leanest_bytes(self, K: int, D: int) -> int:
        spec = self._spec(K, D, self._question.batch // D, "1f1b", "always")
        return max(self._peaks(spec, self._source.cuts_by_memory(spec, 1).evenest()))

    def _leanest_plan(self, K: int, D: int) -> Plan | None:
        """The leanest plan of a (K, D) whose micro-batches were timed; None if there is none."""
        Ms = self._micro_batches(D)
        if not Ms:
            return None
        return self._with_memory(self._plan(self._spec(K, D, Ms[-1], "1f1b", "always")))

    def _nothing_fits(self, K: int, D: int, size: int) -> ValueError:
        return ValueError(
            f"memory = {readable(self._question.memory, 'GB')}: nothing fits; the leanest plan "
            f"(K={K}, D={D}, all recomputed, the smallest micro-batches) takes "
            f"{readable(size, 'GB')} on its fullest device; try that much memory, more devices or "
            "a smaller mini-batch"
        )

    def _not_timed(self) -> ValueError:
        """The error of a mini-batch that no timed size of micro-batches divides."""
        assert self._question.calibration is not None
        timed = self._question.calibration.sizes
        return ValueError(
            f"batch = {self._question.batch}: layers were timed for micro-batches of {timed[0]} to "
            f"{timed[-1]} examples, and no such size divides it; try a multiple of {timed[0]}, or "
            "calibrate with another --N and --smallest"
        )


def _family(spec: RunSpec) -> Family:
    return spec.schedule, spec.K, spec.D, spec.checkpoint


def _modes(schedule: str, K: int, M: int) -> tuple[Checkpoint, ...]:
    """The checkpoint modes that differ from each other.

    Where each backward follows its own forward, "except_last" recomputes nothing.
    """
    if M == 1 or schedule == "naive" or K == 1:
        return ("always", "never")
    return CHECKPOINTS


def _can_rank(spec: RunSpec, bound: float, fitting: Mapping[Family, Plan], top: int) -> bool:
    """Whether a plan could lead its family, and that be among the top or the reference."""
    rival = fitting.get(_family(spec))
    if rival is not None and bound > rival.step_s:
        return False
    ranked = _ranked(fitting.values())
    if spec.schedule == REFERENCE:
        references = [plan.step_s for plan in ranked if plan.spec.schedule == REFERENCE]
        if bound < min(references, default=inf):
            return True
    if len(ranked) < top:
        return True
    # As fast as the fastest, to a tie, it may still have less memory than those that are shown.
    fastest = min(plan.step_s for plan in ranked)
    return bound <= max(ranked[top - 1].step_s, fastest * (1 + TIE))


def _ranked(plans: Iterable[Plan]) -> list[Plan]:
    """From the best on. Plans as fast as the fastest, to a tie, are ordered by memory."""
    ordered = sorted(plans, key=lambda plan: plan.order)
    limit = ordered[0].step_s * (1 + TIE) if ordered else 0.0
    ties = [plan for plan in ordered if plan.step_s <= limit]
    ties.sort(key=lambda plan: (max(plan.peak_bytes), plan.devices))
    return ties + ordered[len(ties) :]
