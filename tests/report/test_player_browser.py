"""The pipeline player in a browser: its controls, its keys, and the numbers that it shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from played import peak_kept, schedule_of, simulation_of
from test_browser import opened

from repro.harness.results import Results
from repro.report.player import player

pytestmark = pytest.mark.slow

STYLE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>player</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root { --ink: #1c2430; --soft: #5b6675; --line: #dde2e8; --paper: #fff; --band: #f5f7f9; }
:root { --accent: #0b6bb0; } body { margin: 1rem; font-family: sans-serif }</style>"""
MOVING = "0 < parseFloat(text) && parseFloat(text) < 25"  # of the clock: neither start nor end


@pytest.fixture(scope="module")
def path(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("player") / "page.html"
    path.write_text(STYLE + str(player(results)), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, path: Path) -> Iterator[Any]:
    tab, problems = opened(browser, path, 1280)
    yield tab
    tab.context.close()
    assert not problems


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


def clock(page: Any) -> float:
    return float(text(page, "clock").split(" of ")[0])


def wait_until(page: Any, name: str, condition: str) -> None:
    """Wait until a part's text, `text`, is as told; nothing else says when a frame was drawn."""
    script = "([name, condition]) => Function('text', `return ${condition}`)("
    script += "document.querySelector(`[data-player=${name}]`).textContent)"
    page.wait_for_function(script, arg=[name, condition])


def assert_shows(page: Any, case: dict[str, Any]) -> None:
    """The numbers on the page are those of the simulation."""
    timeline, ranks = simulation_of(case), schedule_of(case).ranks
    K, M = case["K"], case["M"]
    assert text(page, "step") == f"{round(timeline.step_time, 2):g} units simulated"
    assert text(page, "bubble") == f"{timeline.idle_over_total:.1%} simulated".replace("%", " %")
    theory = f"= {K - 1}/{M + K - 1} = {(K - 1) / (M + K - 1):.1%}"
    assert text(page, "formula") == theory.replace("%", " %")
    peaks = [peak_kept(actions) for actions in ranks]
    assert text(page, "peak") == str(max(peaks))
    assert text(page, "peaks") == " ".join(map(str, peaks))


def test_moving_the_controls_shows_the_numbers_of_the_simulation(page):
    opened = {"K": 4, "M": 4, "schedule": "gpipe", "checkpoint": "always", "v": 1}
    assert_shows(page, opened | {"F": 1, "R": 1, "B": 2})
    durations = {"F": 1.5, "R": 2.0, "B": 2.5}
    choose(page, **durations)
    for schedule, K, M, checkpoint, v in (
        ("naive", 4, 8, "always", 1),
        ("gpipe", 16, 64, "always", 1),
        ("1f1b", 4, 8, "except_last", 1),
        ("interleaved-1f1b", 3, 7, "never", 4),
        ("zb-h1", 4, 8, "never", 1),
    ):
        case = {"schedule": schedule, "K": K, "M": M, "checkpoint": checkpoint, "v": v}
        choose(page, K=K, M=M, schedule=schedule)
        if v > 1:
            choose(page, v=v)
        if schedule != "zb-h1":
            choose(page, checkpoint=checkpoint)
        assert_shows(page, case | durations)
    # Split backwards recompute nothing.
    never = page.locator('input[name="player-checkpoint"][value="never"]')
    assert never.is_checked()
    assert never.is_disabled()
    assert "this schedule recomputes nothing" in text(page, "grey")
    choose(page, schedule="gpipe")
    assert never.is_enabled()
    choose(page, checkpoint="always")
    assert text(page, "grey") == ""
    choose(page, measured=0)
    assert part(page, "K").is_disabled()
    assert "settings of the measured step" in text(page, "grey")


def test_keys_play_and_step(page):
    page.locator("[data-player=stages-box]").focus()
    for key, time in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", 25)):
        page.keyboard.press(key)
        assert clock(page) == time
    page.keyboard.press(" ")
    assert text(page, "play") == "Pause", "it starts again"
    wait_until(page, "clock", MOVING)
    page.keyboard.press(" ")
    assert text(page, "play") == "Play"
    part(page, "K").focus()
    page.keyboard.press("ArrowRight")
    assert part(page, "K").input_value() == "5", "a slider keeps its arrow keys"
    part(page, "play").focus()
    page.keyboard.press(" ")
    assert text(page, "play") == "Pause", "once, not twice"
