"""The page in a real browser: nothing is wider than the screen, nothing is loaded, links lead."""

from pathlib import Path
from typing import Any

import pytest

from repro.report import page

COMMITTED = Path(__file__).parents[2] / "plots/reference/report.html"
HEIGHT = 800

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["made up", "committed"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a few made-up runs of Table 2, and the committed one."""
    if request.param == "committed":
        return COMMITTED
    results = request.getfixturevalue("modelled")
    return page.write(results, tmp_path_factory.mktemp("plots")).path


def opened(browser: Any, path: Path, width: int, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page in a window, and all that it complains of or asks the network for."""
    window = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    tab, problems = window.new_page(), []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: problems.append(request.url))
    tab.goto(path.as_uri())
    asked = (path.as_uri(), "data:")
    problems[:] = [problem for problem in problems if not problem.startswith(asked)]
    return tab, problems


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_is_wider_than_the_screen_and_links_lead(browser, path, width, scheme):
    tab, problems = opened(browser, path, width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    links = "[...document.querySelectorAll('.toc a')].map(a => a.hash.slice(1))"
    for target in dict.fromkeys(tab.evaluate(links)):
        tab.evaluate("target => { location.hash = target }", target)
        place = "target => document.getElementById(target).getBoundingClientRect().top"
        assert tab.evaluate(place, target) < HEIGHT, target
        box = tab.evaluate("document.querySelector('.toc').getBoundingClientRect().toJSON()")
        assert target == "top" or -1 <= box["top"] < HEIGHT / 2, target
        if target == "player":
            tab.wait_for_function("document.querySelector('[aria-current]').hash === '#player'")
            bottom = "document.querySelector('[data-player=play]').getBoundingClientRect().bottom"
            assert tab.evaluate(bottom) <= HEIGHT
    tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wide = tab.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > "
        "box.clientWidth).map(box => box.firstElementChild.className)"
    )
    assert width < 1280 or wide == []
    assert problems == []


def test_the_first_screen_ends_with_its_rows(browser, path):
    tab, _ = opened(browser, path, 1400)
    assert tab.evaluate("document.querySelector('.rows').getBoundingClientRect().bottom") <= 900
    sizes = "[...document.querySelectorAll('.first *')].map(e => getComputedStyle(e).fontSize)"
    assert min(float(size.removesuffix("px")) for size in tab.evaluate(sizes)) >= 15


def test_the_player_shows_what_its_controls_say(browser, path):
    tab, problems = opened(browser, path, 1280)
    part = "[data-player={}]".format
    tab.check("input[name=player-recompute][value=never]", force=True)
    for schedule, K, M in (("gpipe", 16, 64), ("1f1b", 4, 8)):
        tab.check(f"input[name=player-schedule][value='{schedule}']", force=True)
        tab.fill(part("K"), str(K))
        tab.fill(part("M"), str(M))
        bubble = f"{(K - 1) / (M + K - 1):.1%}".replace("%", "\N{NO-BREAK SPACE}%")
        assert bubble in tab.inner_text(part("formula"))
        assert f"{bubble} simulated" in tab.inner_text(part("bubble"))
    tab.select_option(part("measured"), "0")
    assert tab.is_disabled(part("K"))
    tab.focus(part("stages-box"))
    tab.keyboard.press(" ")
    assert tab.inner_text(part("play")) == "Pause", "a key plays it"
    assert problems == []
