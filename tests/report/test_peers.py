"""Ours and other libraries: whether both are right, what is compared, and when one is faster."""

from math import nan

import pytest

from experiments.peers import report as peers
from repro.harness.frame import controls_frame, runs_frame

PEERS = ("torch", "torch-1f1b", "torch-interleaved", "deepspeed")
AGAIN, NOISY, SLOWER = (0.99, 1.02), (0.8, 1.5), (0.7, 0.73)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        ((1.2, 1.3), AGAIN, "faster"),
        ((0.75, 0.85), AGAIN, "slower"),
        ((1.2, 1.3), NOISY, "within noise"),
        # Whichever of both runs is divided.
        ((1.2, 1.3), SLOWER, "within noise"),
        ((0.75, 0.85), NOISY, "within noise"),
        ((0.97, 0.99), AGAIN, "within noise"),
        ((1.2, 1.3), (nan, nan), "no A/A at this M"),
        ((nan, nan), AGAIN, "too few blocks"),
    ],
)
def test_faster_needs_an_interval_that_is_clear_of_the_noise(ratio, noise, verdict):
    assert peers.verdict((1.0, *ratio), (1.0, *noise)) == verdict
    assert peers.verdict((nan, *ratio), (1.0, *noise)) == "", "not run"


def test_what_each_library_does_as_one_device_would_is_as_recorded(whole_reference):
    """Ours all, K stages on a GPU too. Others update batch norm once for each recompute."""
    frame = runs_frame(whole_reference, "peers", task="check", done=True)
    found = {}
    for run in frame.itertuples():
        for name, check in run.record.checks.items():
            found.setdefault((run.library, name), set()).add(check.verdict)
    ours = {name: verdicts for (library, name), verdicts in found.items() if library == "repro"}
    assert len(ours) == 5
    assert set().union(*ours.values()) == {"ok", "none"}  # a Transformer has no batch norm
    assert {library for library, _ in found} == {"repro", "torchgpipe", *PEERS}
    not_ok = {at for at, verdicts in found.items() if not verdicts <= {"ok", "none"}}
    wrong = {(library, "batch norm") for library in (*PEERS, "torchgpipe")}
    assert not_ok == wrong | {(library, "unequal micro-batches") for library in PEERS}
    assert all(found[at] == {"wrong"} for at in wrong)
    assert {*frame.loc[frame["scale"] == "gpu", "K"]} == {1, 2, 4, 8}


@pytest.mark.parametrize("name", ["peers", "methods", "two_gpu_demo"])
def test_a_run_again_is_as_fast_and_a_slowed_one_is_seen(reference, name):
    """Without this no ratio of these experiments would say anything."""
    controls = controls_frame(reference, name)
    again, slowed = (controls[controls["control"] == kind] for kind in ("again", "slowed"))
    assert again["step"].between(0.95, 1.05).all()
    assert ((again["low"] <= 1) & (again["high"] >= 1)).mean() >= 0.9
    assert slowed["step"].median() > 1.02, "slowed by 3 %"
    assert slowed["step"].min() > 1
