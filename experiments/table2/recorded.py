"""The printed cells of Table 2 beside what was simulated of them, as one frame."""

from functools import lru_cache
from math import nan

import pandas as pd

from experiments.costs.error import with_range
from experiments.table2.runs import BY_FLOPS, NAME, NS
from repro.harness.frame import runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.sizes import MODELLED_AMOEBANET, MODELLED_TRANSFORMER, NARROW
from repro.harness.spec import SCALES, RunSpec
from repro.paper import theory
from repro.paper.numbers import table2, torchgpipe
from repro.report.compare import fits
from repro.report.framed import with_interval

SIZES = {"amoebanet-d": MODELLED_AMOEBANET["paper"], "transformer": MODELLED_TRANSFORMER["paper"]}
CELL = ["model", "K", "M"]
# Groups that change more than K and M from cell to cell, or how layers are cut.
VARIED = ("-by-memory", *BY_FLOPS, *(f"-n{N}" for N in NS))
CONTROLLED = "one N, cut by time"
SHARE, VARIANCE = "one N, cumulative share", "one N, minimum variance"
BY_MEMORY, NARROW_BY_MEMORY = "by memory", "half widths, by memory"
SHARE_BY_MEMORY = "cumulative share, by memory"
VARIANCE_BY_MEMORY = "minimum variance, by memory"
# How N and the cut of a cell are chosen: the end of a group's name -> the protocol.
PROTOCOLS = {
    "simulated": CONTROLLED,
    "share": SHARE,
    "variance": VARIANCE,
    "by-memory": BY_MEMORY,
    "share-by-memory": SHARE_BY_MEMORY,
    "variance-by-memory": VARIANCE_BY_MEMORY,
    "narrow-by-memory": NARROW_BY_MEMORY,
}
# The protocol of each model that could have run on the paper's devices: the largest mini-batch that
# is counted to fit, and in every cell one fits.
HEADLINES = {"amoebanet-d": BY_MEMORY, "transformer": NARROW_BY_MEMORY}


def at_papers_size(run: Run) -> bool:
    return run.spec.model_args == SIZES.get(run.model)


def is_controlled(run: Run) -> bool:
    """Whether a run, of any fidelity, is of the protocol with one N for all cells, cut by time."""
    return not run.group.endswith(VARIED)


def printed() -> pd.DataFrame:
    cells = sorted(table2(), key=lambda cell: (cell.model, cell.K, cell.M))
    frame = pd.DataFrame([(cell.model, cell.K, cell.M) for cell in cells], columns=CELL)
    frame["quoted"] = pd.Series([cell.value for cell in cells], dtype=object)
    theirs = {("amoebanet-d", p.K, p.M): p.values["ratio"] for p in torchgpipe("amoebanetd_speed")}
    found = [theirs.get((cell.model, cell.K, cell.M)) for cell in cells]
    frame["torchgpipe"] = pd.Series(found, dtype=float)
    forms: dict[str, theory.Form] = {"textbook": "plain", "ideal": "early"}
    for name, form in forms.items():
        frame[name] = [theory.speedup_over_k2m1(cell.K, cell.M, form) for cell in cells]
    frame["is_base"] = (frame["K"] == 2) & (frame["M"] == 1)
    return frame


@lru_cache(maxsize=1)
def simulated_cells(results: Results) -> pd.DataFrame:
    """A line for each printed cell and protocol that was simulated, of one place.

    Columns are those of the run, of `printed`, and: `ratio` over the protocol's own K=2, M=1, whose
    N may be another, with the error of the cost model; `fits`, False where the cell or the one that
    it is divided by is counted not to fit the device; `modelled` of both, what the cost model gave.
    """
    frame = runs_frame(results, NAME, fidelity="simulated", remat="always")
    groups = zip(frame["model"], frame["group"], strict=True)
    frame["protocol"] = [PROTOCOLS.get(group.removeprefix(f"{model}-")) for model, group in groups]
    frame = frame.dropna(subset="protocol")
    frame["fits"] = frame["run"].map(fits)
    frame["modelled"] = [run.rounds[-1].modelled if run.done else None for run in frame["run"]]
    frame = _of_one_place(frame)
    keys = ["model", "protocol"]
    base = select(frame, K=2, M=1)[[*keys, "id", "throughput", "fits", "modelled"]]
    frame = frame.merge(base, how="left", on=keys, suffixes=("", "_of_base"))
    frame["ratio"] = frame["throughput"] / frame["throughput_of_base"]
    frame["fits"] &= frame["fits_of_base"].ne(False)
    lines = printed().merge(frame[keys].drop_duplicates(), on="model")
    frame = lines.merge(frame, how="left", on=[*keys, "K", "M"])
    frame["headline"] = frame["protocol"] == frame["model"].map(HEADLINES.get)
    found = zip(frame["ratio"], frame["spec"].where(~frame["is_base"]), strict=True)
    ends = [
        with_range(results, r, spec) if isinstance(spec, RunSpec) else (r, nan, nan)
        for r, spec in found
    ]
    return with_interval(frame, "ratio", ends)


def _of_one_place(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each protocol the runs of the place with the largest scale that tried any."""
    keys, place = ["model", "protocol"], ["machine", "scale"]
    tried = frame.loc[frame["status"] != "planned"]
    counts = tried.groupby([*keys, *place]).size().reset_index(name="tried")
    counts["rank"] = [SCALES.index(scale) for scale in counts["scale"]]
    counts = counts.sort_values(["rank", "tried"], ascending=[False, False], kind="stable")
    return counts.drop_duplicates(keys)[[*keys, *place]].merge(frame, on=[*keys, *place])


def papers_size(spec: RunSpec) -> bool:
    """Whether a simulated model is of the paper's size, or of half its widths where they vary."""
    return spec.model_args in (SIZES.get(spec.model), NARROW["paper"])


def over_base(cells: pd.DataFrame, bound: str) -> list[float]:
    """The ratio of each cell if its step were one of the cost model's `bounds`."""
    both = (cells[column] for column in ("modelled_of_base", "modelled"))
    base, cell = ([step.bounds.get(bound) if step else nan for step in of] for of in both)
    return list(pd.Series(base, dtype=float) / pd.Series(cell, dtype=float))
