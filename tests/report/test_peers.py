"""Verdicts beside other libraries, and that each peer has ours beside it."""

from math import nan

import pytest

from experiments.peers import report as peers
from repro.harness import catalog
from repro.harness.vary import baseline, by_comparison

AGAIN, NOISY, SLOWER = (0.99, 1.02), (0.8, 1.5), (0.7, 0.73)


@pytest.mark.parametrize(
    ("ratio", "noise", "rounds", "verdict"),
    [
        ((1.2, 1.3), AGAIN, 5, "faster"),
        ((0.75, 0.85), AGAIN, 5, "slower"),
        ((1.2, 1.3), NOISY, 5, "not distinguishable"),
        ((1.2, 1.3), SLOWER, 5, "not distinguishable"),  # whichever of both runs is divided
        ((0.75, 0.85), NOISY, 5, "not distinguishable"),
        ((0.98, 1.01), AGAIN, 5, "not distinguishable"),
        ((1.2, 1.3), (nan, nan), 5, "no A/A interval"),
        ((nan, nan), AGAIN, 4, "too few rounds"),
        ((nan, nan), AGAIN, 0, ""),
    ],
)
def test_faster_needs_an_interval_that_is_clear_of_the_noise(ratio, noise, rounds, verdict):
    names = ("low", "high", "noise_low", "noise_high")
    line = dict(zip(names, (*ratio, *noise), strict=True))
    assert peers.verdict(line | {"rounds": rounds}) == verdict


@pytest.mark.parametrize("scale", ["smoke", "laptop", "node", "paper"])
def test_each_schedule_of_a_peer_has_ours_beside_it(scale):
    groups = catalog.find("peers").build(scale).groups
    timed = [run for group in groups for run in group.runs if run.task == "train"]
    libraries = {"repro", "torch", "torch-1f1b", "torch-interleaved", "deepspeed"}
    assert {run.library for run in timed} == libraries
    assert {(run.library, run.checkpoint) for run in timed if run.fidelity == "measured"} == {
        (library, checkpoint) for library in libraries for checkpoint in ("always", "never")
    }
    ours = by_comparison({str(n): run for n, run in enumerate(timed) if run.library == "repro"})
    for peer in timed:
        assert baseline(peer, ours, library="repro") is not None
