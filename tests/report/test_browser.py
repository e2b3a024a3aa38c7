"""The page in a real browser: Debian's Chromium, headless."""

import pytest

from trl_dara.cli.main import main

from .browser import CHROMIUM, browser
from .tables import starved_run, trl_table, write_run


pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"
)

HOSTILE = "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\"> $x^2$ {{ 7 * 7 }} & é"
NAMES = ["<script>document.title='run'</script>", "a_name_without_any_space_" * 4, "100 % $\\frac{1} 奖"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium.new_page()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    """Page of three runs: an ordinary one, one with many channels, and one whose every text wants to be more than a text."""
    folder = tmp_path_factory.mktemp("report")
    rewards = [[1.0, 0, 0, 1] * 2, [0.0, 1, 1, 0] * 2, [0.0] * 8]
    tables = [
        trl_table(step, dict(zip(NAMES, rewards, strict=True)), 4).assign(
            prompt=HOSTILE, completion=f"{HOSTILE} at {step}"
        )
        for step in (1, 2)
    ]
    many = {f"{'long' * 60}_{index}": [float(index % 2), 0, 1, 1] for index in range(9)}
    runs = [starved_run(folder / "ordinary"), write_run(folder / "many", [trl_table(1, many, 4)])]
    runs.append(write_run(folder / "<b>hostile", tables))
    assert main(["replay", *map(str, runs), "--num-generations", "4", "--html", str(folder / "page.html")]) == 0
    return folder / "page.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_opens_without_a_complaint_a_request_or_a_scroll_bar(page, run_page, width, scheme):
    page.problems.clear()
    page.requests.clear()
    page.open(run_page, width, scheme)
    assert page.problems == []
    assert page.requests == [run_page.as_uri()]
    scroll, client = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert scroll <= client <= width
    cut = "[...document.querySelectorAll('.card')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert page.evaluate(cut) == 0
    wider = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(wider) == 0
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    ink = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill.match(/\\d+/g).map(Number)")
    assert max(red, green, blue) < 60 < 180 < min(ink) if scheme == "dark" else min(red, green, blue) > 200 > max(ink)


def test_every_channel_and_verdict_is_in_the_page(page, run_page):
    page.open(run_page, 1280, "light")
    text = page.evaluate("document.body.innerText")
    for name in ("accuracy", "format", "length", "brevity", "tool_call", *NAMES):
        assert name in text
    for verdict in ("drowned", "starved", "saturated", "silent"):
        assert verdict in text
    assert "always 0 since step 0: no signal under any rule" in text
    assert page.evaluate("document.querySelectorAll('svg').length") == 18
    assert "_7" in text and "_8 (dashed)" in text  # the colours are used a second time


def test_texts_of_the_data_are_shown_and_not_run(page, run_page):
    page.open(run_page, 1280, "light")
    assert page.evaluate("document.title").startswith("Rewards of ordinary")
    assert page.evaluate("document.querySelectorAll('script, img, b b').length") == 0
    assert page.evaluate("document.querySelector('section:last-of-type .prompt').innerText") == HOSTILE
    assert "<b>hostile" in page.evaluate("document.body.innerText")
