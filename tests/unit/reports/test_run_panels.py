from __future__ import annotations

from pathlib import Path

import numpy as np

from profiler.run import Run
from reports.run_panels import collect_panels
from reports.time_chart import Panel
from tests.played_pipeline import Play
from tests.run_builder import RunBuilder


def panels_of(builder: RunBuilder, **manifest: object) -> dict[str, Panel]:
    return {panel.title: panel for panel in collect_panels(Run.open(builder.finish(**manifest)))}


def test_every_panel_without_data_has_a_reason(tmp_path: Path) -> None:
    panels = panels_of(RunBuilder(tmp_path / "run"))
    for panel in panels.values():
        assert panel.reason
        assert not any(len(series.t_s) for series in panel.series)


def test_windows_give_throughput_and_loss_and_a_loss_that_is_no_number_is_a_gap(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for w, loss in enumerate([3.0, float("nan"), "high", 2.0]):
        builder.window(w, float(2 * w + 2), 1000, loss=loss)
    panels = panels_of(builder)
    (rates,) = panels["Throughput by window"].series
    assert list(rates.values) == [500.0] * 3
    assert list(rates.t_s) == [4.0, 6.0, 8.0]
    assert rates.holds == "since_last"
    (losses,) = panels["Loss"].series
    np.testing.assert_array_equal(losses.values, [3.0, np.nan, np.nan, 2.0])
    assert panels["Accuracy"].series == ()
    assert panels["Accuracy"].reason == "no window says its accuracy"


def test_depths_are_of_the_whole_run_and_hold_until_the_next(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    builder.gauge("target", 0, "depth", 1.0, 1.0, channel="q_hs.1")
    builder.gauge("target", 0, "depth", 90.0, 0.0, channel="q_hs.1")
    (series,) = panels_of(builder)["Queue depth"].series
    assert (series.name, series.holds) == ("q_hs.1", "until_next")
    assert list(series.t_s) == [1.0, 90.0]


def test_gpus_carry_the_names_of_their_stages(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    builder.sample("gpu", "GPU-a", "mem_used_bytes", 0, 9e10)
    builder.sample("gpu", "GPU-b", "mem_used_bytes", 0, None, "not supported")
    builder.sample("gpu", "GPU-c", "mem_used_bytes", 0, 1e9)
    devices = [{"name": "cuda:0", "role": "target", "index": 0, "uuid": "GPU-a"}, "nonsense"]
    series = panels_of(builder, devices=devices)["GPU memory"].series
    assert {one.name: float(one.values[0]) for one in series} == {"cuda:0 target 0": 90.0, "GPU-c": 1.0}


def test_a_source_that_never_answered_gives_its_reason_to_all_its_panels(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    builder.sample("gpu", "*", "*", 0, None, "no NVIDIA driver library on this machine")
    panels = panels_of(builder)
    for title in ("GPU utilisation", "GPU power", "GPU memory"):
        assert panels[title].reason == "no NVIDIA driver library on this machine"


def test_waits_for_the_gil_are_shares_of_looks_between_rows(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for at in range(4):
        builder.sample("gil_wait", "*", "gil_sweeps", at, 50.0 * at)
    for at, waits in ((1, 0.0), (2, 25.0)):  # on change only: none in the last second
        builder.sample("gil_wait", "301:target-1", "gil_wait_samples", at, waits)
    builder.sample("gil_wait", "400:idle", "gil_wait_samples", 0, 0.0)
    (series,) = panels_of(builder)["Waiting for the GIL"].series
    assert series.name == "target-1"
    assert series.holds == "since_last"
    np.testing.assert_array_equal(series.values, [np.nan, 50.0, 0.0])
    assert list(series.t_s) == [1.0, 2.0, 3.0]


def test_a_long_run_counts_looks_over_longer_stretches(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for at in range(1500):
        builder.sample("gil_wait", "*", "gil_sweeps", at, 50.0 * at)
        builder.sample("gil_wait", "301:busy", "gil_wait_samples", at, 20.0 * at)
    (series,) = panels_of(builder)["Waiting for the GIL"].series
    assert len(series.values) < 360
    np.testing.assert_allclose(series.values, 40.0)


def test_many_gpus_are_drawn_by_role_and_few_together(tmp_path: Path) -> None:
    def devices(targets: int) -> list[dict[str, object]]:
        roles = [*(("target", n) for n in range(targets)), ("drafter", 0)]
        return [
            {"name": f"cuda:{n}", "role": role, "index": index, "uuid": f"GPU-{n}"}
            for n, (role, index) in enumerate(roles)
        ]

    def titles(targets: int) -> list[str]:
        builder = RunBuilder(tmp_path / f"run{targets}", Play().config)
        for n in range(targets + 1):
            builder.sample("gpu", f"GPU-{n}", "power_w", 0, 500.0)
        panels = panels_of(builder, devices=devices(targets))
        return [title for title, panel in panels.items() if "power" in title and panel.series]

    assert titles(3) == ["GPU power"]
    assert titles(7) == ["GPU power, targets", "GPU power, drafters"]
