"""The paper against itself, and texts about the paper against the paper.

Each line has what is printed, what follows from other printed numbers, and the arithmetic between
them. All of it is computed from numbers.json and the closed forms, and no result of ours is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from repro.claims.cells import NAMES, formulas_over_k2
from repro.claims.sentences import KS, NEGLIGIBLE, ROUNDING
from repro.paper import theory
from repro.paper.numbers import (
    Cell,
    Size,
    breakdown,
    table1,
    table1_claims,
    table2,
    table3,
    table4,
    translation_models,
    utilisation,
)

PAPER, SOURCES = "the paper against itself", "texts about it against the paper"
BYTES_PER_PARAMETER = 12  # section 3, because RMSProp is used
GIB = 2**30
# Transformer-L at Table 1's widths (d=2048, 8192, vocabulary 32,000): parameters of its ends and of
# each layer. Both follow from the printed 282.2M and 785.8M to the last digit.
TRANSFORMER_ENDS, TRANSFORMER_LAYER = 131_104_000, 50_358_272
# What texts about the paper print.
SUMMARY_ACCELERATORS = 2048
SUMMARY_PARAMETERS, SUMMARY_SPEEDUP = 557e6, 6.3
CHAPTER_SIZES = (0.5e9, 2e9, 4e9, 8e9)
CHAPTER_SPEEDUPS = {4: 3.2, 8: 5.8}
SLIDES_RECOMPUTE = 1 / 3


@dataclass(frozen=True)
class AuditLine:
    """One comparison of printed numbers.

    Attributes:
        part: `PAPER` or `SOURCES`.
        place: where it is printed.
        printed: what is printed.
        follows: what follows from other printed numbers.
        arithmetic: how.
        agrees: whether both are the same to the printed digits.
    """

    part: str
    place: str
    printed: str
    follows: str
    arithmetic: str
    agrees: bool


def audit() -> list[AuditLine]:
    """All lines, the paper's first."""
    return [*_table1(), *_table2(), *_breakdown(), *_others(), *_sources()]


def _size(model: str, name: str) -> Size:
    (size,) = [size for size in table1() if (size.model, size.name) == (model, name)]
    return size


def _cell(model: str, K: int, M: int) -> Cell:
    (cell,) = [cell for cell in table2() if (cell.model, cell.K, cell.M) == (model, K, M)]
    return cell


def _table1() -> Iterator[AuditLine]:
    """Memory cells, units and multiples."""
    naive = _size("transformer", "Naive-1")
    expected = BYTES_PER_PARAMETER * naive.parameters / GIB
    yield AuditLine(
        PAPER,
        "Table 1, Transformer Naive-1",
        f"parameter memory {naive.parameter_memory_gb:g} G, activations "
        f"{naive.peak_activation_gb:g} G",
        "the two cells are swapped",
        f"{BYTES_PER_PARAMETER} bytes x {naive.parameters / 1e6:g}M = {expected:.2f} GiB, which "
        "stands under activations",
        agrees=abs(naive.parameter_memory_gb / expected - 1) < 0.01,
    )
    largest = _size("amoebanet-d", "Pipeline-8")
    expected = BYTES_PER_PARAMETER * largest.parameters / 1e9
    implied = largest.parameter_memory_gb * 1e9 / BYTES_PER_PARAMETER
    yield AuditLine(
        PAPER,
        "Table 1, AmoebaNet-D Pipeline-8",
        f"{largest.parameters / 1e9:g}B parameters, {largest.parameter_memory_gb:g} GB",
        f"{expected:.1f} GB, or {implied / 1e9:.2f}B parameters",
        f"{largest.parameters / 1e9:g}B x {BYTES_PER_PARAMETER} bytes = {expected:.1f} GB; "
        f"{largest.parameter_memory_gb:g} GB / {BYTES_PER_PARAMETER} bytes = {implied / 1e9:.2f}B",
        agrees=abs(largest.parameter_memory_gb / expected - 1) < 0.03,
    )
    smallest = _size("amoebanet-d", "Naive-1")
    for row in table1_claims():
        large = _size(row.model, f"Pipeline-{row.accelerators}")
        small = _size(row.model, row.over)
        times = large.parameters / small.parameters
        arithmetic = f"{_short(large.parameters)} / {_short(small.parameters)} = {times:.4g}"
        if large is largest:
            arithmetic += f"; {implied / 1e9:.2f}B / {_short(smallest.parameters)} = "
            arithmetic += f"{implied / smallest.parameters:.1f}"
        yield AuditLine(
            PAPER,
            f"section 3, {NAMES[row.model]} on {row.accelerators}",
            f"{row.times:g}x",
            f"{times:.4g}x",
            arithmetic,
            agrees=abs(times - row.times) <= (1.0 if row.times > 10 else 0.1),
        )
    for model, name in (("amoebanet-d", "GB of 10^9 bytes"), ("transformer", "GiB of 2^30 bytes")):
        size = _size(model, "Pipeline-1")
        decimal = size.parameter_memory_gb * 1e9 / size.parameters
        binary = size.parameter_memory_gb * GIB / size.parameters
        yield AuditLine(
            PAPER,
            f"Table 1, {NAMES[model]} Pipeline-1",
            f"{size.parameter_memory_gb:g} {'GB' if model == 'amoebanet-d' else 'G'}",
            name,
            f"over {_short(size.parameters)}: {decimal:.2f} bytes a parameter if decimal, "
            f"{binary:.2f} if binary; {BYTES_PER_PARAMETER} are stated",
            agrees=abs(decimal - BYTES_PER_PARAMETER) < abs(binary - BYTES_PER_PARAMETER),
        )


def _table2() -> Iterator[AuditLine]:
    """Cells that no pipeline with one mini-batch reaches, and what the text says of them."""
    above = [
        (cell, theory.speedup_over_k2m1(cell.K, cell.M, "plain"))
        for cell in table2()
        if cell.value > theory.speedup_over_k2m1(cell.K, cell.M, "plain") + 0.005
    ]
    worst, ideal = max(above, key=lambda pair: pair[0].value / pair[1])
    yield AuditLine(
        PAPER,
        "Table 2",
        f"{worst.value:g} for the {NAMES[worst.model]} at K={worst.K}, M={worst.M}",
        f"{len(above)} of {len(table2())} cells are above any pipeline with one mini-batch",
        f"K M / (M + K - 1) over its K=2, M=1 is at most {ideal:.2f} there; the mini-batch was "
        "adjusted from cell to cell",
        agrees=not above,
    )
    layers = 48
    half = BYTES_PER_PARAMETER * (TRANSFORMER_ENDS + layers * TRANSFORMER_LAYER) / 2
    memory = _size("transformer", "Naive-1").device_memory_gb
    yield AuditLine(
        PAPER,
        "Table 2, Transformer-48 at K=2",
        f"trained, on accelerators of {memory} GB by Table 1",
        f"{half / 1e9:.1f} GB of each are taken by parameters alone, at Table 1's widths",
        f"{BYTES_PER_PARAMETER} bytes x ({TRANSFORMER_ENDS:,} + {layers} x "
        f"{TRANSFORMER_LAYER:,}) / 2",
        agrees=half < 0.9 * memory * 1e9,
    )
    flat = {model: _cell(model, 8, 1).value for model in NAMES}
    yield AuditLine(
        PAPER,
        "section 3 on Table 2",
        "at M=1 throughput is relatively constant",
        " and ".join(f"{value:g}x ({NAMES[model]})" for model, value in flat.items()),
        "the cells K=8, M=1 over K=2, M=1",
        agrees=all(abs(value - 1) <= 0.1 for value in flat.values()),
    )
    large, small = (_cell("transformer", K, 32).value for K in (8, 2))
    scaled = large / small
    plain, early = formulas_over_k2(8, 32, base_M=32).values()
    yield AuditLine(
        PAPER,
        "section 3, Transformer",
        "3.5x for four times more accelerators",
        f"{scaled:.2f}x, above the formula of the text",
        f"{large:g} / {small:g}; K M / (M + K - 1) gives {plain:.2f}, "
        f"recomputing early {early:.2f}",
        agrees=scaled <= plain,
    )
    bubbles = [(theory.bubble_over_total(K, 4 * K), theory.bubble(K, 4 * K, "early")) for K in KS]
    yield AuditLine(
        PAPER,
        "section 2.3",
        "the bubble is negligible at M >= 4K",
        f"{bubbles[0][1]:.0%} to {bubbles[-1][0]:.0%} of the step for K = 2, 4, 8",
        ", ".join(f"{plain:.1%}" for plain, _ in bubbles)
        + " by (K-1)/(M+K-1); "
        + ", ".join(f"{early:.1%}" for _, early in bubbles)
        + " if recomputed early",
        agrees=max(early for _, early in bubbles) <= NEGLIGIBLE / 100,
    )
    gpu = {cell.K: cell.value for cell in table3() if cell.model == "amoebanet-d"}
    tpu = _cell("amoebanet-d", 4, 32).value / _cell("amoebanet-d", 2, 32).value
    yield AuditLine(
        PAPER,
        "Tables 2 and 3, AmoebaNet-D at K=4",
        f"{gpu[4]:g} over K=2 on GPUs without fast links",
        f"more than on TPUs with fast links, {tpu:.2f}",
        f"{_cell('amoebanet-d', 4, 32).value:g} / {_cell('amoebanet-d', 2, 32).value:g}; the "
        "models differ in width",
        agrees=gpu[4] <= tpu,
    )


def _breakdown() -> Iterator[AuditLine]:
    """The pie against the bubble formula."""
    pie = {part.part: part.percent for part in breakdown()}
    work = pie["computation"] + pie["recompute"]
    early = {M: work * 3 / (4 * M) for M in (16, 32)}
    plain = {M: 100 * theory.bubble_over_total(2, M) for M in (16, 32)}
    # (K-1)/(M+K-1) at K=2 is above the printed share up to this M.
    most = int(100 / pie["bubble"] - 1)
    yield AuditLine(
        PAPER,
        "section 3.1, the pie (K=2)",
        f"bubble {pie['bubble']:g} %, slightly lower than (K-1)/(M+K-1)",
        f"true for M up to {most} only; M=16 with early recompute gives {early[16]:.1f} %",
        f"M=16: {plain[16]:.1f} % by the formula, {work:.1f} % x 3/(4 x 16) = {early[16]:.2f} % "
        f"early; M=32: {plain[32]:.1f} % and {early[32]:.2f} %",
        agrees=abs(early[16] - pie["bubble"]) < 0.05,
    )
    share = pie["recompute"] / pie["computation"]
    yield AuditLine(
        PAPER,
        "section 3.1, the pie",
        f"recompute {pie['recompute']:g} %, computation {pie['computation']:g} %",
        f"recompute is {share:.3f} of computation: one forward of three",
        f"{pie['recompute']:g} / {pie['computation']:g}; forward plus a backward of two forwards "
        "makes 1/3",
        agrees=abs(share - 1 / 3) < 0.02,
    )


def _others() -> Iterator[AuditLine]:
    """Tables 3 to 5."""
    transfer = [row for row in table4() if row.dataset != "ImageNet-2012"]
    better = [row for row in transfer if row.accuracy > row.previous_best]
    yield AuditLine(
        PAPER,
        "Table 4 (v1's abstract)",
        "best result on 5 of 7 transfer sets",
        f"{len(better)} of {len(transfer)}",
        "cells of GPipe above the previous best",
        agrees=len(better) == 5,
    )


def _sources() -> Iterator[AuditLine]:
    """A summary, a book chapter and lecture slides."""
    for point in utilisation():
        formula = 100 * (1 - theory.bubble_over_total(point.K, point.M))
        if abs(point.percent - formula) > ROUNDING:
            yield AuditLine(
                SOURCES,
                "a book chapter, utilisation",
                f"{point.percent:g} % at K={point.K}, M={point.M}",
                f"{formula:.0f} %",
                f"M/(M+K-1), printed beside it: {point.M}/{point.M + point.K - 1}",
                agrees=False,
            )
    sizes = [size.parameters for size in table1()]
    sizes += [model.parameters for model in translation_models()]
    absent = [size for size in CHAPTER_SIZES if size not in sizes]
    ratios = {(cell.K, cell.value) for cell in (*table2(), *table3())}
    missing = [f"{times:g}x at {K}" for K, times in CHAPTER_SPEEDUPS.items()]
    known = [f"{times:g}x at {K}" for K, times in CHAPTER_SPEEDUPS.items() if (K, times) in ratios]
    yield AuditLine(
        SOURCES,
        "a book chapter, bars",
        f"{', '.join(_short(size) for size in CHAPTER_SIZES)} parameters; {', '.join(missing)}",
        f"{len(absent)} of {len(CHAPTER_SIZES)} sizes are not in the paper",
        "no such size in Table 1 or section 5"
        + (f"; of the speedups Table 2 has {', '.join(known)}, over K=2, M=1" if known else ""),
        agrees=not absent,
    )
    (cell,) = [cell for cell in table2() if cell.value == SUMMARY_SPEEDUP]
    yield AuditLine(
        SOURCES,
        "a summary, AmoebaNet-B",
        f"{SUMMARY_PARAMETERS / 1e6:g}M parameters on 8 TPUs, {SUMMARY_SPEEDUP:g}x",
        f"{SUMMARY_SPEEDUP:g} is the {cell.paper_model}'s, over K=2, M=1",
        f"Table 2, K={cell.K}, M={cell.M}; AmoebaNet-B (18, 512) had 4 partitions",
        agrees=cell.model != "transformer",
    )
    most = max(size.accelerators for size in table1())
    partitions = max(model.partitions or 0 for model in translation_models())
    yield AuditLine(
        SOURCES,
        "a summary, 6B parameters",
        f"{SUMMARY_ACCELERATORS} TPUs, near-linear",
        f"at most {most} accelerators, and {partitions} partitions for 6B",
        "Table 1's last column; section 5",
        agrees=most >= SUMMARY_ACCELERATORS,
    )
    (recompute,) = [part.percent for part in breakdown() if part.part == "recompute"]
    yield AuditLine(
        SOURCES,
        "lecture slides, recomputation",
        "about a third of the running time",
        f"{recompute:g} % of the step",
        "the pie; a third is its share of computation, without recompute itself",
        agrees=abs(100 * SLIDES_RECOMPUTE - recompute) < 2,
    )
    yield AuditLine(
        SOURCES,
        "summaries, bubble at K=4, M=16",
        "3/19, about 16 %",
        f"{theory.bubble(4, 16, 'early'):.1%} as the paper schedules it",
        f"(K-1)/(M+K-1) = {theory.bubble_over_total(4, 16):.1%} holds without early recompute",
        agrees=abs(theory.bubble(4, 16, "early") - theory.bubble_over_total(4, 16)) < 0.01,
    )
    M = 32
    yield AuditLine(
        SOURCES,
        "summaries, update",
        "gradients of the micro-batches are averaged",
        "section 2.2 accumulates them: a sum",
        f"of losses that are means over a micro-batch the sum is M times the mini-batch's "
        f"gradient ({M} at M={M}), so the loss has to be a mean over the mini-batch",
        agrees=False,
    )


def _short(parameters: float) -> str:
    """`82M`, `1.8B`."""
    return f"{parameters / 1e9:g}B" if parameters >= 1e9 else f"{parameters / 1e6:g}M"
