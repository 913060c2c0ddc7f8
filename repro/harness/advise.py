"""Search for the fastest plan to train a model on some devices, and why the others lose.

A plan says how the devices are used: schedule, K, D, M, checkpoint mode and cut. Its step is
simulated as `repro simulate` does, and the memory of its stages is counted as `repro fit` does.
Several replicas add an all-reduce of the gradients, see `repro.simulate.replicas`, and a second
copy of the gradients in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from repro.costs.units import readable
from repro.gpipe import breakdown
from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.gpipe.schedule import kinds
from repro.harness.spec import Checkpoint, Optimizer, RunSpec, ScheduleName
from repro.harness.tasks.cost_sources import Calibrated, Roofline
from repro.io.redact import expanded
from repro.models import Model, build
from repro.simulate import Calibration, all_reduce_seconds, exposed_seconds, simulate

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
_ALL_REDUCE = "all-reduce"  # seconds of a plan that no span of its timeline shows


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


@dataclass(frozen=True)
class Plan:
    """One way to use the devices, with its simulated step and its counted memory.

    Attributes:
        spec: the run that measures the plan.
        step_s: seconds of a step.
        parts: cause -> seconds of the step, a mean over the stages: those of `breakdown`, and
            "all-reduce".
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
    def bubble(self) -> float:
        """Share of the step that equal stages and free messages would wait as well."""
        return self.share("bubble")

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
        hopeless: the leanest plan of each (K, D) that does not fit at all, most devices first.
        alone_bytes: what one device needs without a pipeline and without recomputation.
        examined: how many plans were simulated.
    """

    plans: tuple[Plan, ...]
    reference: Plan | None
    too_large: tuple[Plan, ...]
    hopeless: tuple[Plan, ...]
    alone_bytes: int
    examined: int


def advise(question: Question, top: int = 5) -> Advice:
    """Search all plans.

    Args:
        question: what is to be planned.
        top: how many plans that fit are kept.

    Raises:
        ValueError: one line: nothing can be planned, or nothing fits.
    """
    return _Search(question).best(top)


def why_slower(plan: Plan, best: Plan) -> str:
    """One sentence: why a plan that fits is not the best."""
    ratio = plan.step_s / best.step_s - 1
    memory = max(plan.peak_bytes) / max(best.peak_bytes)
    if ratio <= TIE and memory >= 1:
        amount = f"{memory:.2f} times the memory" if f"{memory:.2f}" != "1.00" else "as much memory"
        return f"as fast, with {amount} on its fullest stage"
    more = {cause: plan.parts[cause] - best.parts[cause] for cause in plan.parts}
    cause = max(more, key=lambda name: more[name])
    return f"{_slower(ratio)}: {_reason(cause, plan, best)}"


def _slower(ratio: float) -> str:
    return f"{ratio:.1%} slower" if ratio < 1 else f"{1 + ratio:.1f} times as long"


def _reason(cause: str, plan: Plan, best: Plan) -> str:
    """What a plan spends more seconds on than the best one."""
    shares = f"{plan.share(cause):.0%} of the step instead of {best.share(cause):.0%}"
    if cause == "computation":
        if plan.devices < best.devices:
            return f"computes on fewer devices: {plan.devices} instead of {best.devices}"
        if plan.examples < best.examples:
            return f"smaller micro-batches: {plan.examples} instead of {best.examples} examples"
        return f"computes {shares}"
    if cause == "recompute":
        if best.spec.checkpoint == "never":
            return "recomputes what fits without"
        return f"recomputes {shares}"
    if cause == "bubble":
        return f"bubble {plan.bubble:.0%} instead of {best.bubble:.0%}"
    texts = {
        "imbalance": "unequal stages wait",
        "transfer": "waits for messages",
        "update": "updates the weights",
        "setup": "sets up",
        _ALL_REDUCE: f"sums the gradients of D={plan.spec.D} replicas",
    }
    return f"{texts[cause]} {shares}"


@dataclass(frozen=True)
class _Candidate:
    """A plan before its step is simulated.

    Attributes:
        spec: one replica of the plan, simulated.
        D: replicas.
        bound: seconds that its step takes at least.
    """

    spec: RunSpec
    D: int
    bound: float

    @property
    def family(self) -> Family:
        """Its schedule, K, D and checkpoint mode."""
        return self.spec.schedule, self.spec.K, self.D, self.spec.checkpoint


class _Search:
    """One search; layers of a micro-batch size are counted once for all plans."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._model: Model = build(question.model, **expanded(dict(question.model_args)))
        self._layers: dict[tuple[int, bool], Profile] = {}
        self._examined = 0

    def best(self, top: int) -> Advice:
        """The answer; see `advise`."""
        pairs = self._pairs_that_fit()
        candidates = sorted(self._candidates(pairs), key=lambda each: each.bound)
        if not candidates:
            raise self._not_timed()
        fitting, too_large = self._examine(candidates, top)
        if not fitting:
            leanest = min(too_large, key=lambda plan: max(plan.peak_bytes))
            raise self._nothing_fits(leanest.spec.K, leanest.spec.D, max(leanest.peak_bytes))
        ranked = _ranked(fitting.values())
        reference = next((plan for plan in ranked if plan.spec.schedule == REFERENCE), None)
        faster = [plan for plan in too_large if plan.step_s < ranked[0].step_s]
        return Advice(
            tuple(ranked[:top]),
            reference,
            tuple(_fastest_of_each(faster)),
            tuple(sorted(self._hopeless(pairs), key=lambda plan: -plan.devices)),
            self._alone_bytes(),
            self._examined,
        )

    def _examine(
        self, candidates: Sequence[_Candidate], top: int
    ) -> tuple[dict[Family, Plan], list[Plan]]:
        """The best plan that fits of each family, and plans that would be better but do not fit.

        Plans that cannot be shown any more are neither simulated nor counted.

        Args:
            candidates: from the lowest bound on.
            top: how many families are shown.
        """
        fitting: dict[Family, Plan] = {}
        too_large: list[Plan] = []
        for candidate in candidates:
            if not _may_be_shown(candidate, fitting, top):
                continue
            rival = fitting.get(candidate.family)
            plan = self._plan(candidate)
            if rival is not None and plan.step_s > rival.step_s:
                continue
            plan = self._with_memory(plan, candidate)
            if max(plan.peak_bytes) > self._question.memory:
                too_large.append(plan)
            elif rival is None or _order(plan) < _order(rival):
                fitting[candidate.family] = plan
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
        """One replica of a plan, simulated."""
        question = self._question
        return RunSpec(
            model=question.model,
            model_args=dict(question.model_args),
            K=K,
            M=M,
            N=question.batch // D,
            schedule=schedule,
            stages_per_rank=stages_per_rank,
            checkpoint=checkpoint,
            optimizer=question.optimizer,
            fidelity="simulated",
            profile=question.profile,
            link=question.link,
        )

    def _source(self, spec: RunSpec, D: int = 1) -> Roofline | Calibrated:
        """What the layers cost, and what stages hold."""
        calibration = self._question.calibration
        if calibration is None:
            return Roofline(spec, self._model, "cpu")
        return Calibrated(spec, self._model, "cpu", calibration.beside_replicas(D))

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """(K, D) that the devices and the mini-batch allow: K x D divides the devices."""
        question = self._question
        for K in range(1, min(question.devices, len(self._model.layers)) + 1):
            for D in range(1, question.devices // K + 1):
                if question.devices % (K * D) == 0 and question.batch % D == 0:
                    yield K, D

    def _pairs_that_fit(self) -> list[tuple[int, int]]:
        """The (K, D) of which the leanest plan fits.

        The leanest has micro-batches of one example, 1F1B, and recomputes everything.

        Raises:
            ValueError: one line: none fits.
        """
        question = self._question
        needed: dict[tuple[int, int], int] = {}
        for K, D in self._pairs():
            spec = self._spec(K, D, question.batch // D, "1f1b", "always")
            source = self._source(spec)
            copies = 0
            counts = source.evenest(1)
            if D > 1:
                copies = max(source.parameter_bytes(counts))
            needed[K, D] = max(source.peaks(1, counts)) + copies
        fitting = [pair for pair, size in needed.items() if size <= question.memory]
        if not fitting:
            (K, D), size = min(needed.items(), key=lambda item: item[1])
            raise self._nothing_fits(K, D, size)
        return fitting

    def _nothing_fits(self, K: int, D: int, size: int) -> ValueError:
        """The error where no plan fits; the leanest takes `size` bytes on its fullest device."""
        return ValueError(
            f"memory = {readable(self._question.memory, 'GB')}: nothing fits; the leanest plan "
            f"(K={K}, D={D}, all recomputed, the smallest micro-batches) takes "
            f"{readable(size, 'GB')} on its fullest device; try that much memory, more devices or "
            "a smaller mini-batch"
        )

    def _hopeless(self, fitting: Sequence[tuple[int, int]]) -> Iterator[Plan]:
        """The leanest plan of each (K, D) that does not fit."""
        for K, D in self._pairs():
            Ms = self._micro_batches(self._question.batch // D)
            if Ms and (K, D) not in fitting:
                candidate = _Candidate(self._spec(K, D, Ms[-1], "1f1b", "always"), D, bound=0.0)
                yield self._with_memory(self._plan(candidate), candidate)

    def _candidates(self, pairs: Sequence[tuple[int, int]]) -> Iterator[_Candidate]:
        """Every plan for these (K, D), with a lower bound of its step."""
        for K, D in pairs:
            replica = self._question.batch // D
            for M in self._micro_batches(replica):
                for schedule, stages_per_rank in self._orders(K, M):
                    for checkpoint in _modes(schedule, K, M):
                        spec = self._spec(K, D, M, schedule, checkpoint, stages_per_rank)
                        yield _Candidate(spec, D, self._bound(spec))

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
            and K * (stages_per_rank or 1) <= len(self._model.layers)
            and (M > 1 or schedule == REFERENCE or stages_per_rank is not None)
        ]

    def _micro_batches(self, replica: int) -> list[int]:
        """Values of M for a replica's part of the mini-batch: micro-batches are equal.

        With a calibration their sizes lie between those that were timed.
        """
        calibration = self._question.calibration
        return [
            M
            for M in range(1, replica + 1)
            if replica % M == 0 and (calibration is None or calibration.covers(replica // M))
        ]

    def _not_timed(self) -> ValueError:
        """The error of a mini-batch that no timed size of micro-batches divides."""
        assert self._question.calibration is not None
        timed = self._question.calibration.sizes
        return ValueError(
            f"batch = {self._question.batch}: layers were timed for micro-batches of {timed[0]} to "
            f"{timed[-1]} examples, and no such size divides it; try a multiple of {timed[0]}, or "
            "calibrate with another --N and --smallest"
        )

    def _bound(self, spec: RunSpec) -> float:
        """Seconds that a step takes at least: the work of the busiest rank of the best cut.

        Of the naive schedule it is the work of all ranks, since one computes at a time. With a
        calibration it is zero, since layers are faster while other ranks wait.
        """
        if self._question.calibration is not None:
            return 0.0
        layers = self._profile(spec)
        work = [F + B for F, B in zip(layers.forward, layers.backward, strict=True)]
        if spec.checkpoint == "always":
            work = [seconds + R for seconds, R in zip(work, layers.recompute, strict=True)]
        if spec.schedule == "naive":
            return spec.M * sum(work)
        return spec.M * max(max(work), sum(work) / spec.K)

    def _profile(self, spec: RunSpec) -> Profile:
        """Seconds of each layer for a micro-batch of the spec."""
        key = spec.N // spec.M, spec.checkpoint == "never"
        if key not in self._layers:
            self._layers[key] = self._source(spec).layers(key[0])
        return self._layers[key]

    def _plan(self, candidate: _Candidate, counts: tuple[int, ...] = ()) -> Plan:
        """Simulate a plan, cut by time unless a cut is given."""
        self._examined += 1
        spec, D = candidate.spec, candidate.D
        n = spec.N // spec.M
        source = self._source(spec, D)
        counts = counts or source.cut(self._profile(spec), source.link)
        schedule = spec.make_schedule()
        timeline = simulate(schedule, source.costs(n, counts, source.link))
        gradients = source.parameter_bytes(counts)
        sums = [all_reduce_seconds(size, D, source.link) for size in gradients]
        exposed = exposed_seconds(timeline, sums)
        parts = {
            cause: share * timeline.step_time
            for cause, share in breakdown(timeline, schedule).items()
        }
        return Plan(
            self._measured(spec, D, counts),
            timeline.step_time + exposed,
            parts | {_ALL_REDUCE: exposed},
            timeline.bubble_over_total,
        )

    def _measured(self, spec: RunSpec, D: int, counts: tuple[int, ...]) -> RunSpec:
        changes = {
            "D": D,
            "N": self._question.batch,
            "balance": counts,
            "fidelity": "measured",
            "profile": None,
            "link": None,
        }
        return RunSpec(**(spec.model_dump() | changes))

    def _with_memory(self, plan: Plan, candidate: _Candidate) -> Plan:
        """Count the memory of a plan; where it does not fit, of the cut that takes the least."""
        memory, n = self._question.memory, plan.examples
        source = self._source(candidate.spec)
        assert isinstance(plan.spec.balance, tuple)
        counted = replace(plan, peak_bytes=self._peaks(source, n, candidate.D, plan.spec.balance))
        if max(counted.peak_bytes) <= memory or plan.spec.stages_per_rank is not None:
            return counted
        if not source.fits(n, memory):
            return counted
        counts = source.evenest(n)
        peaks = self._peaks(source, n, candidate.D, counts)
        if max(peaks) > memory:
            return counted
        return replace(self._plan(candidate, counts), peak_bytes=peaks)

    def _peaks(
        self, source: Roofline | Calibrated, n: int, D: int, counts: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Counted bytes of each rank.

        With replicas its gradients are copied before they are summed. The copies count as if they
        were all there at the peak, which is an upper bound.
        """
        peaks = source.peaks(n, counts)
        if D > 1:
            copies = source.parameter_bytes(counts)
            peaks = [peak + copy for peak, copy in zip(peaks, copies, strict=True)]
        return tuple(peaks)

    def _alone_bytes(self) -> int:
        """Bytes that one device needs without a pipeline and without recomputation."""
        spec = self._spec(1, 1, 1, "gpipe", "never")
        return self._source(spec).peaks(spec.N, (len(self._model.layers),))[0]


def _modes(schedule: str, K: int, M: int) -> tuple[Checkpoint, ...]:
    """The checkpoint modes that differ from each other.

    Where each backward follows its own forward, "except_last" recomputes nothing.
    """
    if M == 1 or schedule == "naive" or K == 1:
        return ("always", "never")
    return CHECKPOINTS


def _may_be_shown(candidate: _Candidate, fitting: Mapping[Family, Plan], top: int) -> bool:
    """Whether a candidate could lead its family, and that be among the top or the reference."""
    rival = fitting.get(candidate.family)
    if rival is not None and candidate.bound > rival.step_s:
        return False
    ranked = _ranked(fitting.values())
    if candidate.spec.schedule == REFERENCE:
        references = [plan.step_s for plan in ranked if plan.spec.schedule == REFERENCE]
        if candidate.bound < min(references, default=inf):
            return True
    if len(ranked) < top:
        return True
    # As fast as the fastest, to a tie, it may still have less memory than those that are shown.
    fastest = min(plan.step_s for plan in ranked)
    return candidate.bound <= max(ranked[top - 1].step_s, fastest * (1 + TIE))


def _order(plan: Plan) -> tuple[float, float, int]:
    return plan.step_s, max(plan.peak_bytes), plan.devices


def _ranked(plans: Any) -> list[Plan]:
    """From the best on. Plans as fast as the fastest, to a tie, are ordered by memory."""
    ordered = sorted(plans, key=_order)
    if not ordered:
        return []
    limit = ordered[0].step_s * (1 + TIE)
    ties = [plan for plan in ordered if plan.step_s <= limit]
    ties.sort(key=lambda plan: (max(plan.peak_bytes), plan.devices))
    return ties + ordered[len(ties) :]


def _fastest_of_each(plans: Sequence[Plan]) -> list[Plan]:
    """The fastest plan of each schedule, K, D and checkpoint mode."""
    fastest: dict[Family, Plan] = {}
    for plan in sorted(plans, key=lambda plan: plan.step_s):
        spec = plan.spec
        fastest.setdefault((spec.schedule, spec.K, spec.D, spec.checkpoint), plan)
    return list(fastest.values())
