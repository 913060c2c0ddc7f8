"""A step with inf or nan is refused on every rank; its cause is named; nothing changes."""

import pytest
from explosions import BAD, CASES, REPLICAS, batch, everything, loss_fn, pipeline

from repro.gpipe import launch

LAYERS_OF = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 3: [0, 0, 1, 2]}  # the stage of each layer


@pytest.fixture(scope="module")
def ran():
    """What four processes did, rank by rank."""
    return launch(everything, stages=4)


def cause(step: int, K: int, kind: str, n: int, replica: str = "") -> str:
    """What every rank should say, without the advice."""
    last = f"{replica}stage {K - 1}"
    what = {
        "inputs": f"the inputs of micro-batch {BAD} on {replica}stage 0 are inf or nan",
        "targets": f"the targets of micro-batch {BAD} on {last} are inf or nan",
        "loss": f"outputs or loss of micro-batch {BAD} on {last} are inf or nan",
        "forward": f"outputs or loss of micro-batch {BAD} on {last} are inf or nan",
    }.get(kind, f"the gradients on {replica}stage {LAYERS_OF[K][n]} are inf or nan")
    return f"NonFiniteError: step {step}: {what}"


@pytest.mark.parametrize(("K", "schedule", "checkpoint", "orders"), CASES)
def test_every_rank_names_the_cause(ran, K, schedule, checkpoint, orders):
    for rank in range(K):
        for step, (kind, n) in enumerate(orders):
            said = ran[rank][K, schedule, checkpoint]["said"][step]
            assert said.startswith(cause(step, K, kind, n))
            assert said.endswith("; allow_nonfinite=True trains on")


@pytest.mark.parametrize("case", [*(case[:3] for case in CASES), "replicas"], ids=str)
@pytest.mark.parametrize("what", ["unchanged", "like good"])
def test_a_refused_step_leaves_no_trace(ran, case, what):
    """Weights, optimizer state, statistics, buffers, number of steps, and what follows: to the bit.

    Random state belongs to the step's number, so the next mini-batch draws what the refused one
    would have drawn.
    """
    found = [each[case][what] for each in ran if case in each]
    assert found
    assert all(all(each) for each in found), found


def test_replicas_refuse_what_one_of_them_makes(ran):
    K, _, _, orders = REPLICAS
    for step, (kind, n) in enumerate(orders):
        # Gradients are summed before they are looked at.
        expected = cause(step, K, kind, n, f"replica {int(kind in ('forward', 'loss'))}, ")
        assert all(each["replicas"]["said"][step].startswith(expected) for each in ran)


def test_an_evaluation_is_not_checked():
    assert pipeline(1).evaluate(*batch("loss"), loss_fn).loss == float("inf")
