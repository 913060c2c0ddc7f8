"""Colours: one meaning each, told apart by readers who see two primary colours only."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from repro.report.style import FIDELITIES, IDLE, INK, KINDS, is_dark, series_colour

ROOT = Path(__file__).parents[2]
# How each kind of colour blindness sees linear red, green and blue: Machado, Oliveira and Fernandes
# 2009, doi:10.1109/TVCG.2009.113, severity 1.
SIGHT = {
    "all colours": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
CLOSEST = 12  # CIE 1976 distance; about 2 is just seen side by side
XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)  # of linear red, green and blue


def lab(colour: str, sight: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour, seen so."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(sight @ linear, 0, 1)
    x, y, z = np.cbrt(XYZ @ seen / np.array([0.9505, 1, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_work_idle_time_and_fidelities_are_told_apart(sight):
    colours = {**KINDS, "idle": IDLE, **FIDELITIES}
    distances = {
        pair: np.linalg.norm(
            lab(colours[pair[0]], SIGHT[sight]) - lab(colours[pair[1]], SIGHT[sight])
        )
        for pair in combinations(colours, 2)
    }
    close = {pair: distance for pair, distance in distances.items() if distance < CLOSEST}
    assert not close


def test_a_series_of_k_or_m_becomes_lighter():
    lightness = [lab(series_colour(2**power), SIGHT["all colours"])[0] for power in range(6)]
    steps = np.diff(lightness)
    assert min(steps) > 8


def test_words_on_a_colour_are_readable():
    def luminance(colour: str) -> float:
        return float((XYZ @ np.array([(part) ** 2.2 for part in to_rgb(colour)]))[1])

    for colour in [*KINDS.values(), IDLE]:
        dark, light = sorted([luminance(colour), luminance(INK[is_dark(colour)])])
        assert (light + 0.05) / (dark + 0.05) > 3, colour


def test_colours_stand_in_the_style_alone():
    files = [*(ROOT / "repro/report").glob("*.py"), *(ROOT / "experiments").glob("*/*.py")]
    assert len(files) > 60
    for path in files:
        if path.name != "style.py":
            text = path.read_text(encoding="utf-8")
            assert not re.findall(r"[\"']#(?!000000|ffffff)[0-9A-Fa-f]{3,8}[\"']", text), path
            named = re.findall(r"color=[\"'](\w+)", text)
            assert set(named) <= {"none", "white"}, path
