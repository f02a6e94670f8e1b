"""What readers of other tools' reports stumbled over (cases C083, C084, C088, C089), tried on whole pages."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.large_run import write_large_run
from profiler.examination import examine
from reports.page import script_json
from reports.run_report import write_run_report
from reports.series import Series
from reports.time_chart import Panel, draw_over_time
from tests.html_outline import Outline
from tests.played_pipeline import Play, play
from tests.run_builder import RunBuilder

day_s, gpus, threads = 86_400, 8, 12


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_a_day_of_eight_gpus_and_twelve_threads_stays_small_and_shows_a_stall_of_two_seconds() -> None:
    """C083: about ten million points."""
    t_s = np.arange(day_s, dtype=float)
    busy = np.full(day_s, 95.0)
    stalled = busy.copy()
    stalled[50_000:50_002] = 0.0
    names = [*(f"gpu {n}" for n in range(gpus)), *(f"thread {n}" for n in range(threads))]
    panels = [
        Panel(
            title=f"metric {m}",
            unit="%",
            series=tuple(
                Series(name=name, t_s=t_s, values=stalled if name == "gpu 3" else busy) for name in names
            ),
        )
        for m in range(6)
    ]
    assert sum(len(series.t_s) for panel in panels for series in panel.series) > 10_000_000
    chart = draw_over_time(panels)
    assert len(script_json(chart.spec)) < 3_000_000  # plotly itself is 4.8 MB, and 15 MB is the limit
    lines = [trace for trace in chart.spec["data"] if trace["name"] == "gpu 3"]
    assert len(lines) == 6
    for line in lines:
        assert np.min(line["y"]) == 0.0
        assert 50_000 in list(line["x"]) or 50_001 in list(line["x"])


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    """Ten minutes of eight GPUs, read ten times a second, with a stall in the middle."""
    path = write_large_run(tmp_path_factory.mktemp("runs") / "long", seconds=600)
    page = write_run_report(examine(path)).read_text(encoding="utf-8")
    assert len(page.encode()) < 6_000_000
    return Outline(page)


def test_the_generated_run_is_read_as_what_it_plays(long_run: Outline) -> None:
    assert "Targets stand still while their own thread copies hidden states" in long_run.text
    assert "left out" not in long_run.text.split("tokens per second")[0]


def test_a_stalled_gpu_shows_in_its_curve_and_as_a_mark(long_run: Outline) -> None:
    chart = long_run.chart_specs()["time"]
    assert "cuda:3 stood still" in str(chart["layout"]["annotations"])
    lowest = {line["name"]: min(line["y"]) for line in traces_of(long_run, "GPU power, targets")}
    assert len(lowest) == 7
    assert [name for name, watts in lowest.items() if watts < 100] == ["cuda:3"]


def test_nothing_in_the_page_asks_for_anything(long_run: Outline) -> None:
    """C084, without a browser: no element names another place."""
    for _, attributes in long_run.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert not re.match(r"\s*(https?:)?//", attributes.get(name) or "")


def test_missing_names_are_said_to_be_missing(tmp_path: Path) -> None:
    """C088: never "nan", whatever library read the columns."""
    builder = RunBuilder(tmp_path / "run", Play().config)
    for w in range(14):
        builder.span("target", 0, "forward", w, w + 0.4, device=None, tokens=10)
        builder.span("target", 0, "copy", w + 0.4, w + 0.6, device=None, path=None, src=None, dst=None)
        builder.span("drafter", 0, "get", w, w + 0.5, channel=None)
        builder.span("drafter", 0, "backward", w + 0.5, w + 0.9, device=None, tokens=10)
        builder.gauge("target", 0, "depth", w, 1.0, channel=None)
        builder.window(w, w + 0.95, 10)
    outline = Outline(
        write_run_report(examine(builder.finish(devices=[{"name": None}]))).read_text(encoding="utf-8")
    )
    assert not re.search(r"\bnan\b", outline.text, re.IGNORECASE)
    assert not re.search(r"\bNone\b", outline.text)
    assert "n/a" in outline.text
    assert not re.search(r'"(nan|None)"', json.dumps(outline.chart_specs()))


def traces_of(outline: Outline, title: str) -> list[dict[str, Any]]:
    layout = outline.chart_specs()["time"]["layout"]
    places = {note["text"].split("</b>")[0].removeprefix("<b>"): note["y"] for note in layout["annotations"]}
    axis = min(
        (name for name in layout if name.startswith("yaxis")),
        key=lambda name: abs(layout[name]["domain"][1] - places[title]),
    )
    wanted = axis.replace("yaxis", "y")
    return [trace for trace in outline.chart_specs()["time"]["data"] if trace["yaxis"] == wanted]


def test_a_hole_stays_a_hole_and_every_document_is_strict(tmp_path: Path, data_dir: Path) -> None:
    """C089: a silence of 20 s, values that are no numbers, a clock that ran backward."""
    builder = RunBuilder(tmp_path / "run", Play().config)
    with (data_dir / "reports" / "metrics_with_gaps.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            at_s, value = (int(row["ts_ns"]) - 1767225600 * 10**9) / 1e9, float(row["value"])
            if row["stage"] == "gpu0":
                builder.sample("gpu", "GPU-0", "util_pct", at_s, value)
            elif row["stage"] == "gpu1":
                builder.sample("gpu", "GPU-1", "power_w", at_s, value if np.isfinite(value) else np.nan)
            elif row["stage"] == "clock":
                builder.sample("gpu", "GPU-0", "util_pct", at_s, value)
    run = builder.finish()
    examined = examine(run)
    page = write_run_report(examined).read_text(encoding="utf-8")
    outline = Outline(page)
    (utilisation,) = traces_of(outline, "GPU utilisation")
    values = np.array(utilisation["y"], dtype=float)
    (hole,) = np.flatnonzero(np.isnan(values))
    assert utilisation["x"][hole + 1] - utilisation["x"][hole - 1] >= 20
    assert "6 unreadable values left out" in outline.text
    assert "1 samples whose clock ran backwards" in outline.text
    json.loads(examined.diagnosis.save(run).read_text(), parse_constant=refuse)
    assert not re.search(
        r"\bNaN\b|\bInfinity\b", "".join(body for a, body in outline.scripts if a.get("type"))
    )


def test_a_page_needs_no_browser_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C086: with nothing on the path at all."""
    monkeypatch.setenv("PATH", "")
    path = write_run_report(examine(play(tmp_path / "run", windows=12)))
    assert b"</html>" in path.read_bytes()[-20:]
