"""The runtime's goals and arithmetic; its tables are those of the reference."""

import pytest

from experiments.runtime.runs import GOALS, KIB, KNOWN_DURATIONS, MESSAGE_SIZE, experiment
from repro.harness.spec import SCALES


def test_each_goal_has_its_run():
    groups = {group.name: group.runs for group in experiment("laptop").groups}
    known = {(run.model_args["forward_s"], run.K, run.M) for run in groups[KNOWN_DURATIONS]}
    assert set(GOALS) <= known


@pytest.mark.parametrize("scale", SCALES)
def test_its_steps_are_those_of_the_arithmetic(scale):
    groups = {group.name: group.runs for group in experiment(scale).groups}
    for run in (*groups[KNOWN_DURATIONS], *groups[MESSAGE_SIZE]):
        assert (run.schedule, run.checkpoint) == ("gpipe", "always")
        assert run.model_args["L"] == run.K
        assert run.model_args["backward_s"] == 2 * run.model_args["forward_s"]
    for run in groups[KNOWN_DURATIONS]:
        assert 4 * run.model_args["elements"] * run.N // run.M == 64 * KIB
