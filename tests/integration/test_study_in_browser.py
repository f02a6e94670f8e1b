"""The page of a study in a real browser without a network: every chart drawn, no word in the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.lessons.taught import learn
from benchmarks.headless_browser import Browser
from benchmarks.report_speed import all_drawn
from reports.study_report import write_report
from tests.searched_study import search_played

pytestmark = pytest.mark.browser

charts = ("worths", "predictions", "memory", "energy", "trials")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = search_played(tmp_path_factory.mktemp("studies") / "study")
    return write_report(result, learn(result))


def test_every_chart_is_drawn_and_nothing_is_asked_for_or_complained_of(page: Browser, report: Path) -> None:
    drawn = "[...document.querySelectorAll('.chart.js-plotly-plot')].map((chart) => chart.id)"
    assert page.evaluate(drawn) == [f"chart-{name}" for name in charts]
    assert page.evaluate("document.querySelectorAll('.point').length") >= 20
    assert page.log == []
    assert set(page.requests) == {report.as_uri()}


@pytest.mark.parametrize("width", [360, 768, 1280, 2200])
def test_no_window_needs_scrolling_sideways(page: Browser, report: Path, width: int) -> None:
    page.look(width=width, height=900)
    page.open(report, all_drawn)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside = "[...document.querySelectorAll('td, th')].every((c) => c.scrollWidth <= c.clientWidth + 1)"
    assert page.evaluate(f"{inside} || innerWidth <= 760")


def test_a_dark_screen_gets_charts_to_match(page: Browser, report: Path) -> None:
    page.look(width=1280, height=900, scheme="dark")
    page.open(report, all_drawn)
    ink = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()")
    for name in charts:
        assert page.evaluate(f"document.getElementById('chart-{name}').layout.font.color") == ink


def test_every_part_is_reached_by_its_link_and_by_keys(page: Browser) -> None:
    links = "[...document.querySelectorAll('.contents a')].map((link) => link.getAttribute('href').slice(1))"
    for anchor in page.evaluate(links):
        assert page.evaluate(f"document.getElementById('{anchor}') !== null"), anchor
    page.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
    page.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_paper_gets_the_whole_page(page: Browser) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.getElementById('chart-trials').clientHeight") <= 960
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(page.pdf()) > 10_000
