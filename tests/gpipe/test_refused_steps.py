"""A step with inf or nan is refused on every rank; its cause is named; nothing changes."""

import pytest
from explosions import BAD, CASES, REPLICAS, batch, everything, loss_fn, pipeline
from torch import nn

from repro.gpipe import launch

LAYERS_OF = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 3: [0, 0, 1, 2]}  # the stage of each layer
TRAINS_ON = "allow_nonfinite=True trains on"
MSE = nn.functional.mse_loss


@pytest.fixture(scope="module")
def ran():
    """What four processes did, rank by rank."""
    return launch(everything, stages=4)


def line(step: int, K: int, kind: str, n: int, replica: str = "") -> str:
    """What every rank should say."""
    stage = f"{replica}stage {LAYERS_OF[K][n]}"
    last = f"{replica}stage {K - 1}"
    advice = "lower the learning rate, or mend or leave out such examples"
    gradients = (
        f"the gradients on {stage} are inf or nan, and the loss is finite; lower the learning rate "
        "or what scales the loss, or drop the gradients of earlier steps"
    )
    what = {
        "inputs": f"the inputs of micro-batch {BAD} on {replica}stage 0 are inf or nan; {advice}",
        "targets": f"the targets of micro-batch {BAD} on {last} are inf or nan; {advice}",
        "loss": f"outputs or loss of micro-batch {BAD} on {last} are inf or nan; {advice}",
        "forward": f"outputs or loss of micro-batch {BAD} on {last} are inf or nan; {advice}",
    }.get(kind, gradients)
    return f"NonFiniteError: step {step}: {what}; {TRAINS_ON}"


@pytest.mark.parametrize(("K", "schedule", "checkpoint", "orders"), CASES)
def test_every_rank_names_the_cause(ran, K, schedule, checkpoint, orders):
    for rank in range(K):
        said = ran[rank][K, schedule, checkpoint]["said"]
        assert said == [line(step, K, kind, n) for step, (kind, n) in enumerate(orders)]


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
    expected = [
        # Gradients are summed before they are looked at.
        line(step, K, kind, n, f"replica {int(kind in ('forward', 'loss'))}, ")
        for step, (kind, n) in enumerate(orders)
    ]
    assert [each["replicas"]["said"] for each in ran] == [expected] * 4


def test_an_evaluation_is_not_checked():
    assert pipeline(1).evaluate(*batch("loss"), loss_fn).loss == float("inf")
