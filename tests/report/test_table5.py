"""Table 5's tables on made-up trainings in which a larger batch translates better."""

from pathlib import Path

import pytest
from recorded import fill_with
from trainings import trained

from experiments.table5 import report, runs
from repro.harness.results import Results, load
from repro.harness.spec import RunSpec
from repro.report.table import Table


def made_up(path: Path, bleu_a_doubling: float, nll_a_doubling: float = -0.01) -> Results:
    """Every doubling of N adds so much; seeds differ by 0.1 BLEU, for every N alike."""

    def made(run: RunSpec, _number: int):
        doublings = run.N.bit_length() - 5  # of N=16
        bleu = 20 + bleu_a_doubling * doublings + 0.1 * run.seed
        return trained({"bleu": bleu, "nll": 2 + nll_a_doubling * doublings})

    fill_with(path, runs.experiment("laptop"), made)
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made_up(tmp_path_factory.mktemp("results"), 0.5)


def verdicts(table: Table) -> dict[str, str]:
    return dict(zip(table.data["", "metric"], table.data["", "verdict"], strict=True))


def test_the_gain_is_paired_by_seed_and_beside_the_paper_s(results: Results):
    table = report.gains(results)
    assert list(table.data["measured", "difference"]) == pytest.approx([2.0, -0.04])
    # Seeds differ, differences do not: so the interval has no width.
    assert table.data["measured", "difference: low"].tolist() == pytest.approx([2.0, -0.04])
    assert list(table.data["quoted", "difference"]) == pytest.approx([1.79, -0.12])
    assert verdicts(table) == dict.fromkeys(("BLEU", "NLL"), "trend (smaller models)")


def test_a_loss_is_no_trend(tmp_path: Path):
    table = report.gains(made_up(tmp_path, -0.5, nll_a_doubling=0.02))
    assert set(verdicts(table).values()) == {"not reproduced (smaller models): reversed"}


def test_one_metric_may_fall_short(tmp_path: Path):
    table = report.gains(made_up(tmp_path, 0.5, nll_a_doubling=0.02))
    assert verdicts(table) == {
        "BLEU": "trend (smaller models)",
        "NLL": "not reproduced (smaller models): reversed",
    }
