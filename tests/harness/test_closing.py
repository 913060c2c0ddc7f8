"""What `repro run` ends with: the table, which point is called the fastest, and the lines of
exhibits."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from crew import MACHINE, Crew, experiment, measure, metrics, spec

from repro.harness import catalog, contention, plan
from repro.harness.closing import best, closing
from repro.harness.journal import Journal
from repro.harness.machine import Machine
from repro.harness.results import Place, Results, Round, Run, load
from repro.harness.spec import Experiment

POINTS = tuple(spec(K, M) for K in (1, 2) for M in (1, 4))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run beside anything."""
    monkeypatch.setattr(contention.CpuShare, "share", lambda self: 0.0)


def ended(results: Path, of: Experiment, crew: Crew | None = None) -> str:
    """What `repro run` prints."""
    out = io.StringIO()
    measure(results, crew or Crew(), of, out=out)
    return out.getvalue()


def test_a_sweep_ends_with_a_table_that_fits_eighty_columns(tmp_path: Path):
    of = experiment(*POINTS, rounds=5)
    told = ended(tmp_path, of)
    lines = told[told.rindex("\ntransformer, measured, N=8") :].strip().splitlines()
    assert [line.split() for line in lines[1:6]] == [
        ["K", "M", "step", "examples/s", "over", "K=1", "idle", "peak", "rounds"],
        ["1", "1", "2.00", "s", "4.00", "-", "25%", "1.00", "GiB", "5"],
        ["1", "4", "1.25", "s", "6.40", "-", "25%", "1.00", "GiB", "5"],
        ["2", "1", "1.50", "s", "5.33", "1.33x", "[1.33,", "1.33]", "25%", "1.00", "GiB", "5"],
        ["2", "4", "750", "ms", "10.7", "1.67x", "[1.67,", "1.67]", "25%", "1.00", "GiB", "5"],
    ]
    assert max(map(len, lines)) <= 100
    assert max(map(len, lines[1:6])) <= 80
    assert (
        "fastest: K=2, M=4 with 10.7 examples/s, 1.67x [1.67, 1.67] over the next, K=1, M=4" in told
    )
    again = ended(tmp_path, of)  # measures nothing, and ends in the same way
    assert again[again.index("\ntransformer, measured") :].startswith("\n".join(["", *lines]))


def test_what_varies_besides_k_and_m_has_a_column(tmp_path: Path):
    wide = spec(2, 4, model_args={**spec().model_args, "d": 64}, schedule="1f1b")
    told = ended(tmp_path, experiment(spec(2, 4), wide, rounds=1))
    (head,) = [line for line in told.splitlines() if line.startswith("K  M  ")]
    assert head.split()[:5] == ["K", "M", "schedule", "d", "step"]
    assert "over" not in head.split(), "no run has a K=1 to be divided by"
    assert "fastest" not in told, "the two differ in more than K and M"


def test_rounds_under_load_are_recorded_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shares = iter([0.02, 0.0, 0.55, 0.3])  # before the first round, then of three rounds
    monkeypatch.setattr(contention.CpuShare, "share", lambda self: next(shares))
    told = ended(tmp_path, experiment(*POINTS, rounds=3))
    assert told.count("this machine is busy: other processes take ") == 1
    assert told.count("3, 2 busy") == len(POINTS)
    assert "busy: other processes took more than 10% of the usable cores" in told
    assert load(tmp_path).rounds.groupby("round")["load"].first().tolist() == [0.0, 0.55, 0.3]


def timed_runs(
    *steps: tuple[int, list[float]], **changed: Any
) -> tuple[list[plan.PlannedRun], dict[str, Run], Results]:
    """Runs of K=2 and these M with these throughputs, one for each round; `changed` are settings of
    all."""
    planned, recorded = [], {}
    for M, throughputs in steps:
        one = plan.PlannedRun(f"M{M}", "g", spec(2, M, **changed), "done")
        rounds = tuple(
            Round(
                f"g-{number}",
                metrics(8 / throughput, 2, peak_bytes=None, unit="images/s").model_dump(),
                N=8,
                commit="",
            )
            for number, throughput in enumerate(throughputs)
        )
        planned.append(one)
        recorded[one.id] = Run(Place("m", "smoke", "e"), one.id, "g", one.spec, "done", rounds)
    return planned, recorded, Results(list(recorded.values()), [])


def test_fastest_is_said_only_where_a_difference_is_shown():
    shown = timed_runs((1, [9000.0] * 5), (4, [9990.0, 9980, 9991, 9970, 9999]))
    assert best(*shown) == [
        "fastest: K=2, M=4 with 9,990 images/s, 1.11x [1.11, 1.11] over the next, K=2, M=1"
    ]
    noisy = timed_runs((1, [100.0, 90, 110, 95, 105]), (4, [101.0, 120, 85, 99, 110]))
    (words,) = best(*noisy)
    assert words.startswith("no fastest is shown: K=2, M=4 and K=2, M=1 do not differ")
    few = timed_runs((1, [100.0] * 4), (4, [200.0] * 4))
    (words,) = best(*few)
    assert "do not differ in 4 rounds in common" in words
    simulated = timed_runs((1, [100.0]), (4, [101.0]), fidelity="simulated", profile="v100")
    assert best(*simulated) == ["fastest: K=2, M=4 with 101 images/s"]


def test_an_experiment_of_the_paper_ends_with_one_line(tmp_path: Path):
    of = experiment(*POINTS, rounds=5).model_copy(update={"paper": "Table 9"})
    told = ended(tmp_path, of)
    assert "Table 9: transformer, measured: K=2, M=4 is 2.00x [2.00, 2.00] over K=2, M=1\n" in told
    assert "K  M" not in told
    made = plan.make(of.model_copy(update={"name": "other"}), "smoke", MACHINE, tmp_path)
    assert closing(made) == ["\nTable 9: nothing was measured"]


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "breakdown", "bubble"])
def test_the_exhibits_of_the_reference_results(name: str):
    reference = Path("results/reference")
    # Several machines may have measured it; the first one has all of its groups.
    recorded = min(reference.glob(f"*/laptop/{name}"))
    about = Journal(recorded).about
    assert about is not None
    identity = about.identity
    here = Machine("cpu", identity["device"], 2, identity["transport"], identity["torch"])
    (line,) = closing(plan.make(catalog.find(name).build("laptop"), "laptop", here, reference))
    wanted = {
        "table1": r"transformer, counted: K=128 fits L=\d+, [\d,]+ million parameters",
        "table2": r"transformer, measured: K=2, M=32 is [\d.]+x \[[\d., ]+\].* over K=2, M=1",
        "table3": r"amoebanet-d, simulated: K=8, M=32 is [\d.]+x over K=2",
        "breakdown": r"NeurIPS Table 4: amoebanet-d, measured: K=2, M=16 idles \d+% of K x step",
        "bubble": r"timed, emulated: K=16, M=64 idles \d+% of K x step",
    }
    assert re.search(wanted[name], str(line))
    assert "\n" not in str(line).strip()
