"""Kills at random moments: every run is recorded exactly once, and the tables are those of an
undisturbed sweep."""

import random
from pathlib import Path

import pytest
from campaign import AIMS, PHASES, campaign, clock_fields

pytestmark = pytest.mark.filterwarnings("default")


def test_clocks_are_found_by_what_they_do():
    assert clock_fields() == {
        "step_s",
        "setup_s",
        "breakdown",
        "bubble_idle_over_total",
        "bubble_idle_over_work",
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_few_kills(tmp_path: Path):
    counts = campaign(tmp_path, [PHASES, ("recording",)], seed=random.randrange(10**6))
    assert counts.kills.total() == 2


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_kills(tmp_path: Path):
    counts = campaign(tmp_path, AIMS * 20, seed=1811_06965)
    assert counts.kills.total() == 100
    assert set(counts.kills) == set(PHASES)
    assert counts.most_processes >= 3
