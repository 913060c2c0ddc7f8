"""Kills at random moments: every run is recorded exactly once, and the tables are those of an
undisturbed sweep."""

import random
import shutil
from pathlib import Path

import pytest
from campaign import AIMS, PHASES, Counts, Start, campaign, clock_fields, compare
from crew import metrics

from repro.harness import machine
from repro.harness.job import Measured
from repro.harness.journal import journals

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
    assert counts.kills.total() == counts.record()["kills"] == 2
    assert counts.nothing_lost, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lost_round_and_a_changed_file_are_counted(tmp_path: Path):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    Start(whole).wait()
    shutil.copytree(whole, damaged)
    counts = Counts(0, sweeps=1)
    compare(damaged, whole, counts)
    assert counts.nothing_lost, counts

    (journal,) = journals(damaged)
    event = journal.rounds[-1]
    lost, changed = list(event.records)[:2]
    values = {changed: Measured(metrics(1.0, 2, unit="miles"))}
    times = (event.started, event.ended)
    journal.append(event.model_copy(update={"records": {}, "replacing": [lost, changed]}))
    for _ in range(2):
        journal.commit(event.group, values, machine.detect("smoke"), times)
    counts = Counts(0, sweeps=1)
    compare(damaged, whole, counts)
    assert (counts.runs_lost, counts.runs_alike) == (1, counts.runs - 2)
    assert counts.sweeps_alike == 0
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
