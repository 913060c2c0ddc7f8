"""Published numbers as typed values, read from `numbers.json` beside this file.

Tables are named as in arXiv v5. `Source.neurips` has the NeurIPS 2019 numbering where it differs:
v5's Table 4 is NeurIPS's Table 5, v5's Table 5 is not in NeurIPS, NeurIPS's Table 4 (the step
breakdown) is not in v5. Every number has the fidelity `quoted`.
"""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

Reading = Literal["printed", "digitised", "subtracted"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Source:
    """Source of a number: the work, its place in v5 and NeurIPS ("" if absent), how it was read."""

    work: str
    v5: str
    neurips: str
    section: str
    reading: Reading


@dataclass(frozen=True)
class Quoted:
    source: Source
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell(Quoted):
    """Training throughput of one (model, K, M), relative to the cell that prints 1."""

    model: str
    paper_model: str
    K: int
    M: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Size(Quoted):
    """One column of Table 1; memory is the sum over all accelerators, in GB as printed."""

    model: str
    name: str
    accelerators: int
    L: int
    D: int | None
    parameters: int
    parameter_memory_gb: float
    peak_activation_gb: float
    device_memory_gb: int
    parameters_digit: int | None = None  # unit of the last digit as printed, where that is 0


@dataclass(frozen=True, kw_only=True)
class ScaleUp(Quoted):
    """Ratio of parameters between two columns of Table 1, as printed in the text."""

    model: str
    accelerators: int
    times: float
    over: str


@dataclass(frozen=True, kw_only=True)
class Accuracy(Quoted):
    """One data set of v5 Table 4 (NeurIPS Table 5): top-1 in percent; `starred` as printed."""

    dataset: str
    train: int
    test: int
    classes: int
    accuracy: float
    previous_best: float
    starred: bool


@dataclass(frozen=True, kw_only=True)
class BatchSize(Quoted):
    """One column of v5 Table 5: tokens per batch, German-English BLEU and loss."""

    batch_tokens: int
    bleu: float
    nll: float


@dataclass(frozen=True, kw_only=True)
class TranslationModel(Quoted):
    """T(L, H, A) of section 5: L encoder and L decoder layers, feed-forward width H, A heads."""

    L: int
    H: int
    A: int
    parameters: int
    partitions: int | None


@dataclass(frozen=True, kw_only=True)
class Share(Quoted):
    """One slice of the step breakdown, in percent of the step (NeurIPS section 3.1)."""

    part: str
    percent: float


@dataclass(frozen=True, kw_only=True)
class Utilisation(Quoted):
    """Utilisation of K devices with M micro-batches, in percent of K x step time."""

    K: int
    M: int
    percent: float


@dataclass(frozen=True, kw_only=True)
class Point(Quoted):
    """One point of a figure; `figure_axes` says what x and y are."""

    series: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Peer(Quoted):
    """One row of another project's benchmark.

    The keys of `values` name their units; a value of None means that the run was out of memory.
    """

    name: str
    K: int | None
    M: int | None
    N: int | None
    balance: tuple[int, ...] | None
    checkpoint: str | None
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Iteration:
    """A training iteration of Megatron-LM that vTrain's authors measured (arXiv:2312.12391)."""

    batch: int  # of all replicas together
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tensor: int  # T, devices that have parts of each matrix
    data: int  # D
    pipeline: int  # K
    step_s: float


@cache
def vtrain() -> tuple[Iteration, ...]:
    """All 1,440 iterations, from github VIA-Research/vTrain, data/ground_truth_single.csv (MIT)."""
    path = Path(__file__).with_name("vtrain.csv")
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    found = []
    for _gpus, *setting, ms in rows:
        names = list(Iteration.__dataclass_fields__)[:-1]
        found.append(
            Iteration(**dict(zip(names, map(int, setting), strict=True)), step_s=float(ms) / 1e3)
        )
    return tuple(found)


@cache
def _numbers() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("numbers.json").read_text(encoding="utf-8"))


def _rows(table: str, kind: Callable[..., Row]) -> list[Row]:
    """The rows of a table as `kind`; a row may have its own way of reading."""
    entry = _numbers()[table]
    rows = []
    for row in entry["rows"]:
        cells = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        reading = cells.pop("reading", entry["source"]["reading"])
        rows.append(kind(source=Source(**entry["source"] | {"reading": reading}), **cells))
    return rows


table1 = partial(_rows, "table1", Size)
"""Maximum model size (section 3); M is not printed for this table."""
table1_claims = partial(_rows, "table1_claims", ScaleUp)
"""The ratios of section 3 about Table 1: 25x, 2.7x, 298x."""
table2 = partial(_rows, "table2", Cell)
"""Throughput on TPUs, normalised to K=2, M=1; the paper's batch differs between cells."""
table3 = partial(_rows, "table3", Cell)
"""Throughput on GPUs without a fast interconnect, M=32, normalised to K=2."""
table4 = partial(_rows, "table4", Accuracy)
"""Image classification; NeurIPS numbers it Table 5."""
table5 = partial(_rows, "table5", BatchSize)
"""BLEU and loss by batch size; only in v5."""
translation_models = partial(_rows, "translation_models", TranslationModel)
"""The five T(L, H, A) models of section 5."""
breakdown = partial(_rows, "breakdown", Share)
"""The step breakdown; model, K and M are not printed; `update` is 100 minus the other parts."""
utilisation = partial(_rows, "utilisation", Utilisation)
"""Utilisation M/(M+K-1) at K=4 and 8, as a book chapter prints it; two points do not fit."""
zero_bubble = partial(_rows, "zero_bubble", Peer)
"""Settings of Zero Bubble: times of F, I, W and a message, bubble rates, and throughput."""


def figures() -> list[str]:
    return [key for key in _numbers() if key.startswith("figure")]


def figure(name: str) -> list[Point]:
    """The points of one figure, digitised from its picture; those of v4 are from torchgpipe."""
    return _rows(name, Point)


def figure_axes(name: str) -> tuple[str, str]:
    """Descriptions of x and y of `figure(name)`, with their units."""
    return _numbers()[name]["x"], _numbers()[name]["y"]


def torchgpipe(name: str) -> list[Peer]:
    """One of torchgpipe's published benchmarks, e.g. `torchgpipe("amoebanetd_speed")`."""
    return _rows(f"torchgpipe_{name}", Peer)


def lingvo(name: str) -> list[Peer]:
    """What Lingvo says of its own GPipe: `lingvo("throughput")`, `lingvo("memory")`."""
    return _rows(f"lingvo_{name}", Peer)
