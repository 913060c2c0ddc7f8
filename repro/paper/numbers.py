"""Published numbers, read from `numbers.json` in this folder.

Tables are named as in arXiv v5. `source.neurips` has the NeurIPS 2019 numbering where it differs:
v5's Table 4 is NeurIPS's Table 5, v5's Table 5 is not in NeurIPS, NeurIPS's Table 4 (the step
breakdown) is not in v5. Every number has the fidelity `quoted`.
"""

import json
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

Row = TypeVar("Row", bound="Quoted")


class Quoted(SimpleNamespace):
    """A row of a table: its cells under the names of `numbers.json`, and where they are printed.

    `source` has the work, its place in v5 and in NeurIPS ("" if absent), the section, and how the
    number was read: printed, digitised or subtracted.
    """

    source: SimpleNamespace
    note: str = ""


class Peer(Quoted):
    """A row of another project's benchmark: `name`, K, M, N, `balance`, `recompute`, `values`.

    The keys of `values` name their units; a value of None means that the run was out of memory.
    """

    balance: tuple[int, ...] | None


@cache
def _numbers() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("numbers.json").read_text(encoding="utf-8"))


def _rows(table: str, kind: type[Row]) -> list[Row]:
    """The rows of a table as `kind`; a row may have its own way of reading."""
    entry = _numbers()[table]
    rows = []
    for row in entry["rows"]:
        cells = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        reading = cells.pop("reading", entry["source"]["reading"])
        source = SimpleNamespace(**entry["source"] | {"reading": reading})
        rows.append(kind(source=source, **cells))
    return rows


table1 = partial(_rows, "table1", Quoted)
"""Maximum model size (section 3); M is not printed for this table.

Memory is the sum over all accelerators, in GB as printed. `parameters_digit` is the unit of the
last printed digit of `parameters`.
"""
table2 = partial(_rows, "table2", Quoted)
"""Throughput on TPUs, normalised to K=2, M=1; the paper's batch differs between cells."""
table3 = partial(_rows, "table3", Quoted)
"""Throughput on GPUs without a fast interconnect, M=32, normalised to K=2."""
table4 = partial(_rows, "table4", Quoted)
"""Image classification, top-1 in percent, `starred` as printed; NeurIPS numbers it Table 5."""
table5 = partial(_rows, "table5", Quoted)
"""German-English BLEU and loss by tokens per batch; only in v5."""
translation_models = partial(_rows, "translation_models", Quoted)
"""The five T(L, H, A) of section 5: L encoder and L decoder layers, feed-forward width H, A heads.
"""
breakdown = partial(_rows, "breakdown", Quoted)
"""The step breakdown in percent of the step (NeurIPS section 3.1).

Model, K and M are not printed; `update` is 100 minus the other parts.
"""
zero_bubble = partial(_rows, "zero_bubble", Peer)
"""Settings of Zero Bubble: times of F, I, W and a message, bubble rates, and throughput."""


def figure(name: str) -> list[Quoted]:
    """The points of one figure, digitised from its picture."""
    return _rows(name, Quoted)


def torchgpipe(name: str) -> list[Peer]:
    """One of torchgpipe's published benchmarks, e.g. `torchgpipe("amoebanetd_speed")`."""
    return _rows(f"torchgpipe_{name}", Peer)


def lingvo(name: str) -> list[Peer]:
    """What Lingvo publishes of its own GPipe: `lingvo("throughput")`."""
    return _rows(f"lingvo_{name}", Peer)
