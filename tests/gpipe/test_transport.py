"""Messages between stage processes: every transport gives the same bits, and none deadlocks."""

import multiprocessing

import pytest
import torch
from torch.multiprocessing import ProcessExitedException
from transports import ORDERS, TRANSPORTS, K, everything, killed, odd_tensors, oddities

from repro.gpipe import Pipeline, launch
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.links import Links
from repro.gpipe.runtime.launch import StageError


@pytest.fixture(scope="module")
def ran():
    """Everything that three stage processes did, rank by rank."""
    return launch(everything, stages=K)


@pytest.mark.parametrize("schedule", [order[0] for order in ORDERS])
def test_both_ends_post_in_the_same_order(ran, schedule):
    ends = {
        (rank, *key): posted
        for rank in range(K)
        for key, posted in ran[rank]["posted"][schedule].items()
    }
    assert len(ends) == 2 * 2 * (K - 1), "two ends, two directions, K - 1 boundaries"
    other = {"send": "receive", "receive": "send"}
    for (rank, peer, number), posted in ends.items():
        assert ends[peer, rank, number] == [(other[kind], size) for kind, size in posted]
        assert len({kind for kind, _ in posted}) == 1, "one direction"


def test_one_communicator_for_both_directions_deadlocks(ran):
    """The stand-in for NCCL can deadlock: both ends wait at receives posted ahead of sends."""
    for rank in range(2):
        assert ran[rank]["deadlock"]["heads"] == ["receive"], ran[rank]["deadlock"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_odd_tensors_arrive_as_they_were(ran, transport):
    alone = odd_tensors("auto", 1)
    seen = ran[1]["odd"][transport]["seen"]
    assert len(seen) == len(alone["seen"]) == 9, (
        "F and R of two micro-batches in two steps, and one trial without a graph"
    )
    for n, (ours, theirs) in enumerate(zip(seen, alone["seen"], strict=True)):
        assert ours.keys() == theirs.keys() == oddities(torch.zeros(1, 6)).keys()
        for name, (stride, bits) in theirs.items():
            assert torch.equal(ours[name][1], bits), name
            assert n < 5 or ours[name][0] == stride, name  # the first step gives the layers copies


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_gradients_of_odd_tensors_return_whole(ran, transport):
    """A number that is read in many places has a gradient in each of them, all different."""
    for name, gradient in odd_tensors("auto", 1)["gradients"].items():
        torch.testing.assert_close(
            ran[0]["odd"][transport]["gradients"][name], gradient, rtol=1e-6, atol=1e-6
        )


def test_stages_on_two_hosts(ran):
    assert [r["apart"]["auto"] for r in ran[:2]] == ["gloo", "gloo"]
    for rank in range(2):
        assert (
            f"transport='shm': stages {rank} and {1 - rank} share no Linux host; try"
            in ran[rank]["apart"]["shm"]
        )


def test_a_killed_stage_ends_all():
    with pytest.raises((StageError, ProcessExitedException)):
        launch(killed, stages=2)
    assert not multiprocessing.active_children()


def test_a_transport_that_does_not_exist():
    with pytest.raises(
        ValueError, match="transport='smh': choose one of auto, shm, gloo; did you mean 'shm'"
    ):
        Pipeline([torch.nn.Linear(1, 1)], 1, 1, transport="smh", device="cpu")


@pytest.mark.parametrize(
    ("transport", "served"), [("shm", "the CPU"), ("gloo", "the CPU or a GPU")]
)
def test_transports_are_not_for_devices_that_they_do_not_serve(transport, served):
    with pytest.raises(
        ValueError, match=f"transport='{transport}': is for stages on {served}, this one is on meta"
    ):
        Links(Wire(1, 0), torch.device("meta"), transport)
