"""Every claim, once: `claims.toml` expanded by the rows of the paper's tables.

Its tolerances, and the ids of its claims, are those that experiments show.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

from repro.claims.claim import Claim, Evidence, judge
from repro.paper import numbers, theory
from repro.paper.numbers import Quoted, Size

DATA: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
)
CELL: float = DATA["allowed"]["cell"]["share"]  # of a ratio of throughput, of bytes
SHARE: float = DATA["allowed"]["part"]["near"]  # points of a part of the step
ROUNDING: float = DATA["allowed"]["rounding"]["near"]  # points
NEGLIGIBLE: float = DATA["allowed"]["negligible"]["at_most"]  # percent of K x step
KS = (2, 4, 8)  # of the paper's tables
BASE_CELL = "the cell that the others are divided by"
_BOTH = "arXiv v5 and NeurIPS 2019"
_TITLES = {"amoebanet-d": "AmoebaNet-D", "transformer": "Transformer"}
_SLICES = {"imbalance": "load imbalance", "setup": "set-up", "update": "weight update"}
_FORMATTED = ("id", "text", "unit", "allowed")  # of a claim: they name fields of its row
_TAKEN = ("exhibit", "experiment", "any_size", "direction", "no_effect")  # as they are


def cell_id(*parts: object) -> str:
    """`table2/transformer/K=8/M=32`."""
    return "/".join(map(str, parts))


def throughput_id(table: str, model: str, K: int, M: int) -> str:
    """The id of a cell of Table 2 or 3."""
    return cell_id(table, model, f"K={K}", f"M={M}")


@cache
def all_claims() -> tuple[Claim, ...]:
    claims = tuple(claim for group in DATA["groups"] for claim in _expanded(group))
    assert len({claim.id for claim in claims}) == len(claims)
    return claims


@cache
def _by_id() -> dict[str, Claim]:
    return {claim.id: claim for claim in all_claims()}


def verdict_on(identity: str, evidence: Evidence | None) -> str:
    return str(judge(_by_id()[identity], evidence))


def _expanded(group: Mapping[str, Any]) -> Iterator[Claim]:
    for row in _rows(group.get("rows", [{}])):
        for claim in group.get("claims", [{}]):
            yield _claim(group | claim, row)


def _rows(rows: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the fields that texts name."""
    if not isinstance(rows, str):
        return [row | {"title": _TITLES.get(row.get("model", ""))} for row in rows]
    if rows in numbers.figures():
        x_name, y_name = numbers.figure_axes(rows)
        axes = {"x_name": x_name, "y_name": y_name}
        return [_fields(point) | axes for point in numbers.figure(rows)]
    return [_fields(row) for row in getattr(numbers, rows)()]


def _fields(row: Quoted) -> dict[str, Any]:
    fields = {"version": _version(row), **vars(row)}
    if "model" in fields:
        fields["title"] = _TITLES[fields["model"]]
    if "part" in fields:
        fields["slice"] = _SLICES.get(fields["part"], fields["part"])
    if "times" in fields:
        fields["digit"] = "unit" if fields["times"] == int(fields["times"]) else "ten"
    if isinstance(row, Size):
        fields["size"] = f"(L={row.L})" if row.D is None else f"({row.L}, {row.D})"
        # Table 1 has decimal GB for AmoebaNet-D and binary ones for the Transformer.
        fields["gb"] = "GB" if row.model == "amoebanet-d" else "GiB"
    return fields


def _version(row: Quoted) -> str:
    versions = [("arXiv v5", row.source.v5), ("NeurIPS 2019", row.source.neurips)]
    return " and ".join(name for name, place in versions if place) or row.source.work


def _claim(claim: Mapping[str, Any], row: Mapping[str, Any]) -> Claim:
    def number(name: str, default: float) -> float:
        value = claim.get(name, default)
        return row[value] if isinstance(value, str) else value

    value = number("value", nan)
    if "divided_by" in claim:
        value /= number("divided_by", 1.0)
    words = {**claim, **row}
    texts = {name: claim.get(name, "").format_map(words) for name in _FORMATTED}
    allowed = DATA["allowed"][texts.pop("allowed")]
    low, high = _ends(allowed, value)
    taken = {name: claim[name] for name in _TAKEN if name in claim}
    needs = claim.get("needs", "")
    taken["needs"] = DATA["needs"][needs] if needs else ""
    if "base_M" in claim:
        taken["formulas"] = _formulas(row["K"], row["M"], claim["base_M"])
        if (row["K"], row["M"]) == (2, claim["base_M"]):
            taken |= {"experiment": "", "needs": BASE_CELL}
    return Claim(
        **texts,
        **taken,
        version=claim.get("version") or row.get("version", _BOTH),
        value=value,
        low=low,
        high=high,
        tolerance=allowed["why"],
    )


def _ends(allowed: Mapping[str, Any], value: float) -> tuple[float, float]:
    """The least and the greatest value that agree."""
    if "share" in allowed:
        return value * (1 - allowed["share"]), value * (1 + allowed["share"])
    if "near" in allowed:
        return value - allowed["near"], value + allowed["near"]
    return allowed.get("above", -inf), allowed.get("at_most", inf)


def _formulas(K: int, M: int, base_M: int) -> dict[str, float]:
    """Both closed forms of a throughput over that of K=2 and `base_M`, at one N, by name."""
    forms: dict[str, theory.Form] = {
        "the textbook's formula": "plain",
        "the ideal with early recompute": "early",
    }
    return {
        name: theory.speedup_over_k1(K, M, form) / theory.speedup_over_k1(2, base_M, form)
        for name, form in forms.items()
    }
