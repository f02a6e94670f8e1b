"""The page in a real browser without a network: charts are drawn, nothing is complained of."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from reports.run_report import write_run_report
from tests.played_pipeline import play

pytestmark = pytest.mark.browser

browser_names = ("chromium", "chromium-browser", "google-chrome", "chrome")
flags = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=10000",
    "--dump-dom",
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The page after its scripts ran, and what the browser logged."""
    base = tmp_path_factory.mktemp("browser")
    report = write_run_report(play(base / "run", targets=2, preset="host", target_copy_s=0.5, windows=20))
    browser = next(filter(None, map(shutil.which, browser_names)))
    done = subprocess.run(
        [browser, *flags, f"--user-data-dir={base / 'profile'}", report.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


def test_every_chart_is_drawn(opened: tuple[str, str]) -> None:
    page, _ = opened
    body = page[page.index("<body>") :]
    assert len(re.findall(r'class="chart js-plotly-plot"', body)) == 4
    assert len(re.findall(r'class="point"', body)) >= 10  # bars
    assert len(re.findall(r'class="js-line"', body)) >= 3  # lines over time
    assert not re.search(r"\bvar\(--series", body.split("</main>")[0])


def test_the_console_stays_empty(opened: tuple[str, str]) -> None:
    _, log = opened
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
