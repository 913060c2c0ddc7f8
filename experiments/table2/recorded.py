"""Table 2's modelled runs by protocol: which mini-batch a cell has and how its layers are cut."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING

from repro.harness.results import Results, Run
from repro.harness.schema import Modelled
from repro.harness.sizes import MODELLED_AMOEBANET, MODELLED_TRANSFORMER, NARROW
from repro.harness.spec import canonical
from repro.paper import table2 as paper_table2
from repro.report.compare import rows_of
from repro.report.style import model_name

if TYPE_CHECKING:
    from repro.harness.spec import RunSpec

NAME = "table2"
MODELS = ("amoebanet-d", "transformer")
# groups that change more than K and M from cell to cell, or how to cut
VARIED = ("-by-memory", "-by-parameters")
_GROUPS = {
    "controlled": "{}-simulated",
    "by memory": "{}-by-memory",
    "half widths, by memory": "{}-narrow-by-memory",
    "by parameters": "{}-by-parameters",
}
# What a simulated step is put together from, one after the other -> the report's word.
RUNGS = {
    "imbalance": "imbalance",
    "ends": "softmax and embedding",
    "memory-bound": "memory-bound operators",
    "launch": "launch",
    "transfer": "transfer",
}
SIZES = {"amoebanet-d": MODELLED_AMOEBANET["paper"], "transformer": MODELLED_TRANSFORMER["paper"]}
TOLERANCE = 0.10  # of a quoted ratio: within it a prediction is consistent; one that is not says so
# where several simulated it, the first: only smoke has other sizes
_SCALES = ("paper", "node", "laptop", "smoke")


def at_papers_size(results: Results, row: Run) -> bool:
    """Whether a run is of a model of Table 2 at its full size, which the breakdown's pie may be of too."""
    args = row.spec.model_args
    return canonical({"args": args}) == canonical({"args": SIZES.get(row.model)})


def fixed(rows: Iterable[Run]) -> list[Run]:
    """The rows of the controlled protocol, measured or modelled: one N for all cells, cut by time."""
    return [row for row in rows if not row.group.endswith(VARIED)]


@dataclass(frozen=True)
class Protocol:
    """Runs of one model under one protocol, all of one place.

    `rows` has them by (K, M), re-materialization always; `kept` those of one stage that keeps all
    activations, by M.
    """

    results: Results
    model: str
    rows: dict[tuple[int, int], Run]
    kept: dict[int, Run]

    def __bool__(self) -> bool:
        return any(row.status != "planned" for row in self.rows.values())

    def throughput(self, K: int, M: int) -> float:
        """Examples per second; NaN where it was not run or nothing fits."""
        return self.rows[K, M].throughput if (K, M) in self.rows else nan

    def ratio(self, K: int, M: int, base: tuple[int, int] = (2, 1)) -> float:
        """Throughput over that of its own K=2, M=1, whose N may be another; or over another base."""
        return self.throughput(K, M) / self.throughput(*base)

    def modelled(self, K: int, M: int) -> Modelled | None:
        """What the cost model said of a run: its N, stages and rungs; None before it was run."""
        row = self.rows.get((K, M))
        if row is None or row.status != "done":
            return None
        return row.rounds[-1].modelled if row.rounds else None

    def N(self, K: int, M: int) -> int | None:
        """Its mini-batch, 0 where not even micro-batches of one example fit; None before it was run."""
        found = self.modelled(K, M)
        return None if found is None else found.batch

    def step(self, K: int, M: int) -> float:
        """Seconds of its step; NaN where it was not run or nothing fits."""
        return self.rows[K, M].step_s if (K, M) in self.rows else nan

    def steps(self, K: int, M: int) -> list[float]:
        """Seconds of its step in each round."""
        return [round_.step_s for round_ in self.rows[K, M].rounds]

    def rung(self, cause: str, K: int, M: int) -> float:
        """Seconds of the step with all causes up to this one; NaN where there are none."""
        found = self.modelled(K, M)
        return found.rungs.get(cause, nan) if found else nan

    @cached_property
    def papers_size(self) -> bool:
        """Whether its model is of the paper's size, or of half its widths where they vary."""
        row = next(iter(self.rows.values()))
        return at_papers_size(self.results, row) or self._spec.model_args == NARROW["paper"]

    @property
    def scale(self) -> str:
        """`smoke`: where it was run, which tells the size of models that are not the paper's."""
        return next(iter(self.rows.values())).scale

    @property
    def stretches(self) -> list[float]:
        """How many times as long as the device each emulated cell's stages really waited."""
        specs = [row.spec for row in self.rows.values() if row.status == "done"]
        return [spec.stretch or 1.0 for spec in specs]

    @property
    def about(self) -> str:
        """`AmoebaNet-D (L=18, D=256, image=224), N=128 on tpu-v2`."""
        return f"{model_name(self.model)} ({_args(self._spec)}){_end(self._spec)}"

    @property
    def size(self) -> str:
        """`L=18, D=256, image=224, N=128 on tpu-v2`."""
        return _args(self._spec) + _end(self._spec)

    @property
    def _spec(self) -> "RunSpec":
        return next(iter(self.rows.values())).spec


def _args(spec: "RunSpec") -> str:
    return ", ".join(f"{name}={value}" for name, value in spec.model_args.items())


def _end(spec: "RunSpec") -> str:
    """The mini-batch, where it is one for all, and the device."""
    return f"{'' if spec.memory else f', N={spec.N}'} on {spec.profile or 'layers that wait'}"


def protocol(results: Results, model: str, name: str) -> Protocol:
    """The runs of a protocol; `emulated` are those of the controlled one. Without any its truth value is False."""
    rows = rows_of(results, experiment=NAME, model=model)
    if name == "emulated":
        rows = [row for row in rows if row.fidelity == "emulated"]
    else:
        rows = [
            row
            for row in rows
            if row.group == _GROUPS[name].format(model) and row.fidelity == "simulated"
        ]
    places: dict[tuple[str, str], list[Run]] = {}
    for row in rows:
        places.setdefault((row.machine, row.scale), []).append(row)
    tried = {place: sum(row.status != "planned" for row in some) for place, some in places.items()}
    order = sorted(
        places, key=lambda place: (tried[place] == 0, _SCALES.index(place[1]), -tried[place], place)
    )
    own = places[order[0]] if order else []
    return Protocol(
        results,
        model,
        {(row.K, row.M): row for row in own if row.remat == "always"},
        {row.M: row for row in own if row.remat == "never" and row.K == 1},
    )


def another_size(some: Iterable[Protocol]) -> str:
    """`smoke size`, where any of these is of another model than the paper's; else nothing."""
    scales = dict.fromkeys(one.scale for one in some if one and not one.papers_size)
    return f"{' and '.join(scales)} size" if scales else ""


def warning(some: Iterable[Protocol]) -> str:
    """The sentence that a note begins with where any of these is of another size; else nothing."""
    others = [one for one in some if one and not one.papers_size]
    if not others:
        return ""
    names = dict.fromkeys(model_name(one.model) for one in others)
    return (
        f"{' and '.join(names)}: modelled runs are of {another_size(others)}, another than the "
        "paper's, and show nothing about the paper. "
    )


def quoted(model: str, K: int, M: int) -> float:
    """The paper's cell; NaN where it has none."""
    return next((c.value for c in paper_table2() if (c.model, c.K, c.M) == (model, K, M)), nan)


def places(model: str) -> list[tuple[int, int]]:
    """(K, M) of the paper's cells of one model, by M within K."""
    return sorted((cell.K, cell.M) for cell in paper_table2() if cell.model == model)
