"""Traces with something missing, brief, mild or rare in them are told right, each with the time it held."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.metrics_trace.importer import import_metrics
from profiler.run import Run
from profiler.timeline import Timeline
from tests.scenario_variants import Rows, in_turn, labels, load, write

Change = Callable[[float, dict[str, Any]], None]


def diagnosed(rows: Rows, path: Path) -> Diagnosis:
    import_metrics(write(rows, path / "metrics.jsonl"), path / "run")
    return diagnose(Timeline.of(Run.open(path / "run")))


def changed(name: str, change: Change) -> Rows:
    rows = copy.deepcopy(load(name))
    for row in rows:
        change(row["t"], row)
    return rows


def uncounted(_: float, row: dict[str, Any]) -> None:
    """Targets that tell no batches: the queue's growth does."""
    del row["q"]["hs"]["produced"]


def untimed(_: float, row: dict[str, Any]) -> None:
    """Recompilations are counted, not timed: windows with one are slower."""
    del row["compile"]["secs"]


def nameless(_: float, row: dict[str, Any]) -> None:
    """Rates of copies by GPU, and nothing else of GPUs."""
    del row["gpu"]


def rarely_away(_: float, row: dict[str, Any]) -> None:
    """One batch in four comes from elsewhere, and takes longer than a batch does on average."""
    row["drafter"] |= {"wrong_home_frac": 0.25, "xdev_copy_s": 2.5 * row["drafter"]["xdev_copy_s"]}


@pytest.mark.parametrize(
    ("name", "change"), [("s05", uncounted), ("s08", untimed), ("s10", nameless), ("s01", rarely_away)]
)
def test_what_is_missing_or_rare_hides_no_cause(tmp_path: Path, name: str, change: Change) -> None:
    primary = diagnosed(changed(name, change), tmp_path).primary
    assert primary is not None
    assert primary.cause == labels[name]["primary"]
    assert primary.range_s[0] < 60
    assert primary.range_s[1] > (450 if name == "s08" else 540)


@pytest.mark.parametrize("name", ["s08", "s10"])
def test_what_ends_early_is_no_warm_up(tmp_path: Path, name: str) -> None:
    """Holes now and then, or a loss of a tenth: neither is a step that a cut would be found by."""
    primary = diagnosed(in_turn(load(name), load("s14"), 0.35), tmp_path).primary
    assert primary is not None
    assert primary.cause == labels[name]["primary"]
    assert primary.range_s == pytest.approx((0, 210), abs=21)


def test_a_pause_is_neither_warm_up_nor_a_cause(tmp_path: Path) -> None:
    def pause(t_s: float, row: dict[str, Any]) -> None:
        if 200 <= t_s < 230:
            row["tok_s"] = 100
            row["drafter"]["fwdbwd_s"] = row["target"]["fwd_s"] = 0.05

    primary = diagnosed(changed("s14", pause), tmp_path).primary
    assert primary is not None
    assert primary.cause == "target-bound-healthy"
    assert primary.range_s[0] < 60


def test_sound_stretches_between_standstills_make_no_healthy_run(tmp_path: Path) -> None:
    def stand_still(t_s: float, row: dict[str, Any]) -> None:
        if t_s % 200 < 130:
            row["tok_s"] = 50
            row["q"]["hs"] |= {"produced": None, "consumed": None}

    diagnosis = diagnosed(changed("s14", stand_still), tmp_path)
    assert not [finding.cause for finding in diagnosis.findings if finding.supported]


def test_two_retries_as_a_run_grows_into_its_memory_are_no_sickness(tmp_path: Path) -> None:
    def retry(t_s: float, row: dict[str, Any]) -> None:
        row["alloc"] |= {"allocated_gib": 40.0, "retries": min(t_s, 4.0) / 2}
        row["tok_s"] *= 0.95  # so that a twentieth of the time is unaccounted for
        row["q"]["hs"]["produced"] = row["q"]["hs"]["consumed"] = None

    primary = diagnosed(changed("s14", retry), tmp_path).primary
    assert primary is not None
    assert primary.cause == "target-bound-healthy"


def test_a_cause_without_a_price_comes_first_where_the_run_was_slowest(tmp_path: Path) -> None:
    diagnosis = diagnosed(in_turn(load("s08"), load("s13")), tmp_path)
    named = [finding.cause for finding in diagnosis.findings if finding.supported]
    assert named[:2] == ["token-budget-too-small", "recompiles-from-varying-shapes"]
