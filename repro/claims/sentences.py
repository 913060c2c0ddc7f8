"""The quantitative sentences of the paper, and of five texts about it, as claims.

A sentence without a number, such as "negligible", is read as a number here, and the reading is the
reason of its tolerance.
"""

from collections.abc import Iterator
from math import nan

from repro.claims.cells import (
    CELL,
    COUNT,
    IMAGENET,
    NAMES,
    SHARE,
    SHARE_REASON,
    TOLERANCES,
    TRANSLATION,
    cell_id,
    formulas_over_k2,
    version_of,
)
from repro.claims.claim import Claim, above, at_most, near, within
from repro.paper import theory
from repro.paper.numbers import breakdown, table1_claims, table2, utilisation

BOTH = "arXiv v5 and NeurIPS 2019"
SOURCES = "sources"
NEGLIGIBLE = 5.0  # percent of K x step: our reading of a word, which the paper gives no number for
ROUNDING = 1.0  # points that a printed percentage may be off the formula beside it
KS = (2, 4, 8)  # of the paper's tables
INTERVAL = "the 95 % interval has to lie on this side of no effect"


def sentences() -> Iterator[Claim]:
    """Every quantitative sentence of the paper and of the sources."""
    yield from _sizes()
    yield from _throughput()
    yield from _links()
    yield from _recompute()
    yield from _bubble()
    yield from _memory_law()
    yield from _reliability()
    yield from _trainings()
    yield from _utilisation()


def _sizes() -> Iterator[Claim]:
    """25x, 2.7x and 298x."""
    for row in table1_claims():
        # One unit of the last digit, because the paper cuts digits off as well as it rounds: it
        # prints 542M for 542.7M.
        low, high = near(row.times, 1.0 if row.times == int(row.times) else 0.1)
        yield Claim(
            id=cell_id("table1", row.model, row.accelerators, "times"),
            exhibit="Table 1",
            version=version_of(row),
            text=(
                f"{NAMES[row.model]} on {row.accelerators} accelerators has {row.times:g} times "
                f"the parameters of {row.over}"
            ),
            value=row.times,
            unit="x",
            low=low,
            high=high,
            tolerance="one unit of the last printed digit",
            experiment="table1",
        )


def _throughput() -> Iterator[Claim]:
    printed = {(cell.model, cell.K, cell.M): cell.value for cell in table2()}
    for model, name in NAMES.items():
        value = printed[model, 8, 32] / printed[model, 2, 32]
        text = f"{name}: throughput at M=32 of K=8 over K=2"
        if model == "transformer":
            value, text = 3.5, f'{text} ("3.5x for four times more accelerators")'
        low, high = within(value, CELL)
        yield Claim(
            id=cell_id("table2", model, "K=8 over K=2"),
            exhibit="Table 2",
            version=BOTH,
            text=text,
            value=value,
            unit="x",
            low=low,
            high=high,
            tolerance=TOLERANCES[CELL],
            experiment="table2",
            no_effect=1.0,
            formulas=formulas_over_k2(8, 32, base_M=32),
        )
        low, high = within(1.0, CELL)
        yield Claim(
            id=cell_id("table2", model, "M=1 constant"),
            exhibit="Table 2",
            version=BOTH,
            text=f"{name}: at M=1 throughput is relatively constant (K=8 over K=2)",
            value=1.0,
            unit="x",
            low=low,
            high=high,
            tolerance=TOLERANCES[CELL],
            experiment="table2",
        )
        low, high = above(1.0)
        yield Claim(
            id=cell_id("table2", model, "more micro-batches"),
            exhibit="Table 2",
            version=BOTH,
            text=f"{name}: at K=2 more micro-batches give more throughput (M=32 over M=1)",
            value=printed[model, 2, 32],
            unit="x",
            low=low,
            high=high,
            tolerance=INTERVAL,
            experiment="table2",
            direction=True,
        )


def _links() -> Iterator[Claim]:
    """Slow links suffice: what they cost of a step at K=8."""
    for model, name in NAMES.items():
        low, high = at_most(100 * CELL)
        yield Claim(
            id=cell_id("table3", model, "slow links"),
            exhibit="Table 3",
            version=BOTH,
            text=f"{name}: slow links suffice (share of the step that they cost at K=8)",
            value=nan,
            unit="%",
            low=low,
            high=high,
            tolerance="at most 10 % of the step, the project's tolerance for a cell",
            experiment="table3",
        )


def _recompute() -> Iterator[Claim]:
    """What recomputation takes of a step: three texts, three numbers."""
    quarter = "the ideal quarter of computation and recompute together"
    (quoted,) = [part for part in breakdown() if part.part == "recompute"]
    for name, version, text, value in (
        ("23 %", version_of(quoted), "recompute takes up to 23 % of the step", 23.0),
        ("a third", SOURCES, "recompute takes about a third of the running time", 100 / 3),
        ("a quarter", SOURCES, f"recompute takes about 25 %, {quarter}", 25.0),
    ):
        low, high = near(value, SHARE)
        yield Claim(
            id=cell_id("breakdown", "recompute", name),
            exhibit="Step breakdown",
            version=version,
            text=text,
            value=value,
            unit="%",
            low=low,
            high=high,
            tolerance=SHARE_REASON,
            experiment="breakdown",
            no_effect=0.0,
        )


def _bubble() -> Iterator[Claim]:
    """Section 2.3: negligible from M = 4K on, (K-1)/(M+K-1), and observed lower than that."""
    for K in KS:
        M = 4 * K
        low, high = at_most(NEGLIGIBLE)
        yield Claim(
            id=cell_id("bubble", f"K={K}", "negligible"),
            exhibit="Section 2.3",
            version=BOTH,
            text=f"the bubble is negligible at M = 4K (K={K}, M={M})",
            value=nan,
            unit="%",
            low=low,
            high=high,
            tolerance="at most 5 % of K x step: our reading of the word",
            experiment="bubble",
            any_size=True,
        )
        low, high = at_most(0.0)
        yield Claim(
            id=cell_id("bubble", f"K={K}", "below theory"),
            exhibit="Section 3.1",
            version="NeurIPS 2019",
            text=f"the bubble is lower than (K-1)/(M+K-1) (points, K={K}, M={M})",
            value=nan,
            unit="points",
            low=low,
            high=high,
            tolerance="below the formula",
            experiment="bubble",
            any_size=True,
            direction=True,
        )
    value = 100 * theory.bubble_over_total(4, 16)
    low, high = near(value, ROUNDING)
    yield Claim(
        id="bubble/3 of 19",
        exhibit="Section 2.3",
        version=SOURCES,
        text="at K=4, M=16 the bubble is 3/19",
        value=value,
        unit="%",
        low=low,
        high=high,
        tolerance="1 point: the source rounds to 16 %",
        experiment="bubble",
        any_size=True,
    )


def _memory_law() -> Iterator[Claim]:
    """Peak activations go as N + (L/K)(N/M)."""
    for model, name in NAMES.items():
        low, high = at_most(100 * CELL)
        yield Claim(
            id=cell_id("table1", model, "memory law"),
            exhibit="Section 2.3",
            version=BOTH,
            text=f"{name}: peak activations are N + (L/K)(N/M) (worst error over M, K or N)",
            value=nan,
            unit="%",
            low=low,
            high=high,
            tolerance="at most 10 %: the limit up to which table1_laws says that a law holds",
            experiment="table1",
            any_size=True,
        )


def _reliability() -> Iterator[Claim]:
    """The update does not depend on K, so the weights are the same for every K."""
    for model, name in (("amoebanet-b", "AmoebaNet-B"), ("translation", "translation model")):
        yield Claim(
            id=cell_id("consistency", model),
            exhibit="Section 7",
            version=BOTH,
            text=f"{name}: training does not depend on K (trainings in which any bit differs)",
            value=0.0,
            unit="",
            low=0.0,
            high=0.0,
            tolerance="none: the same bits",
            experiment="consistency",
            any_size=True,
        )
    yield Claim(
        id="figure2/order",
        exhibit="Figure 2",
        version=BOTH,
        text="order of forwards and backwards at K=4, M=4 (stages in another order)",
        value=0.0,
        unit="",
        low=0.0,
        high=0.0,
        tolerance="none: the drawn order",
        experiment="bubble",
        any_size=True,
    )


def _trainings() -> Iterator[Claim]:
    """Which way quality goes with size, batch, pretraining and data."""
    yield _direction(
        "table4/transfer",
        "pretraining helps other tasks (the task that decides by the experiment's rule)",
        unit="points",
    )
    yield _direction("table5/BLEU", "a larger batch: BLEU", version="arXiv v5")
    yield _direction("table5/NLL", "a larger batch: NLL falls", version="arXiv v5")
    yield _direction("figure1a/exponent", "the error falls with the parameters (exponent)")
    yield _direction("figure1b/exponent", "BLEU rises with the parameters (exponent)")
    yield _direction("figure3/size", "larger models have more BLEU (largest minus smallest)")
    yield _direction("figure3/transfer", "languages with little data gain more (BLEU)")
    yield _direction("figure3/depth", "deep is better than wide where data is scarce (BLEU)")
    for name, text, value, share in (
        ("table4/parameters", "AmoebaNet-B (18, 512) has 557M parameters", 557e6, COUNT),
        ("table4/better", "better than before on 5 of 7 transfer sets", 5.0, 0.0),
    ):
        low_count, high_count = within(value, share)
        yield Claim(
            id=name,
            exhibit="Table 4",
            version=BOTH,
            text=text,
            value=value,
            unit="",
            low=low_count,
            high=high_count,
            tolerance=TOLERANCES[COUNT] if share else "none: a number of data sets",
            needs=IMAGENET,
        )


def _direction(id: str, text: str, unit: str = "", version: str = BOTH) -> Claim:
    """A claim that a difference or an exponent of trainings is above 0."""
    place = id.partition("/")[0]
    experiment = place.removesuffix("a").removesuffix("b")
    low, high = above(0.0)
    return Claim(
        id=id,
        exhibit=experiment.replace("table", "Table ").replace("figure", "Figure "),
        version=version,
        text=text,
        value=nan,
        unit=unit,
        low=low,
        high=high,
        tolerance=INTERVAL,
        experiment=experiment,
        needs=IMAGENET if place in ("table4", "figure1a") else TRANSLATION,
        direction=True,
    )


def _utilisation() -> Iterator[Claim]:
    """A book chapter's points, which its own formula gives or does not: see the audit."""
    for point in utilisation():
        low, high = near(point.percent, ROUNDING)
        yield Claim(
            id=cell_id("utilisation", f"K={point.K}", f"M={point.M}"),
            exhibit="Section 2.3",
            version=SOURCES,
            text=f"utilisation at K={point.K}, M={point.M}",
            value=point.percent,
            unit="%",
            low=low,
            high=high,
            tolerance="1 point: printed without decimals",
            needs="a closed form without runs, held against it by the audit",
        )
