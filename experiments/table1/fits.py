"""Recorded searches for the largest model that fits, as values: what was asked, what was found, what it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from repro.harness.results import Results, Run
from repro.harness.schema import CutModel, Stage, Tried
from repro.harness.spec import ENOUGH, RunSpec
from repro.paper import Size, table1
from repro.report.compare import rows_of
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN

NAME = "table1"
MODELS = ("amoebanet-d", "transformer")
_UNITS = {"transformer": ("GiB", 2**30)}  # Table 1's; AmoebaNet's are decimal
BATCH = {"amoebanet-d": 128, "transformer": 32}  # N of Table 1
M = 16  # of the counted columns: inferred, see experiments/table1/runs.py
LASTING = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Found:
    """One recorded fit.

    Attributes:
        row: of `Results.rows`.
        spec: what was asked.
        best: the largest that fits, None if nothing does.
        above: the next one up, None if there is none.
        tried: the sizes that were trained, for a measured one.
        counted: what was counted to be the largest, for a measured one.
    """

    row: Run
    spec: RunSpec
    best: CutModel | None
    above: CutModel | None
    tried: list[Tried]
    counted: CutModel | None

    @property
    def naive(self) -> bool:
        """Whether it is training without GPipe."""
        return (self.spec.K, self.spec.M, self.spec.checkpoint) == (1, 1, "never")

    @property
    def column(self) -> str:
        """The paper's name of it."""
        return "Naive-1" if self.naive else f"Pipeline-{self.spec.K}"

    @property
    def given(self) -> bool:
        """Whether the size was fixed, so that only its memory was asked for."""
        one = self.best or self.above
        return one is not None and one.args == self.spec.model_args

    @property
    def one(self) -> CutModel:
        """The size that was given, whether it fits or not."""
        one = self.best or self.above
        assert one is not None
        return one

    def size(self, cut: CutModel) -> str:
        """`(18, 416)`, or `L=13`."""
        args = cut.args
        return (
            f"({args['L']}, {args['D']})" if self.spec.model == "amoebanet-d" else f"L={args['L']}"
        )


def found(results: Results, **wanted: Any) -> list[Found]:
    """The fits of Table 1's experiment whose specs have these values, in the order of the plan.

    A count comes out the same everywhere, so it is there once; what was measured, once for each
    machine and scale.
    """
    fits: dict[str, Found] = {}
    for row in rows_of(results, experiment=NAME):
        spec = row.spec
        if (
            spec.task == "fit"
            and row.status == "done"
            and all(getattr(spec, k) == v for k, v in wanted.items())
        ):
            assert row.fit is not None
            fit = row.fit.fit
            place = "/".join(row.place) if spec.fidelity == "measured" else ""
            fits[f"{place}/{row.id}"] = Found(
                row, spec, fit.largest, fit.next, fit.tried, fit.counted
            )
    return list(fits.values())


def only(fits: list[Found], test: Callable[[Found], bool]) -> Found | None:
    """The first fit of which this is true."""
    return next((fit for fit in fits if test(fit)), None)


def activations(cut: CutModel) -> int:
    """Bytes of all stages together but weights, gradients and optimizer state, as Table 1 sums accelerators."""
    return sum(map(of_stage, cut.stages))


def of_stage(stage: Stage) -> int:
    """Activations, boundary inputs, messages and buffers of one stage."""
    return stage.total - sum(stage.bytes_of(kind) for kind in LASTING)


def unit(model: str) -> tuple[str, int]:
    """The unit in which Table 1 has this model's memory, and its bytes."""
    return _UNITS.get(model, ("GB", 10**9))


def amount(model: str, size: float, digits: int = 2) -> str:
    """`6.26 GB`."""
    name, factor = unit(model)
    return f"{size / factor:.{digits}f} {name}"


def short(parameters: float) -> str:
    """`82M`, `1.8B`."""
    return f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def swapped(size: Size) -> bool:
    """Whether what is printed as activations is 12 bytes a parameter, and what is printed as that is not."""
    twelve = 12 * size.parameters / unit(size.model)[1]
    return (
        abs(size.peak_activation_gb / twelve - 1)
        < 0.01
        < abs(size.parameter_memory_gb / twelve - 1)
    )


def searched(model: str, fits: list[Found]) -> list[Found]:
    """What was counted of Table 1's columns: at the paper's N and M=16; Naive-1 without micro-batches."""
    mine = [
        f for f in fits if f.spec.model == model and f.spec.fidelity == "counted" and not f.given
    ]
    mine = [
        f
        for f in mine
        if BATCH[model] == f.spec.N and not f.spec.model_args and (f.naive or f.spec.M == M)
    ]
    return [f for f in mine if f.spec.memory == device_memory(model)]


def device_memory(model: str) -> int:
    """Bytes of each of the paper's accelerators, in the unit in which Table 1 seems to have this model's memory."""
    return next(size.device_memory_gb for size in table1() if size.model == model) * unit(model)[1]


def given(fits: list[Found], size: Size) -> list[Found]:
    """The paper's own size of one column, with each M that was counted."""
    args = {"L": size.L} | ({"D": size.D} if size.D is not None else {})
    wanted = (size.model, size.name, "counted", args)
    mine = [
        f for f in fits if (f.spec.model, f.column, f.spec.fidelity, f.spec.model_args) == wanted
    ]
    return [fit for fit in mine if fit.spec.memory != ENOUGH and BATCH[size.model] == fit.spec.N]


def variant(fit: Found) -> str:
    """`N=32, M=16`, `N=32, Naive-1, fused attention`."""
    attention = fit.spec.model_args.get("attention")
    words = "Naive-1" if fit.naive else f"M={fit.spec.M}"
    decimal = fit.spec.memory != device_memory(fit.spec.model)
    return (
        f"N={fit.spec.N}, {words}"
        + f", {attention} attention" * bool(attention)
        + ", decimal GB" * decimal
    )


def heading(fit: Found) -> dict[str, str]:
    """The first cells of a line."""
    return {"model": model_name(fit.spec.model), "column": fit.column}


def found_size(fit: Found | None) -> str:
    """The size, or what the smallest one takes where none fits."""
    if fit is None:
        return NOT_RUN
    if fit.best is None:
        if fit.above is None or not fit.spec.memory:
            return "none"
        return f"none ({fit.size(fit.above)}: {fit.above.fullest / fit.spec.memory:.0%})"
    return fit.size(fit.best)


def times(fit: Found | None, base: Found | None) -> str:
    """How many times the parameters of another column."""
    if fit is None or fit.best is None or base is None or base.best is None:
        return EMPTY
    ratio = fit.best.parameters / base.best.parameters
    return f"{ratio:.1f}x" if ratio >= 1 else EMPTY


def as_printed(size: Size | None) -> str:
    """With the digits that the paper prints."""
    if size is None:
        return EMPTY
    return (
        f"{size.parameters / 1e9:g}B" if size.parameters >= 1e9 else f"{size.parameters / 1e6:g}M"
    )
