"""Recorded searches for the largest model that fits, and how their sizes and bytes are written."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from experiments.table1.runs import CAPPED, MEMORY, N_OF, NAME, OPTIMIZER, M
from repro.harness.results import Results, Run
from repro.harness.schema import CutModel, Stage, Tried
from repro.harness.spec import Optimizer, RunSpec
from repro.paper import Size
from repro.report.compare import rows_of
from repro.report.table import EMPTY, NOT_RUN

MODELS = tuple(N_OF)
BYTES_PER_PARAMETER = 12  # section 3, because RMSProp is used
_UNITS = {"amoebanet-d": ("GB", 10**9), "transformer": ("GiB", 2**30)}  # of memory in Table 1
# The kinds that make the 12 bytes; see `runs.ACCOUNTINGS`.
_PARAMETER_KINDS: dict[Optimizer, tuple[str, ...]] = {
    "rmsprop": ("parameters", "gradients", "optimizer"),
    "rmsprop-momentum": ("parameters", "optimizer"),
}


@dataclass(frozen=True)
class Fit:
    """One recorded search, or the memory of one fixed size.

    Attributes:
        largest: the largest model that fits; None if nothing does.
        next: the next size up; None if there is none.
        tried: the sizes that were trained, if it was measured.
        counted: what counting says is the largest, if it was measured.
    """

    run: Run
    largest: CutModel | None
    next: CutModel | None
    tried: list[Tried]
    counted: CutModel | None

    @property
    def spec(self) -> RunSpec:
        return self.run.spec

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def naive(self) -> bool:
        """Whether it is training without GPipe."""
        return (self.spec.K, self.spec.M, self.spec.checkpoint) == (1, 1, "never")

    @property
    def column(self) -> str:
        """Its column of Table 1."""
        return "Naive-1" if self.naive else f"Pipeline-{self.spec.K}"

    @property
    def cut(self) -> CutModel:
        """The largest size, or the next one up if nothing fits."""
        cut = self.largest or self.next
        assert cut is not None
        return cut

    @property
    def fixed_size(self) -> bool:
        """Whether the size was given, so that only its memory was asked for."""
        return self.cut.args == self.spec.model_args

    @property
    def share(self) -> float:
        """Memory of the fullest stage over what a device has."""
        assert self.spec.memory is not None
        return self.cut.fullest / self.spec.memory

    def size(self, cut: CutModel) -> str:
        """`(18, 416)`, or `L=13`."""
        if self.model == "amoebanet-d":
            return f"({cut.args['L']}, {cut.args['D']})"
        return f"L={cut.args['L']}"


def recorded_fits(results: Results, **wanted: Any) -> list[Fit]:
    """The fits of this experiment whose specs have these values, in the order of the plan.

    A count is the same on every machine, so it stands once. A measurement stands once for each
    machine and scale.
    """
    fits: dict[tuple[str, ...], Fit] = {}
    for run in rows_of(results, experiment=NAME, status="done"):
        asked = all(getattr(run.spec, name) == value for name, value in wanted.items())
        if run.fit is None or not asked:
            continue
        answer = run.fit.fit
        place = run.place if run.fidelity == "measured" else ()
        fits[*place, run.id] = Fit(run, answer.largest, answer.next, answer.tried, answer.counted)
    return list(fits.values())


def search_fit(
    fits: list[Fit], model: str, column: str, optimizer: Optimizer = OPTIMIZER, m: int = M
) -> Fit | None:
    """The counted search of one column of Table 1; None if it was not run."""
    return _counted_fit(fits, model, column, {}, optimizer, m)


def printed_fit(
    fits: list[Fit],
    size: Size,
    optimizer: Optimizer = OPTIMIZER,
    m: int = M,
    changed: Mapping[str, float] = MappingProxyType({}),
) -> Fit | None:
    """The paper's own size of one column, counted with `changed` arguments; None if it was not."""
    arguments = {"L": size.L} if size.D is None else {"L": size.L, "D": size.D}
    return _counted_fit(fits, size.model, size.name, {**arguments, **changed}, optimizer, m)


def _counted_fit(
    fits: list[Fit],
    model: str,
    column: str,
    arguments: Mapping[str, float],
    optimizer: Optimizer,
    m: int,
) -> Fit | None:
    """A count at the paper's N and memory; Naive-1 has no micro-batches, whatever `m` is."""
    wanted = ("counted", N_OF[model], MEMORY[model], arguments, optimizer)
    for fit in fits:
        spec = fit.spec
        settings = (spec.fidelity, spec.N, spec.memory, spec.model_args, spec.optimizer)
        right_column = (fit.model, fit.column) == (model, column)
        if right_column and settings == wanted and (fit.naive or m == spec.M):
            return fit
    return None


def small_columns(fits: list[Fit], model: str) -> dict[str, Fit]:
    """Column of Table 1 -> what was measured for it with a scaled-down model."""
    columns: dict[str, Fit] = {}
    for fit in fits:
        measured = fit.model == model and fit.spec.fidelity == "measured"
        if measured and not fit.fixed_size and not fit.run.group.endswith(CAPPED):
            columns.setdefault(fit.column, fit)
    return columns


def activations(fit: Fit) -> int:
    """Bytes of all stages except the 12 of each parameter, as Table 1 sums them.

    Gradients belong to them where the 12 bytes are the weights and two slots.
    """
    kinds = _PARAMETER_KINDS[fit.spec.optimizer]
    return sum(
        stage.total - sum(stage.bytes_of(kind) for kind in kinds) for stage in fit.cut.stages
    )


def stage_activations(stage: Stage) -> int:
    """Activations, boundary inputs, messages and buffers of one stage, without gradients."""
    return stage.total - sum(stage.bytes_of(kind) for kind in _PARAMETER_KINDS["rmsprop"])


def unit(model: str) -> tuple[str, int]:
    """The unit in which Table 1 has this model's memory, and its bytes."""
    return _UNITS[model]


def memory_text(model: str, size: float) -> str:
    """`6.26 GB`."""
    name, factor = unit(model)
    return f"{size / factor:.2f} {name}"


def short(parameters: float) -> str:
    """`82.0M`, `1.80B`."""
    return f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def as_printed(size: Size | None) -> str:
    """Parameters with the digits that the paper prints."""
    if size is None:
        return EMPTY
    if size.parameters >= 1e9:
        return f"{size.parameters / 1e9:g}B"
    return f"{size.parameters / 1e6:g}M"


def largest_size(fit: Fit | None) -> str:
    """The largest size; if nothing fits, the share of the memory that the smallest one takes."""
    if fit is None:
        return NOT_RUN
    if fit.largest:
        return fit.size(fit.largest)
    return f"none ({fit.size(fit.cut)}: {fit.share:.0%})"


def times(fit: Fit | None, base: Fit | None) -> str:
    """How many times the parameters of another fit's largest model."""
    if fit is None or base is None or not fit.largest or not base.largest:
        return EMPTY
    ratio = fit.largest.parameters / base.largest.parameters
    return f"{ratio:.1f}x" if ratio >= 1 else EMPTY


def swapped(size: Size) -> bool:
    """Whether the two memory cells of a column are printed in each other's place.

    Then the printed activations, and not the printed parameter memory, are 12 bytes a parameter.
    """
    expected = BYTES_PER_PARAMETER * size.parameters / unit(size.model)[1]
    off_activations = abs(size.peak_activation_gb / expected - 1)
    off_parameters = abs(size.parameter_memory_gb / expected - 1)
    return off_activations < 0.01 < off_parameters
