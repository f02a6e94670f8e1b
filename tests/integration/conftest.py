"""Browsers and searches in processes of their own, for every test here that wants one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.headless_browser import Browser
from benchmarks.report_speed import all_drawn, find_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    """The module's `report`, opened afresh."""
    browser.look(width=1280, height=900)
    browser.log.clear()
    browser.requests.clear()
    browser.open(report, all_drawn)
    return browser


@pytest.fixture
def start(tmp_path: Path, data_dir: Path, repository: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the slow search on a study, again and again; whatever is left is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start_search(
        seconds: str = "0.1", study: str = "study", trials: int | None = None
    ) -> subprocess.Popen[str]:
        line = [sys.executable, str(data_dir / "programs/slow_search.py"), str(tmp_path / study), seconds]
        process = subprocess.Popen(
            line if trials is None else [*line, str(trials)],
            env=os.environ | {"PYTHONPATH": str(repository)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_search
    for process in started:
        process.kill()
        process.communicate()
