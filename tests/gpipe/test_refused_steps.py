"""A step with inf or nan is refused on every rank; its cause is named; nothing changes."""

import pytest
import torch
from explosions import BAD, CASES, REPLICAS, batch, everything, loss_fn, pipeline, refusal
from torch import nn

from repro.gpipe import Pipeline, launch

LAYERS_OF = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 3: [0, 0, 1, 2]}  # the stage of each layer
TRAINS_ON = "allow_nonfinite=True trains on"
MSE = nn.functional.mse_loss


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What four processes did, rank by rank, and where they saved."""
    folder = tmp_path_factory.mktemp("saved")
    return [*launch(everything, folder, stages=4), folder]


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
    found = [each[case][what] for each in ran[:-1] if case in each]
    assert found
    assert all(all(each) for each in found), found


def test_replicas_refuse_what_one_of_them_makes(ran):
    K, _, _, orders = REPLICAS
    expected = [
        # Gradients are summed before they are looked at.
        line(step, K, kind, n, f"replica {int(kind in ('forward', 'loss'))}, ")
        for step, (kind, n) in enumerate(orders)
    ]
    assert [each["replicas"]["said"] for each in ran[:-1]] == [expected] * 4


@pytest.mark.parametrize(
    ("who", "count", "where"), [("saved", 2, ""), ("saved by replicas", 4, "replica 0, ")]
)
def test_the_last_good_checkpoint_stays(ran, who, count, where):
    """Told on every rank, also on replicas that write nothing; it loads."""
    said = ran[0][who]["said"]
    assert [each[who] for each in ran[:count]] == [ran[0][who]] * count
    assert ran[0][who]["as saved"]
    names = ("3.shift", None, "3.norm.running_var", "momentum_buffer of 3.shift in the optimizer")
    for text, name in zip(said, names, strict=True):
        if name is None:
            already = f"3.shift on {where}stage 1 was inf or nan before it; load a checkpoint"
            assert text == f"NonFiniteError: step 1: {already}; {TRAINS_ON}"
        else:
            assert text.startswith("ValueError: checkpoint ")
            assert text.endswith(
                f"{name} is inf or nan, so the checkpoint would be no good; allow_nonfinite=True "
                "saves it"
            )


class First(nn.Module):
    """The first of a pair."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0]


class Masked(nn.Module):
    """A score that a mask of -inf is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, mask = pair
        return self.linear(x) + 0.0 * (x + mask).softmax(-1), mask


def test_a_mask_is_not_named():
    """It crosses layers, and is no reason to refuse a step or to accuse the inputs."""
    mask = torch.zeros(4, 3)
    mask[:, 2] = float("-inf")
    pipe = Pipeline(nn.Sequential(Masked(), Masked(), First(), nn.Linear(3, 3)), 1, 2, device="cpu")
    x = torch.ones(4, 3)
    assert refusal(lambda: pipe.train_step((x, mask), x, MSE)) == "accepted"
    x[3] = 3e38
    nn.init.constant_(pipe.module.get_parameter("0.linear.weight"), 2.0)
    assert "outputs or loss of micro-batch 1 on stage 0 are inf or nan" in refusal(
        lambda: pipe.train_step((x, mask), x, MSE)
    )


def test_an_evaluation_is_not_checked():
    assert pipeline(1).evaluate(*batch("loss"), loss_fn).loss == float("inf")
