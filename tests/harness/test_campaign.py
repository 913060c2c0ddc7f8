"""Kills at random moments: every run is recorded exactly once, as in an undisturbed sweep."""

import random
import shutil
from pathlib import Path

import pytest
from campaign import AIMS, PHASES, Counts, campaign, compare
from crew import metrics

from repro.harness import machine
from repro.harness.job import Measured
from repro.harness.journal import journals

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_few_kills_lose_nothing_and_a_lost_round_is_counted(tmp_path: Path):
    counts = campaign(tmp_path, [PHASES, ("recording",)], seed=random.randrange(10**6))
    assert counts.kills.total() == counts.record()["kills"] == 2
    assert counts.nothing_lost, counts

    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path / "whole", damaged)
    (journal,) = journals(damaged)
    event = journal.rounds[-1]
    lost, changed = list(event.records)[:2]
    values = {changed: Measured(metrics(1.0, 2, unit="miles"))}
    times = (event.started, event.ended)
    journal.append(event.model_copy(update={"records": {}, "replacing": [lost, changed]}))
    for _ in range(2):
        journal.commit(event.group, values, machine.detect("smoke"), times)
    counts = Counts(0, sweeps=1)
    compare(damaged, tmp_path / "whole", counts)
    assert (counts.runs_lost, counts.runs_alike, counts.sweeps_alike) == (1, counts.runs - 2, 0)
    assert not counts.nothing_lost


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_kills(tmp_path: Path):
    counts = campaign(tmp_path, AIMS * 20, seed=1811_06965)
    assert counts.kills.total() == 100
    assert counts.nothing_lost, counts
    assert set(counts.kills) == set(PHASES)
    assert counts.most_processes >= 3
