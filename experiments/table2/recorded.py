"""Table 2's modelled runs by protocol: which mini-batch a cell has and how its layers are cut."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan

from experiments.table2.runs import CUTS, NAME, TPUS
from repro.claims.cells import CELL
from repro.harness.results import Results, Run
from repro.harness.schema import Modelled
from repro.harness.sizes import MODELLED_AMOEBANET, MODELLED_TRANSFORMER, NARROW
from repro.harness.spec import SCALES, canonical
from repro.paper import table2 as paper_table2
from repro.report.compare import rows_of
from repro.report.grid import Grid
from repro.report.rounds import fits
from repro.report.style import model_name

MODELS = tuple(TPUS)
SIZES = {"amoebanet-d": MODELLED_AMOEBANET["paper"], "transformer": MODELLED_TRANSFORMER["paper"]}
TOLERANCE = CELL  # of a quoted ratio: within it a prediction is consistent
# Groups that change more than K and M from cell to cell, or how layers are cut.
VARIED = ("-by-memory", *(f"-{name}" for name in CUTS))
# Causes that a simulated step is put together from, one after the other -> their names in tables.
CAUSES = {
    "imbalance": "imbalance",
    "ends": "softmax and embedding",
    "tile padding": "tile padding",
    "memory-bound": "memory-bound operators",
    "launch": "launch",
    "transfer": "transfer",
    "set-up": "set-up",
}
CUMULATIVE_SHARE, MINIMUM_VARIANCE = "cumulative share", "minimum variance"  # cuts by FLOPs
# Protocol -> the group of its runs.
_PROTOCOLS = {
    "controlled": "{}-simulated",
    "by memory": "{}-by-memory",
    "half widths, by memory": "{}-narrow-by-memory",
    CUMULATIVE_SHARE: "{}-share",
    MINIMUM_VARIANCE: "{}-variance",
    f"{CUMULATIVE_SHARE}, by memory": "{}-share-by-memory",
    f"{MINIMUM_VARIANCE}, by memory": "{}-variance-by-memory",
}
# The protocol of each model that is counted to fit the paper's devices in every cell it has.
HEADLINES = {"amoebanet-d": "by memory", "transformer": "half widths, by memory"}
_SCALES = SCALES[::-1]  # in order of preference; smoke has tiny models


def at_papers_size(run: Run) -> bool:
    """Whether a run is of a model of Table 2 at its full size."""
    return canonical({"args": run.spec.model_args}) == canonical({"args": SIZES.get(run.model)})


def fixed(runs: Iterable[Run]) -> list[Run]:
    """The runs of the controlled protocol, of any fidelity: one N for all cells, cut by time."""
    return [run for run in runs if not run.group.endswith(VARIED)]


@dataclass(frozen=True)
class Protocol:
    """The runs of one model under one protocol, all of one place; it may have none.

    Attributes:
        grid: its runs by K, M and re-materialization.
    """

    model: str
    grid: Grid

    def __bool__(self) -> bool:
        return any(run.status != "planned" for run in self.runs)

    @property
    def runs(self) -> list[Run]:
        return list(self.grid.runs.values())

    def run(self, K: int, M: int, remat: str = "always") -> Run | None:
        """The run of a cell; None where none was planned."""
        return self.grid.run("simulated", K, M, remat)

    def throughput(self, K: int, M: int) -> float:
        """Examples per second; NaN where it was not run or nothing fits."""
        run = self.run(K, M)
        return run.throughput if run else nan

    def step(self, K: int, M: int) -> float:
        """Seconds of a step; NaN where it was not run or nothing fits."""
        run = self.run(K, M)
        return run.step_s if run else nan

    def ratio(self, K: int, M: int) -> float:
        """Throughput over that of the protocol's own K=2, M=1, whose N may be another."""
        return self.throughput(K, M) / self.throughput(2, 1)

    def modelled(self, K: int, M: int) -> Modelled | None:
        """What the cost model gave: N, stages, causes; None before it was run."""
        run = self.run(K, M)
        return run.rounds[-1].modelled if run and run.done and run.rounds else None

    def N(self, K: int, M: int) -> int | None:
        """The mini-batch; 0 where no example a micro-batch fits; None before it was run."""
        modelled = self.modelled(K, M)
        return modelled.batch if modelled else None

    def fits(self, K: int, M: int) -> bool | None:
        """Whether the counted peak of every stage fits the device; None where nobody knows."""
        return fits(self.run(K, M))

    def cause_ratio(self, cause: str, K: int, M: int) -> float:
        """The ratio with all causes up to this one; NaN where there are none."""
        base, cell = self.modelled(2, 1), self.modelled(K, M)
        if base is None or cell is None:
            return nan
        return base.rungs.get(cause, nan) / cell.rungs.get(cause, nan)

    def bound_ratio(self, bound: str, K: int, M: int) -> float:
        """The ratio under a bound, such as "fused"; NaN where it was not recorded."""
        base, cell = self.modelled(2, 1), self.modelled(K, M)
        if base is None or cell is None:
            return nan
        return base.bounds.get(bound, nan) / cell.bounds.get(bound, nan)

    @property
    def widths(self) -> str:
        """`half widths`, where they are not Table 1's; else empty."""
        return "half widths" if self.runs[0].spec.model_args == NARROW["paper"] else ""

    @property
    def papers_size(self) -> bool:
        """Whether its model is of the paper's size, or of half its widths where they vary."""
        spec = self.runs[0].spec
        size = canonical({"args": SIZES.get(self.model)})
        return canonical({"args": spec.model_args}) == size or spec.model_args == NARROW["paper"]

    @property
    def size(self) -> str:
        """`L=18, D=256, image=224, N=128 on tpu-v2`."""
        spec = self.runs[0].spec
        parts = [f"{name}={value}" for name, value in spec.model_args.items()]
        if not spec.memory:
            parts.append(f"N={spec.N}")
        return f"{', '.join(parts)} on {spec.profile or 'layers that wait'}"


def protocol(results: Results, model: str, name: str) -> Protocol:
    """The runs of a protocol, from the one place that has most of them."""
    group = _PROTOCOLS[name].format(model)
    runs = rows_of(results, experiment=NAME, model=model, fidelity="simulated", group=group)
    places: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        places.setdefault((run.machine, run.scale), []).append(run)

    def preference(place: tuple[str, str]) -> tuple[bool, int, int, tuple[str, str]]:
        tried = sum(run.status != "planned" for run in places[place])
        return tried == 0, _SCALES.index(place[1]), -tried, place

    chosen = places[min(places, key=preference)] if places else []
    return Protocol(model, Grid.of(chosen, lambda run: (run.K, run.M, run.remat)))


def sizes(protocols: Iterable[Protocol]) -> str:
    """What the runs model: `AmoebaNet-D (L=18, D=256, image=224, N=128 on tpu-v2); ...`."""
    names = [f"{model_name(found.model)} ({found.size})" for found in protocols if found]
    return "; ".join(dict.fromkeys(names))


def another_size(protocols: Iterable[Protocol]) -> str:
    """`smoke size`, where any of these is of another model than the paper's; else empty."""
    scales = [found.runs[0].scale for found in protocols if found and not found.papers_size]
    return f"{' and '.join(dict.fromkeys(scales))} size" if scales else ""


def titled(title: str, protocols: Sequence[Protocol]) -> str:
    """The title, with the size of the models where it is not the paper's."""
    size = another_size(protocols)
    return f"{title} ({size}, which shows nothing about the paper)" if size else title


def quoted(model: str, K: int, M: int) -> float:
    """The paper's cell; NaN where it has none."""
    values = {(cell.model, cell.K, cell.M): cell.value for cell in paper_table2()}
    return values.get((model, K, M), nan)


def places(model: str) -> list[tuple[int, int]]:
    """(K, M) of the paper's cells of one model, by M within K."""
    return sorted((cell.K, cell.M) for cell in paper_table2() if cell.model == model)
