"""The pipeline player in a browser: its controls and the numbers that it shows."""

from typing import Any

import pytest
from played import peak_kept, schedule_of, simulation_of
from test_browser import opened

from repro.report.player import player

pytestmark = pytest.mark.slow

CASES = [  # schedule, K, M, checkpoint, stages of a rank
    ("naive", 4, 8, "always", 1),
    ("gpipe", 16, 64, "always", 1),
    ("1f1b", 4, 8, "except_last", 1),
    ("interleaved-1f1b", 3, 7, "never", 4),
    ("zb-h1", 4, 8, "never", 1),  # which recomputes nothing
]


def part(page: Any, name: str) -> Any:
    return page.locator(f'[data-player="{name}"]')


def choose(page: Any, **values: Any) -> None:
    """Set sliders, selects and radio buttons as a reader does."""
    for name, value in values.items():
        radio = page.locator(f'input[name="player-{name}"][value="{value}"]')
        if radio.count():
            radio.check(force=True)
        elif part(page, name).evaluate("element => element.tagName") == "SELECT":
            part(page, name).select_option(str(value))
        else:
            part(page, name).fill(str(value))


def text(page: Any, name: str) -> str:
    return part(page, name).inner_text().replace("\N{NO-BREAK SPACE}", " ").strip()


def assert_shows(page: Any, case: dict[str, Any]) -> None:
    """The numbers on the page are those of the simulation."""
    timeline, ranks = simulation_of(case), schedule_of(case).ranks
    K, M = case["K"], case["M"]
    assert text(page, "step") == f"{round(timeline.step_time, 2):g} units simulated"
    assert text(page, "bubble") == f"{timeline.idle_over_total:.1%} simulated".replace("%", " %")
    theory = f"= {K - 1}/{M + K - 1} = {(K - 1) / (M + K - 1):.1%}"
    assert text(page, "formula") == theory.replace("%", " %")
    peaks = [peak_kept(actions) for actions in ranks]
    assert text(page, "peaks") == " ".join(map(str, peaks))


def test_moving_the_controls_shows_the_numbers_of_the_simulation(browser, results, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f'<!doctype html><meta charset="utf-8">{player(results)}', encoding="utf-8")
    page, problems = opened(browser, path, 1280)
    begins = {"K": 4, "M": 4, "schedule": "gpipe", "checkpoint": "always", "v": 1}
    assert_shows(page, begins | {"F": 1, "R": 1, "B": 2})
    durations = {"F": 1.5, "R": 2.0, "B": 2.5}
    choose(page, **durations)
    for schedule, K, M, checkpoint, v in CASES:
        choose(page, K=K, M=M, schedule=schedule)
        if v > 1:
            choose(page, v=v)
        if schedule != "zb-h1":
            choose(page, checkpoint=checkpoint)
        case = {"schedule": schedule, "K": K, "M": M, "checkpoint": checkpoint, "v": v}
        assert_shows(page, case | durations)
    assert "this schedule recomputes nothing" in text(page, "grey")
    choose(page, measured=0)
    assert part(page, "K").is_disabled()
    assert "settings of the measured step" in text(page, "grey")
    part(page, "stages-box").focus()
    page.keyboard.press(" ")
    assert text(page, "play") == "Pause", "a key plays it"
    page.context.close()
    assert not problems
