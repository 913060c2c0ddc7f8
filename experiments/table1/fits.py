"""Recorded searches for the largest model that fits, as a frame, and how Table 1 writes sizes."""

from functools import lru_cache
from math import nan
from typing import Any

import pandas as pd

from experiments.table1 import runs as plan
from experiments.table1.runs import ACCOUNTINGS, DECIMAL_16G, DROPOUT, NAIVE, NAME
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.schema import CutModel, FitRound
from repro.harness.spec import Optimizer, RunSpec
from repro.paper.numbers import table1
from repro.report.framed import framed
from repro.report.style import model_name
from repro.report.table import Table

COLUMN = ["model", "column"]
BYTES_PER_PARAMETER = 12  # section 3, because RMSProp is used
UNITS = {"amoebanet-d": ("GB", 10**9), "transformer": ("GiB", 2**30)}  # of memory in Table 1
# The kinds that make the 12 bytes; see `runs.ACCOUNTINGS`.
PARAMETER_KINDS: dict[Optimizer, tuple[str, ...]] = {
    "rmsprop": ("parameters", "gradients", "optimizer"),
    "rmsprop-momentum": ("parameters", "optimizer"),
}
# Readings that everything else of Table 1 is counted with: the one that is favoured, and Naive-1.
FAVOURED = [f"{ACCOUNTINGS[plan.OPTIMIZER]}, {passes}" for passes in (f"M={plan.M}", "Naive-1")]


def printed() -> Frame:
    frame = pd.DataFrame([vars(size) for size in table1()]).rename(columns={"name": "column"})
    return frame.assign(quoted=[size_text(vars(size)) for size in table1()])


_COLUMNS = [
    "column", "reading", "unprinted", "dropout", "usual", "given", "is_printed", "largest", "cut",
    "share", "size", "parameters", "activations", "fit",
]  # fmt: skip


@lru_cache(maxsize=1)
def all_fits(results: Results) -> Frame:
    """A line for each search, and for the memory of each size that was given.

    A count is the same on every machine, so it stands once. A measurement stands once for each
    machine and scale. Columns are those of the run, and of `_fit`.
    """
    frame = runs_frame(results, NAME, task="fit", done=True)
    frame = frame.loc[(frame["fidelity"] != "counted") | ~frame["id"].duplicated()]
    lines = [_fit(run.spec, run.rounds[-1].record) for run in frame["run"]]
    return frame.join(pd.DataFrame(lines, frame.index, columns=_COLUMNS))


def _fit(spec: RunSpec, record: FitRound) -> dict[str, Any]:
    naive = (spec.K, spec.M, spec.checkpoint) == (1, 1, "never")
    column = "Naive-1" if naive else f"Pipeline-{spec.K}"
    largest, args = record.fit.largest, spec.model_args
    size = plan.PRINTED[spec.model].get(NAIVE if naive else spec.K)
    cut = largest or record.fit.next
    assert cut
    assert spec.memory
    share = cut.fullest / spec.memory
    unprinted = [
        f"{args['attention']} attention" if "attention" in args else "",
        f"attention dropout {args['attention_dropout']:g}" if "attention_dropout" in args else "",
        "decimal GB" if spec.memory == DECIMAL_16G else "",
    ]
    return {
        "column": column,
        "reading": f"{ACCOUNTINGS[spec.optimizer]}, {'Naive-1' if naive else f'M={spec.M}'}",
        "unprinted": "".join(f", {part}" for part in unprinted if part),
        "dropout": "attention_dropout" in args,
        "usual": (spec.N, spec.memory) == (plan.N_OF[spec.model], plan.MEMORY[spec.model]),
        # Whether the size was given, so that only its memory was asked for.
        "given": cut.args == args,
        "is_printed": args in (size, size and size | DROPOUT),
        "largest": largest,
        "cut": cut,  # the largest size, or the next one up if nothing fits
        "share": share,  # of the memory that a device has, in the fullest stage
        "size": size_text(cut.args) if largest else f"none ({size_text(cut.args)}: {share:.0%})",
        "parameters": largest.parameters if largest else nan,
        "activations": sum(activations(cut, spec.optimizer)) / UNITS[spec.model][1],
        "fit": record.fit,
    }


def activations(cut: CutModel, optimizer: Optimizer) -> list[int]:
    """Bytes of each stage except the 12 of each parameter; Table 1 sums them.

    Gradients belong to them where the 12 bytes are the weights and two slots.
    """
    kinds = PARAMETER_KINDS[optimizer]
    return [stage.total - sum(map(stage.bytes_of, kinds)) for stage in cut.stages]


def favoured(frame: Frame) -> Frame:
    """The counts with the reading and settings that everything in Table 1 but these is given in."""
    return select(frame, fidelity="counted", usual=True, unprinted="", reading=FAVOURED)


def counted_sizes(results: Results) -> Frame:
    """The paper's own sizes, counted in each reading, with dropout and without."""
    fits = select(all_fits(results), fidelity="counted", usual=True, is_printed=True)
    paper = printed().rename(columns={"parameters": "parameters_quoted"})
    frame = paper.merge(fits, on=COLUMN, suffixes=("_quoted", ""))
    return frame.assign(difference=frame["activations"] / frame["peak_activation_gb"] - 1)


def size_text(args: dict[str, Any]) -> str:
    return f"({args['L']}, {args['D']})" if args.get("D") else f"L={args['L']}"


def short(parameters: float) -> str:
    """`82.0M`, `1.80B`."""
    return f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def as_printed(parameters: float) -> str:
    """Parameters with the digits that the paper prints."""
    return f"{parameters / 1e9:g}B" if parameters >= 1e9 else f"{parameters / 1e6:g}M"


def table_of(results: Results, name: str, frame: Frame, **more: Any) -> Table:
    if len(frame):
        frame = frame.assign(model=frame["model"].map(model_name))
    return framed(results, name, frame, plan.ABOUT, **more)
