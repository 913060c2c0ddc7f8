"""What Table 2's predictions depend on: ratios over the base with the same figure changed."""

from dataclasses import replace

import pytest
from modelled import LATE, costs
from recorded import changed_runs

from experiments.table2 import report as table2
from experiments.table2 import sensitivity as table2_sensitivity
from experiments.table2.recorded import protocol
from experiments.table2.sensitivity import FIGURES
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.schema import Modelled
from repro.simulate import simulate


def step(K, M):
    slower = 1.25 if K == 8 else 1.0
    return simulate(make_schedule("gpipe", K, M, "always"), costs(K, M, 32, slower)).step_time


@pytest.fixture(scope="module")
def shown(modelled):
    (table,) = table2_sensitivity.tables(modelled)
    frame = table.shown
    frame.columns = [name for _, name in frame.columns]
    return frame[frame["model"] == "Transformer"].set_index("figure")


def test_a_line_a_figure_between_the_prediction_and_the_widest_range(shown):
    assert list(shown.index) == ["as it is", *FIGURES.values(), "widest range"]
    assert shown.loc["as it is", "K=8, M=32"] == f"{step(2, 1) / step(8, 32):.2f}"
    assert list(shown["rests on"])[1:-1] == ["sourced"] * 7 + ["assumption"]


def test_what_slows_base_and_cell_alike_leaves_the_ratio(shown):
    as_it_is = shown.loc["as it is", "K=8, M=4"]
    assert shown.loc[FIGURES["matmul_flops"], "K=8, M=4"] == f"{as_it_is} / {as_it_is}"


def test_the_base_is_changed_too(modelled, shown):
    low, high = (step(2, 1) + more * LATE for more in (-0.5, 1.0))
    many = [step(8, 32) + 32 * more * LATE for more in (-0.5, 1.0)]
    expected = low / many[0], high / many[1]
    assert (
        shown.loc[FIGURES["link_latency_s"], "K=8, M=32"]
        == f"{expected[0]:.2f} / {expected[1]:.2f}"
    )
    assert (
        shown.loc["widest range", "K=8, M=32"]
        == f"{expected[1]:.2f} to {expected[0]:.2f}: link latency"
    )
    own = protocol(modelled, "transformer", "controlled")
    found = table2_sensitivity.ratios(own)
    assert found["link_latency_s"][8, 32][1] == pytest.approx(expected[1])
    assert table2_sensitivity.widest(own, found, (8, 32))[2] == "link_latency_s"


def test_it_is_among_the_tables_with_its_numbers(modelled):
    (table,) = [one for one in table2.tables(modelled) if one.name == "table2_sensitivity"]
    assert "nothing is fitted" in table.note
    assert table.data is not None
    numbers = [
        [*table.data["K=8, M=32", word].dropna()] for word in ("as it is", "doubled", "lowest")
    ]
    assert [len(some) for some in numbers] == [2, 2 * len(FIGURES), 2]
    assert "AmoebaNet-D" in table.markdown()


def test_records_from_before_give_no_line(modelled):
    old = changed_runs(modelled, _without_sensitivity)
    assert table2_sensitivity.tables(old) == []
    assert "table2_predictions" in {table.name for table in table2.tables(old)}


def _without_sensitivity(run):
    if run.fidelity == "measured":
        return run
    record = run.rounds[0].record
    modelled = record.modelled.model_copy(update={"sensitivity": {}})
    record = record.model_copy(update={"modelled": modelled})
    return replace(run, rounds=(replace(run.rounds[0], record=record),))


def test_a_damaged_record_is_told(modelled):
    modelled_step = protocol(modelled, "transformer", "controlled").modelled(8, 32)
    assert modelled_step is not None
    plain = modelled_step.model_dump()
    assert Modelled(**plain) == modelled_step
    plain["sensitivity"]["launch_s"]["halved"] = "fast"
    with pytest.raises(ValueError, match="launch_s"):
        Modelled(**plain)
