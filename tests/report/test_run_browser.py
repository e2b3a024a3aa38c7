"""The page of runs in a real browser: Debian's Chromium, headless."""

import pytest

from trl_dara.cli.main import main

from .browser import CHROMIUM, browser
from .run_logs import RECORD, entry, write_checkpoint
from .test_run_command import study


pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"
)

CHANNELS = ["<script>document.title='run'</script>", "a_name_without_any_space_" * 4]
LABEL = "<b>mine</b> $x^2$ {{ 7 * 7 }} " + "long " * 30


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium.new_page()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    """Page of a study of 13 runs, and of one whose every text wants to be more than a text, with a damaged one."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "logs").mkdir()
    runs = study(folder / "logs")
    log = [
        entry(
            step,
            {name: {"mean": step / 4, "std": 0.1, "density": 0.5, "share": 0.5, "weight": step} for name in CHANNELS},
        )
        for step in (1, 2, 3)
    ]
    write_checkpoint(folder / "<i>run", log, RECORD | {"aggregation_kwargs": {"note": "<u>"}})
    (folder / "<i>run" / "checkpoint-3" / "trl_dara_state.json").unlink()
    write_checkpoint(folder / "<i>damaged", log)
    (folder / "<i>damaged" / "checkpoint-3" / "trainer_state.json").write_text("{")
    arguments = [*runs, str(folder / "<i>run"), str(folder / "<i>damaged"), "--label", f"<i>run={LABEL}"]
    assert main(["report", *arguments, "--output-dir", str(folder / "out")]) == 0
    return folder / "out" / "report.html"


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


def test_every_channel_and_verdict_is_in_the_page(page, run_page):
    page.open(run_page, 1280, "light")
    text = page.evaluate("document.body.innerText")
    for name in ("format", "correct", *CHANNELS, " ".join(LABEL.split()), "<i>run", "<i>damaged"):
        assert name in text
    cards = page.evaluate("[...document.querySelectorAll('.channel')].map(e => e.innerText)")
    assert len(cards) == 6 * 2 + 2
    assert all("active in" in card for card in cards)
    assert "is damaged" in text


def test_texts_of_the_runs_are_shown_and_not_run(page, run_page):
    page.open(run_page, 1280, "light")
    assert page.evaluate("document.title").startswith("Runs of dara_asym")
    assert page.evaluate("document.querySelectorAll('script, img, i, u').length") == 0
