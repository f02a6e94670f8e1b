"""The page in a real browser without a network: charts are drawn, nothing is complained of, keys do."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.headless_browser import Browser
from benchmarks.report_speed import all_drawn
from dflash.contract.rundir import RunDir
from profiler.comparison import compare
from profiler.examination import examine
from profiler.run import Run
from reports.comparison_report import write_comparison_report
from reports.run_report import write_run_report
from tests.played_pipeline import play

pytestmark = pytest.mark.browser

drawn = "document.querySelectorAll('.chart.js-plotly-plot .main-svg').length"
range_shown = "document.getElementById('chart-time').layout.xaxis.range"
colour_of = "getComputedStyle(document.querySelector('{}')).{}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    return write_run_report(examine(play(run, targets=2, preset="host", target_copy_s=0.5, windows=20)))


def test_every_chart_is_drawn_in_colours_of_the_page(page: Browser) -> None:
    assert page.evaluate(f"{drawn} >= 4")
    assert page.evaluate("document.querySelectorAll('.point').length") >= 10
    assert page.evaluate("document.querySelectorAll('.js-line').length") >= 3
    assert page.evaluate("!document.querySelector('main').innerHTML.includes('var(--series')")


def test_nothing_is_asked_for_and_the_console_stays_empty(page: Browser, report: Path) -> None:
    """C084: with the network off the page is whole."""
    assert page.log == []
    assert set(page.requests) == {report.as_uri()}


def test_charts_out_of_view_do_not_hold_up_those_in_view(page: Browser) -> None:
    names = page.evaluate("performance.getEntriesByType('mark').map((mark) => mark.name)")
    assert names == ["ready", "all-charts-drawn"]


def test_a_button_zooms_all_panels_and_says_that_it_is_pressed(page: Browser) -> None:
    whole = page.evaluate(range_shown)
    page.evaluate("document.querySelectorAll('.views button')[1].focus()")
    page.press("Enter")
    zoomed = page.evaluate(range_shown)
    assert zoomed[0] > whole[0] or zoomed[1] < whole[1]
    pressed = "[...document.querySelectorAll('.views button')].map((b) => b.getAttribute('aria-pressed'))"
    assert page.evaluate(pressed)[:2] == ["false", "true"]
    page.evaluate("document.querySelectorAll('.views button')[0].click()")
    assert page.evaluate(pressed)[0] == "true"
    assert page.evaluate(range_shown) == pytest.approx(whole)


def test_the_first_tab_leads_past_everything_to_the_verdict(page: Browser) -> None:
    page.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_dark_screen_gets_a_dark_page_with_charts_to_match(page: Browser, report: Path) -> None:
    light = page.evaluate(colour_of.format("body", "backgroundColor"))
    page.look(width=1280, height=900, scheme="dark")
    page.open(report, all_drawn)
    assert page.evaluate(colour_of.format("body", "backgroundColor")) != light
    ink = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()")
    assert page.evaluate("document.getElementById('chart-time').layout.font.color") == ink


@pytest.mark.parametrize("width", [360, 768, 1280, 2200])
def test_no_window_needs_scrolling_sideways(page: Browser, report: Path, width: int) -> None:
    page.look(width=width, height=900)
    page.open(report, all_drawn)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_words_beside_bars_stay_inside_a_telephone(page: Browser, report: Path) -> None:
    page.look(width=360, height=900)
    page.open(report, all_drawn)
    right = "Math.max(...[...document.querySelectorAll('#chart-waterfall .annotation')].map(END))"
    end = "(words) => words.getBoundingClientRect().right"
    frame = "document.getElementById('chart-waterfall').getBoundingClientRect().right"
    assert 0 < page.evaluate(right.replace("END", end)) <= page.evaluate(frame)


def test_a_comparison_is_drawn_without_a_word_or_a_request(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    RunDir(report.parent).update(workload={"data.seed": 0})
    run = Run.open(report.parent)
    path = write_comparison_report(compare(run, run), tmp_path / "compare.html")
    browser.look(width=360, height=900)
    browser.log.clear()
    browser.requests.clear()
    browser.open(path, all_drawn)
    assert browser.evaluate("document.querySelectorAll('.chart.js-plotly-plot').length") == 2
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.log == []
    assert set(browser.requests) == {path.as_uri()}


def test_paper_gets_every_chart_and_the_evidence_of_what_was_found(page: Browser) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('tr.named details:not([open])').length") == 0
    assert page.evaluate("document.getElementById('chart-time').clientHeight") <= 960
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('tr.named details[open]').length") == 0
    assert len(page.pdf()) > 10_000
