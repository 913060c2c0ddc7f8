"""What works with ranks that hold several stages; test_compare.py has the bits."""

import pytest
import torch
from interleaved import (
    BAD,
    MSE,
    ORDER,
    M,
    batch,
    everything,
    fail,
    layers,
    momentum,
    pipeline,
    snapshot,
    steps,
)
from torch import nn

from repro.gpipe import Pipeline, breakdown, launch, make_schedule, whole_state_dict
from repro.gpipe.runtime.launch import StageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def ran(folder):
    """What two processes did, rank by rank."""
    return launch(everything, folder, stages=2)


def merged(parts):
    """One dictionary of all ranks."""
    return {name: value for part in parts for name, value in part.items()}


def different(a, b):
    """Names of tensors that differ in any bit."""
    assert a.keys() == b.keys()
    return [name for name, value in a.items() if not torch.equal(value, b[name])]


def test_clipping_and_loss_scaling_have_the_same_bits(ran):
    alone = ran[0]["alone"]
    assert ran[0]["clipped"] == ran[1]["clipped"] == alone["clipped"][0] == alone["clipped"][1]
    assert not different(merged(ran[rank]["scaled"] for rank in range(2)), alone["scaled"])


def test_layers_that_are_frozen_between_steps(ran):
    reference, alone = ran[0]["alone"]["thawed"]
    assert not different(alone, reference)
    assert not different(merged(ran[rank]["thawed"] for rank in range(2)), reference)


def test_a_checkpoint_fits_any_k_and_any_number_of_stages(ran, folder):
    losses, state = ran[0]["alone"]["losses"][2:], ran[0]["alone"]["state"]
    assert ran[0]["resumed"][0] == losses
    assert not different(merged(ran[rank]["resumed"][1] for rank in range(2)), state)
    for losses_alone, state_alone in ran[0]["alone"]["resumed"]:
        assert losses_alone == losses
        assert not different(state_alone, state)
    assert [*whole_state_dict(folder / "two")] == [*state], "in layer order"


def test_the_timeline_has_the_actions_of_each_rank(ran):
    timeline = ran[0]["traced"].timeline
    assert (timeline.stages, timeline.stages_per_rank, timeline.ranks) == (4, 2, 2)
    schedule = make_schedule(ORDER, 4, M, "always", 2)
    for rank in range(2):
        spans = [s for s in timeline.on(rank) if s.kind in "FRB"]
        actions = [(a.kind, a.stage, a.micro_batch) for a in schedule.work(rank)]
        assert [(s.kind, s.stage, s.micro_batch) for s in spans] == actions
    assert sum(breakdown(timeline, schedule).values()) == pytest.approx(1.0)
    rows = timeline.to_rows()
    assert type(timeline).from_rows(rows, 4, 2) == timeline


def test_memory_is_measured_for_each_rank(ran):
    """A rank holds the weights, gradients and momentum of all its stages at once."""
    for rank in range(2):
        peaks, parameters = ran[rank]["memory"]
        assert len(peaks) == 2
        assert peaks == ran[0]["memory"][0]
        assert peaks[rank] > 3 * parameters


def test_a_step_with_inf_or_nan_changes_nothing_and_its_cause_is_named(ran):
    for rank in range(2):
        refused = ran[rank]["refused"]
        assert all(refused["unchanged"])
        assert all(refused["like good"])
        assert refused["said"] == ran[0]["refused"]["said"]
    named = (
        "outputs or loss of micro-batch 1 on rank 1 are inf or nan",
        "the gradients on rank 1 are inf or nan, and the loss is finite",
        "outputs or loss of micro-batch 1 on rank 1 are inf or nan",
        "the inputs of micro-batch 1 on rank 0 are inf or nan",
        "the gradients on rank 1 are inf or nan, and the loss is finite",
    )
    assert len(named) == len(BAD)
    for text, said in zip(named, ran[0]["refused"]["said"], strict=True):
        assert text in said


def test_a_rank_that_fails_ends_all():
    with pytest.raises(StageError, match=r"rank 0, F\d of step 1: RuntimeError: layer is broken"):
        launch(fail, stages=2)


class Half(nn.Module):
    """Works in place on the inputs of its stage."""

    def forward(self, x):
        return x.mul_(0.5)


def test_a_stage_may_write_to_what_the_stage_before_on_its_rank_has_made():
    states = []
    for held in (1, 3):
        torch.manual_seed(1)
        made = [nn.Linear(6, 6), Half(), nn.Linear(6, 6)]
        schedule = ORDER if held > 1 else "1f1b"
        pipe = Pipeline(made, 1, M, schedule=schedule, stages_per_rank=held, device="cpu")
        steps(pipe, momentum(pipe), 0, 2)
        states.append(snapshot(pipe))
    assert not different(*states)


def test_a_layer_of_any_stage_may_be_replaced():
    states = []
    for held in (1, 3):
        pipe = pipeline(1, held)
        steps(pipe, momentum(pipe), 0, 1)
        torch.manual_seed(3)
        pipe.module[4] = nn.Linear(6, 6)
        steps(pipe, momentum(pipe), 1, 3)
        states.append(snapshot(pipe))
    assert not different(*states)
    pipe.module.append(nn.Identity())
    with pytest.raises(ValueError, match="its layers are 0, 1, 2, 3, 4, 5, 6, and the Pipeline"):
        pipe.train_step(*batch(), MSE)


def test_the_cut_has_stages_for_all_ranks():
    pipe = Pipeline(layers(), 1, M, schedule=ORDER, stages_per_rank=2, balance=[1, 5], device="cpu")
    assert pipe.balance == (1, 5)
    assert "layers 0 to 0 and 1 to 5: 0 Linear" in repr(pipe)
    assert (pipe.stages, pipe.stages_per_rank) == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages_per_rank": 2}, "stages_per_rank=2: must be 1 for schedule='gpipe'"),
        ({"schedule": ORDER}, f"stages_per_rank=1: must be at least 2 for schedule='{ORDER}'"),
        ({"schedule": ORDER, "stages_per_rank": 0}, "stages_per_rank=0: must be a whole number"),
        ({"schedule": ORDER, "stages_per_rank": "2"}, "stages_per_rank='2': must be a whole"),
        (
            {"schedule": ORDER, "stages_per_rank": 7},
            "stages=1, stages_per_rank=7: the model has 6 layers, and each of the 7 stages needs "
            "at least one; choose fewer of either",
        ),
        (
            {"schedule": ORDER, "stages_per_rank": 2, "balance": [6]},
            "balance=[6]: needs 2 positive numbers",
        ),
        (
            {"stages": 2, "schedule": ORDER, "stages_per_rank": 2},
            "stages=2: only 1 process(es) here and 2 are needed",
        ),
    ],
)
def test_one_line_for_a_wrong_argument(options, message):
    arguments = {"stages": 1, "micro_batches": M, "device": "cpu"} | options
    with pytest.raises(ValueError, match=r"must be|choose|need") as caught:
        Pipeline(layers(), **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
