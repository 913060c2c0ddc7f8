"""Every claim, once: `claims.toml` expanded by the rows of the paper's tables.

Its tolerances, and the ids of its claims, are those that experiments show.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any, get_args

from repro.claims.claim import Claim, Ends, Evidence, Fidelity, judge, mean_of
from repro.paper import numbers, theory
from repro.paper.numbers import Quoted


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


DATA = _read("claims.toml")
CELL: float = DATA["allowed"]["cell"]["share"]  # of a ratio of throughput, of bytes
SHARE: float = DATA["allowed"]["part"]["near"]  # points of a part of the step
NEGLIGIBLE: float = DATA["allowed"]["negligible"]["at_most"][0]  # percent of K x step
KS = (2, 4, 8)  # of the paper's tables
FORMS: dict[str, theory.Form] = {
    "the textbook's formula": "plain",
    "the ideal with early recompute": "early",
}
BASE_CELL = "the cell that the others are divided by"
_BOTH = "arXiv v5 and NeurIPS 2019"
_TITLES = {"amoebanet-d": "AmoebaNet-D", "transformer": "Transformer"}
_SLICES = {"imbalance": "load imbalance", "setup": "set-up", "update": "weight update"}
_FORMATTED = ("id", "text", "unit", "allowed")  # of a claim: they name fields of its row
# As they are.
_TAKEN = ("exhibit", "experiment", "any_size", "direction", "training", "no_effect", "formulas")


def cell_id(*parts: object) -> str:
    return "/".join(map(str, parts))


def throughput_id(table: str, model: str, K: int, M: int) -> str:
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


def verdicts_on(identities: Iterable[str], found: Iterable[tuple[str, Evidence]]) -> list[str]:
    """The verdict on each claim, by what was found of all."""
    ours = chosen(found)
    return [verdict_on(identity, ours.get(identity)) for identity in identities]


def arithmetic() -> Iterator[tuple[str, Evidence]]:
    """Claim id -> what a formula gives, of claims that no experiment is about."""
    for claim in all_claims():
        if claim.formulas and not claim.experiment:
            value = next(iter(claim.formulas.values()))
            yield claim.id, Evidence(value, "arithmetic", (), papers_size=True)


def chosen(found: Iterable[tuple[str, Evidence]]) -> dict[str, Evidence]:
    """Of each claim one number: the mean of those that are known best.

    That is in the order of `Fidelity`, the paper's size first. What says nothing about the claim
    stands behind all that does.
    """
    every: dict[str, dict[tuple[object, ...], list[Evidence]]] = {}
    for identity, ours in found:
        fidelity = get_args(Fidelity).index(ours.fidelity)
        rank = (not _by_id()[identity].admits(ours), fidelity, not ours.papers_size)
        every.setdefault(identity, {}).setdefault(rank, []).append(ours)
    return {identity: mean_of(ranks[min(ranks)]) for identity, ranks in every.items()}


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
    if "peak_activation_gb" in fields:  # a size of Table 1
        fields["size"] = f"(L={row.L})" if row.D is None else f"({row.L}, {row.D})"
        # Table 1 has decimal GB for AmoebaNet-D and binary ones for the Transformer.
        fields["gb"] = "GB" if row.model == "amoebanet-d" else "GiB"
    return fields


def _version(row: Quoted) -> str:
    versions = [("arXiv v5", row.source.v5), ("NeurIPS 2019", row.source.neurips)]
    return " and ".join(name for name, place in versions if place) or row.source.work


def _claim(claim: Mapping[str, Any], row: Mapping[str, Any]) -> Claim:
    def number(name: str, default: float = nan) -> float:
        value = claim.get(name, default)
        return row[value] if isinstance(value, str) else value

    value = number("value") / number("divided_by", 1.0)
    words = {**claim, **row, "digit": number("digit", 0.0) or last_digit(value)}
    texts = {name: claim.get(name, "").format_map(words) for name in _FORMATTED}
    allowed = DATA["allowed"][texts.pop("allowed")]
    taken = {name: claim[name] for name in _TAKEN if name in claim}
    needs = claim.get("needs", "")
    taken["needs"] = DATA["needs"][needs] if needs else ""
    if (words.get("K"), words.get("M")) == (2, claim.get("base_M")):
        taken |= {"experiment": "", "needs": BASE_CELL}
    elif "form" in claim:
        taken["formulas"] = _formulas(claim["form"], words)
    for name in ("fitted", "implied"):
        reasons = DATA[name].items()
        taken[name] = next((why for ids, why in reasons if fnmatch(texts["id"], ids)), "")
    return Claim(
        **texts,
        **taken,
        version=claim.get("version") or row.get("version", _BOTH),
        value=value,
        readings=_readings(allowed, value, words),
        tolerance=allowed["why"],
        meant=_meant().get(texts["id"], nan),
    )


def _readings(
    allowed: Mapping[str, Any], value: float, words: Mapping[str, Any]
) -> dict[str, Ends]:
    """How the claim may be read -> the least and the greatest value that agree."""
    if not {"above", "at_most"}.isdisjoint(allowed):
        low, limits = allowed.get("above", -inf), allowed.get("at_most", [inf])
        return {f"at most {limit:g}" * (len(limits) > 1): (low, limit) for limit in limits}
    near = allowed.get("near", 0.0)
    off = words[near] if isinstance(near, str) else near + allowed.get("share", 0.0) * value
    off += allowed.get("units", 0.0) * words["digit"]
    return {"": (value - off, value + off)}


def last_digit(value: float) -> float:
    """The unit of the last digit of a number that is printed in billions, millions or ones."""
    scale = next((size for size in (1e9, 1e6) if value >= size), 1.0)
    return scale / 10 ** len(f"{value / scale:g}".partition(".")[2])


@cache
def audit() -> list[dict[str, Any]]:
    """The lines of `audit.toml`: the paper against itself, and texts about the paper against it.

    Each has what is printed, what follows from other printed numbers, and the arithmetic between
    them. No result of ours is needed. `formulas`: number in `follows` or `arithmetic` -> how it is
    computed. `meant`: id of a claim whose number is a misprint -> the number that should stand
    there.
    """
    parts = {"paper": "the paper against itself", "sources": "texts about it against the paper"}
    data = _read("audit.toml")
    return [{"part": name, **line} for part, name in parts.items() for line in data[part]]


@cache
def _meant() -> dict[str, float]:
    """Claim id -> what should be printed, where the audit shows that another number is."""
    return {at: value for line in audit() for at, value in line.get("meant", {}).items()}


def _formulas(form: str, words: Mapping[str, Any]) -> dict[str, float]:
    """What follows from K and M alone, by name: closed forms with two orders of recomputation."""
    K, M = words["K"], words["M"]
    found = {}
    for name, order in FORMS.items():
        bubble = theory.bubble(K, M, order)
        found[name] = {
            "bubble": 100 * bubble,
            "below plain": 100 * (bubble - theory.bubble(K, M, "plain")),
            "utilisation": 100 * (1 - bubble),
            "ratio": theory.speedup_over_k1(K, M, order)
            / theory.speedup_over_k1(2, words.get("base_M", M), order),
        }[form]
    return found
