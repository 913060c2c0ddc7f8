"""Kills at random moments: every run is recorded exactly once, as in an undisturbed sweep."""

import random
from pathlib import Path

import pytest
from campaign import SEED, campaign

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


@pytest.mark.timeout(300)  # three sweeps, one after the other
def test_a_kill_loses_nothing(tmp_path: Path):
    counts = campaign(tmp_path, 1, seed=random.randrange(10**6))
    assert counts.nothing_lost, counts


@pytest.mark.campaign
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_kills(tmp_path: Path):
    counts = campaign(tmp_path, 100, SEED)
    assert counts.nothing_lost, counts
    assert counts.most_processes >= 3
