"""The published numbers, spot-checked cell by cell against the paper."""

import pytest

from repro.paper import (
    breakdown,
    figure,
    figures,
    numbers,
    table1,
    table2,
    table3,
    table4,
    table5,
    theory,
    torchgpipe,
    translation_models,
    utilisation,
)

TABLE2 = {
    "amoebanet-d": {1: (1, 1.13, 1.38), 4: (1.07, 1.26, 1.72), 32: (1.21, 1.84, 3.48)},
    "transformer": {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8), 32: (1.8, 3.4, 6.3)},
}


def test_table_2_has_all_eighteen_cells():
    cells = {(c.model, c.K, c.M): c.value for c in table2()}
    assert cells == {
        (model, K, M): value
        for model, rows in TABLE2.items()
        for M, values in rows.items()
        for K, value in zip((2, 4, 8), values, strict=True)
    }


def test_every_number_says_where_it_stands():
    tables = (table1, table2, table3, table4, table5, breakdown, translation_models, utilisation)
    everything = [row for table in tables for row in table()]
    everything += [point for name in figures() for point in figure(name)]
    assert all(row.fidelity == "quoted" and str(row.source) for row in everything)


# Size, parameters, memory of parameters and of activations at the peak, over all accelerators.
TABLE1 = {
    ("amoebanet-d", "Naive-1"): ((18, 208), 82e6, 1.05, 6.26),
    ("amoebanet-d", "Pipeline-1"): ((18, 416), 318e6, 3.8, 3.46),
    ("amoebanet-d", "Pipeline-2"): ((18, 544), 542e6, 6.45, 8.11),
    ("amoebanet-d", "Pipeline-4"): ((36, 544), 1.05e9, 12.53, 15.21),
    ("amoebanet-d", "Pipeline-8"): ((72, 512), 1.8e9, 24.62, 26.24),
    ("transformer", "Naive-1"): ((3, None), 282.2e6, 11.7, 3.15),
    ("transformer", "Pipeline-1"): ((13, None), 785.8e6, 8.8, 6.4),
    ("transformer", "Pipeline-8"): ((103, None), 5.3e9, 59.5, 50.9),
    ("transformer", "Pipeline-32"): ((415, None), 21e9, 235.1, 199.9),
    ("transformer", "Pipeline-128"): ((1663, None), 83.9e9, 937.9, 796.1),
}


def test_every_cell_of_table_1():
    cells = {
        (s.model, s.name): ((s.L, s.D), s.parameters, s.parameter_memory_gb, s.peak_activation_gb)
        for s in table1()
    }
    assert cells == TABLE1


# Examples to train on and to test on, classes, accuracy of GPipe and the best before, in percent.
TABLE4 = {
    "ImageNet-2012": (1_281_167, 50_000, 1000, 84.4, 83.9),
    "CIFAR-10": (50_000, 10_000, 10, 99.0, 98.5),
    "CIFAR-100": (50_000, 10_000, 100, 91.3, 89.3),
    "Stanford Cars": (8_144, 8_041, 196, 94.6, 94.8),
    "Oxford Pets": (3_680, 3_369, 37, 95.9, 93.8),
    "Food-101": (75_750, 25_250, 101, 93.0, 90.4),
    "FGVC Aircraft": (6_667, 3_333, 100, 92.7, 92.9),
    "Birdsnap": (47_386, 2_443, 500, 83.6, 80.2),
}


def test_every_cell_of_table_4():
    rows = {r.dataset: (r.train, r.test, r.classes, r.accuracy, r.previous_best) for r in table4()}
    assert rows == TABLE4


def test_other_tables():
    assert [(c.model[0], c.K, c.value) for c in table3()] == [
        *(("a", 2, 1), ("a", 4, 1.7), ("a", 8, 2.7)),
        *(("t", 2, 1), ("t", 4, 1.8), ("t", 8, 3.3)),
    ]
    assert [(row.bleu, row.nll) for row in table5()] == [
        (30.92, 2.58),
        (31.86, 2.51),
        (32.71, 2.46),
    ]
    assert [model.partitions for model in translation_models()] == [None, 2, 4, 8, 16]


def test_the_breakdown_fills_the_step_and_says_what_was_inferred():
    shares = {share.part: share for share in breakdown()}
    assert sum(share.percent for share in shares.values()) == pytest.approx(100)
    assert {part for part, share in shares.items() if share.source.reading == "subtracted"} == {
        "update"
    }


def test_two_points_of_the_chapter_are_not_of_their_own_formula():
    points = {(point.K, point.M): point for point in utilisation()}
    assert [point.percent for point in points.values()] == [50, 73, 84, 91, 95, 31, 53, 70, 82, 90]
    off = {
        at
        for at, p in points.items()
        if abs(p.percent - 100 * (1 - theory.bubble_over_total(*at))) > 1
    }
    assert off == {(4, 4), (8, 4)} == {at for at, point in points.items() if point.note}
    assert (
        str(points[4, 4].source)
        == 'a book chapter on pipeline parallelism ("Chapter 26", secondary)'
    )


def test_torchgpipe_s_rows_repeat_the_paper_s():
    cells = {(c.K, c.M): c.value for c in table2() if c.model == "amoebanet-d"}
    rows = torchgpipe("amoebanetd_speed")
    assert {(r.K, r.M): r.values["paper_ratio"] for r in rows} == cells
    assert rows[0].balance == (7, 17)
    assert torchgpipe("amoebanetd_memory")[0].values["peak_activation_gib"] is None


def test_figures_have_axes():
    assert numbers.figure_axes("figure1b") == ("billion parameters", "average BLEU")
    assert len(figure("figure3")) == 30
