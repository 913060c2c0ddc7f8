"""Verdicts beside other libraries, and what each point of the plan has beside it."""

from math import nan
from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.peers import report as peers
from experiments.peers.runs import experiment

AGAIN, NOISY, SLOWER = (0.99, 1.02), (0.8, 1.5), (0.7, 0.73)


@pytest.mark.parametrize(
    ("ratio", "noise", "rounds", "verdict"),
    [
        ((1.2, 1.3), AGAIN, 5, "faster"),
        ((0.75, 0.85), AGAIN, 5, "slower"),
        ((1.2, 1.3), NOISY, 5, "above 1, reaches noise of 50.0%"),
        # Whichever of both runs is divided.
        ((1.2, 1.3), SLOWER, 5, "above 1, reaches noise of 42.9%"),
        ((0.75, 0.85), NOISY, 5, "below 1, reaches noise of 50.0%"),
        ((0.97, 0.99), AGAIN, 5, "below 1, reaches noise of 2.0%"),
        ((0.98, 1.01), AGAIN, 5, "within noise of 2.0%"),
        ((1.2, 1.3), (nan, nan), 5, "no A/A interval"),
        ((nan, nan), AGAIN, 4, "too few rounds"),
        ((nan, nan), AGAIN, 0, ""),
    ],
)
def test_faster_needs_an_interval_that_is_clear_of_the_noise(ratio, noise, rounds, verdict):
    names = ("low", "high", "noise_low", "noise_high")
    line = dict(zip(names, (*ratio, *noise), strict=True))
    assert peers.verdict(line | {"rounds": rounds}) == verdict


def test_a_point_has_the_a_a_of_its_own_m_or_says_of_which():
    columns = ["where", "group", "schedule", "M", "step", "low", "high"]
    lines = [("here", "mlp", "1f1b", M, 1.0, 0.98, 1.01 + M / 100) for M in (4, 32)]
    again = pd.DataFrame(lines, columns=columns)
    for group, M, high, of_M in (("mlp", 4, 1.05, 4), ("mlp", 8, 1.33, 32), ("cnn", 4, nan, nan)):
        point = SimpleNamespace(where="here", group=group, schedule="1f1b", M=M)
        assert peers.noise_of(point, again)[2:] == pytest.approx([high, of_M], nan_ok=True)


def test_the_answer_counts_what_lies_below_1_and_the_points_of_peers_alone():
    lines = [
        ("torch", 4, 4, 1.2, 1.3, "faster", 3),
        ("torch", 1, 4, 0.93, 0.97, "below 1, reaches noise of 3.5%", 3),
        ("deepspeed", 8, nan, nan, nan, "", 0),
        (peers.OVER_GLOO, 4, 4, 0.98, 1.03, "within noise of 3.5%", 3),
    ]
    columns = ["library", "M", "noise_M", "ratio", "high", "verdict", "rounds"]
    table = SimpleNamespace(data=pd.DataFrame(lines, columns=columns, dtype=object))
    answer = peers.answer({"peers_speed": table})  # pyright: ignore[reportArgumentType]
    assert answer.startswith("Of 2 points measured beside other libraries, ours is faster at 1 ")
    assert "below 1 at 1 points, at 1 of them with the whole interval. The A/A of ano" in answer
    assert answer.endswith("ours takes 0.98 to 0.98 times as long.")


def test_each_m_has_an_a_a_and_each_point_has_ours_over_gloo_beside_it():
    for group in experiment("laptop").groups[1:]:
        points = {"auto": [], "gloo": [], "again": []}
        for run in (run for run in group.runs if run.library == "repro"):
            points[run.control or run.transport].append((run.schedule, run.M, run.checkpoint))
        assert points["auto"] == points["gloo"]
        assert {at[:2] for at in points["again"]} == {at[:2] for at in points["auto"]}
