"""The page in a real browser: nothing is wider than the screen, nothing is loaded, links lead."""

from pathlib import Path
from typing import Any

import pytest

from repro.claims.claim import WORDS
from repro.report import page
from repro.report.front import fidelity_colours
from repro.report.verdicts import EXHIBITS

COMMITTED = Path(__file__).parents[2] / "plots/reference/report.html"
WIDTHS = (390, 1280)
HEIGHT = 800

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(modelled, tmp_path_factory) -> Path:
    """The page of a few made-up runs of Table 2."""
    return page.write_loaded(modelled, tmp_path_factory.mktemp("plots"))


class Opened:
    """A page in a window, with all that it complained of or asked the network for."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str = "light") -> None:
        window = browser.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme
        )
        self.tab = window.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(path.as_uri())

    def asked(self) -> list[str]:
        """The requests for anything but the page and what it holds."""
        return [url for url in self.requests[1:] if not url.startswith("data:")]

    def value(self, script: str) -> Any:
        return self.tab.evaluate(script)


def pages(tiny: Path) -> list[Path]:
    return [tiny, COMMITTED]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_screen_or_complains_or_asks_the_network(
    browser, tiny, width, scheme
):
    for path in pages(tiny):
        opened = Opened(browser, path, width, scheme)
        assert opened.value("document.documentElement.scrollWidth") <= width, path
        opened.value("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert opened.value("document.documentElement.scrollWidth") <= width, path
        assert opened.complaints == []
        assert opened.asked() == []


def test_at_1280_pixels_every_table_fits(browser, tiny):
    for path in pages(tiny):
        opened = Opened(browser, path, 1280)
        opened.value("document.querySelectorAll('details').forEach(part => part.open = true)")
        wide = opened.value(
            "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > "
            "box.clientWidth).map(box => box.firstElementChild.className)"
        )
        assert wide == [], path


def test_the_first_screen_says_what_holds(browser, tiny):
    for path in pages(tiny):
        opened = Opened(browser, path, 1280)
        rows = opened.value(
            "[...document.querySelectorAll('.verdicts tbody tr')].map(row => "
            "({text: row.innerText, verdict: row.querySelector('.verdict').title, "
            "end: row.getBoundingClientRect().bottom}))"
        )
        assert [row["text"].split("\t")[0] for row in rows] == [each.name for each in EXHIBITS]
        assert all(any(word in row["verdict"] for word in WORDS) for row in rows)
        assert all(row["end"] <= HEIGHT for row in rows), "the table is on the first screen"
        picture = "document.querySelector('#table2_bars img').getBoundingClientRect()"
        assert opened.value(f"{picture}.bottom") <= HEIGHT, "and so is the picture below it"
        assert opened.value("document.querySelector('.lead').getBoundingClientRect().bottom") < 200


def test_every_fidelity_has_its_colour_and_can_be_read(browser, tiny):
    opened = Opened(browser, tiny, 1280)
    script = "word => getComputedStyle(document.querySelector('.fidelity.' + word)).backgroundColor"
    colour = fidelity_colours()["simulated"]["back"]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    assert opened.tab.evaluate(script, "simulated") == f"rgb({red}, {green}, {blue})"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_entry_of_the_contents_leads_somewhere_and_stays_in_sight(browser, tiny, width):
    for path in pages(tiny):
        opened = Opened(browser, path, width)
        targets = opened.value(
            "[...document.querySelectorAll('.toc a, .verdicts a')].map(link => link.hash.slice(1))"
        )
        assert len(targets) > len(EXHIBITS)
        for target in dict.fromkeys(targets):
            opened.tab.evaluate("target => { location.hash = target }", target)
            top = opened.tab.evaluate(
                "target => document.getElementById(target).getBoundingClientRect().top", target
            )
            assert top < HEIGHT, target
            box = opened.value("document.querySelector('.toc').getBoundingClientRect().toJSON()")
            assert box["top"] >= -1, target
            assert box["top"] < HEIGHT / 2, target
