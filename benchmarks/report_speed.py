"""How fast the report of a long run is written, how large it is, and how soon a browser answers to it.

    python benchmarks/report_speed.py --out DIR [--run RUN] [--repeats 5]

Without --run the run of `benchmarks/large_run.py` (1 h, 8 GPUs, 10 readings a second) is made first. Written:
wall time of `dflash-profile report` from start to end of the process, and its CPU time. Opened: a fresh
Chromium without network each time; `ready` is when the page has answered to its own start, with every chart
in view drawn, and `all charts` when the last one further down is. Times count from the navigation. The load
of the machine stands beside them: on a crowded one the CPU times say more, of the browser's main thread up to
the last chart.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.headless_browser import Browser
from benchmarks.large_run import write_large_run
from benchmarks.result_file import summary, write_result

all_drawn: Final = "performance.getEntriesByName('all-charts-drawn').length > 0"
moments: Final = {
    "first paint": "performance.getEntriesByName('first-contentful-paint')[0]?.startTime",
    "ready": "performance.getEntriesByName('ready')[0]?.startTime",
    "all charts": "performance.getEntriesByName('all-charts-drawn')[0]?.startTime",
}
names: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """The first browser of these that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


def time_writing(run: Path, repeats: int) -> dict[str, Any]:
    """Wall and CPU seconds of the command, start of Python included."""
    command = "import sys; from cli.start import profile; sys.exit(profile())"
    wall, cpu = [], []
    for _ in range(repeats):
        before, begin = _children_cpu_s(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", command, "report", str(run)], check=True, stdout=subprocess.DEVNULL
        )
        wall.append(time.perf_counter() - begin)
        cpu.append(_children_cpu_s() - before)
    size = (run / "report.html").stat().st_size
    return {"written_s": summary(wall), "written_cpu_s": summary(cpu), "report_bytes": size}


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def time_opening(report: Path, browser: str, repeats: int) -> dict[str, Any]:
    """Seconds to each moment, each time in a browser that never saw the page; and what it complained of."""
    times: dict[str, list[float]] = {name: [] for name in moments}
    cpu_s: list[float] = []
    said: list[str] = []
    asked: set[str] = set()
    for _ in range(repeats):
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
            Browser(browser, Path(profile)) as window,
        ):
            window.look(width=1280, height=900)
            time.sleep(1.0)  # its own start is not the page's
            before = window.main_thread_cpu_s()
            window.open(report, all_drawn)
            cpu_s.append(window.main_thread_cpu_s() - before)
            for name, expression in moments.items():
                times[name].append(window.evaluate(expression) / 1000)
            said += window.log
            asked |= set(window.requests)
    return {
        "opened_s": {name: summary(values) for name, values in times.items()},
        "opened_main_thread_cpu_s": summary(cpu_s),
        "console": said,
        "requests_beside_the_file": sorted(asked - {report.resolve().as_uri()}),
    }


def measure(run: Path, repeats: int) -> dict[str, Any]:
    """All figures of one run, with the load before and after each part."""
    figures: dict[str, Any] = {"load_1min": [os.getloadavg()[0]]}
    parts: list[Callable[[], dict[str, Any]]] = [lambda: time_writing(run, repeats)]
    browser = find_browser()
    if browser is not None:
        parts.append(lambda: time_opening(run / "report.html", browser, repeats))
        version = subprocess.run([browser, "--version"], capture_output=True, text=True, check=False)
        figures["browser"] = version.stdout.strip()
    for part in parts:
        figures |= part()
        figures["load_1min"].append(round(os.getloadavg()[0], 2))
    return figures


def main() -> None:
    """Make or take a run, measure its report, write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--run", type=Path, help="a run's directory; its report.html is written anew")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run or write_large_run(Path(scratch) / "run", seconds=3600 * options.hours)
        figures = {"hours": None if options.run else options.hours, **measure(run, options.repeats)}
    path = options.out and options.out / "report_speed.json"
    print(json.dumps(write_result(path, "report_speed", figures), indent=1))


if __name__ == "__main__":
    main()
