"""Throttled links between stage processes: the bits of free ones, and the expected step times."""

import pytest
import torch
from throttled import (
    BUSY,
    FAR,
    LATENCY,
    MEASURED,
    NARROW,
    SECONDS,
    STEPS,
    everything,
    killed,
    long_wait,
)
from throttled import B as B_S
from throttled import F as F_S

from repro.gpipe import LinkSpeed, launch
from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.links import Links
from repro.gpipe.runtime.launch import StageError

pytestmark = pytest.mark.skipif(not shm.available(), reason="stages share a clock on Linux")
K = 3
R_S = F_S


@pytest.fixture(scope="module")
def ran():
    """Everything that three stage processes did, rank by rank."""
    return launch(everything, stages=K)


def free_step(K, M):
    """Early recompute, nothing for messages."""
    return (M + K - 1) * F_S + M * (R_S + B_S) + (K - 1) * B_S


# With M = 4 on a narrow link: F, four messages, F; then R, B and, longer than both, four messages
# again; and a B.
EXPECTED = {
    (2, 1, FAR): free_step(2, 1) + 2 * LATENCY,
    (3, 1, FAR): free_step(3, 1) + 4 * LATENCY,
    (2, 4, FAR): free_step(2, 4) + 2 * LATENCY,
    (2, 4, NARROW): F_S + 4 * SECONDS + F_S + (R_S + B_S) + 4 * SECONDS + B_S,
    (2, 4, BUSY): 4 * (F_S + SECONDS) + F_S + 4 * (R_S + B_S + SECONDS) + B_S,
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_take_what_arithmetic_says(ran, case):
    """Never less. The margin is for busy machines."""
    seconds, parts = ran[0]["steps"][case]
    assert EXPECTED[case] <= seconds < 1.25 * EXPECTED[case]
    stages, M, _ = case
    transfer = 1 - free_step(stages, M) / EXPECTED[case]
    assert parts["transfer"] == pytest.approx(transfer, abs=0.1)
    work = stages * M * (F_S + R_S + B_S) / (stages * EXPECTED[case])
    assert parts["computation"] + parts["recompute"] == pytest.approx(work, abs=0.1)


def test_a_throttled_link_is_measured_as_it_is(ran):
    found = ran[0]["speed"]
    assert found.latency == pytest.approx(MEASURED.latency, rel=0.5)
    assert found.bytes_per_second == pytest.approx(MEASURED.bytes_per_second, rel=0.3)
    assert found.bytes_per_second < 1.02 * MEASURED.bytes_per_second
    assert not found.overlap


def test_a_cut_by_time_avoids_what_a_slow_link_makes_dear(ran):
    assert [rank["cuts"] for rank in ran[:2]] == [[(2, 2), (3, 1)]] * 2


def test_refusals_are_one_line_on_every_stage(ran):
    assert ran[0]["refused"] == ran[1]["refused"]
    no_speed, apart, unlike = ran[0]["refused"]
    assert no_speed == "throttle=0.02: must be a LinkSpeed or None; try LinkSpeed(latency=1e-3)"
    assert apart == (
        f"throttle={FAR}: is for stages that share a Linux host and so a clock, and stages 0 and 1 "
        "do not; leave it out"
    )
    assert unlike == f"throttle={NARROW} on rank 1, but {FAR} on rank 0; give every rank the same"


def test_only_stages_on_the_cpu_can_be_throttled():
    said = (
        r"^throttle=LinkSpeed\(.*\): is for stages on the CPU, stage 0 is on meta; "
        r"try device='cpu', or leave it out$"
    )
    with pytest.raises(ValueError, match=said):
        Links(Wire(1, 0), torch.device("meta"), "auto", LinkSpeed())


def test_a_killed_stage_ends_all():
    with pytest.raises(StageError, match="stage 1"):
        launch(killed, stages=2)


@pytest.mark.slow
def test_a_message_under_way_is_no_silence(monkeypatch):
    """The first stage waits for the loss of the last one, which waits for no one: it sleeps."""
    monkeypatch.setenv("GPIPE_SILENCE_S", "2")
    losses = launch(long_wait, stages=2)
    assert losses[0] == losses[1]
