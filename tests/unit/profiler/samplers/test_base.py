"""The sampling thread: pace, reasons instead of failures, and an end that loses nothing."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.arrowlog import ArrowLog, read_log
from dflash.contract.events import sample_schema
from profiler.samplers import base
from profiler.samplers.base import Reading, Sampler, SamplerReport, SamplerThread, Schedule, even_jitter


class FakeSampler(Sampler):
    """Reads 0, 1, 2, … and says when it has read `enough` of them."""

    name = "fake"
    interval_s = 0.001
    metrics = ("level_m", "speed_m_per_s")

    def __init__(self, enough: int = 3, closed_reason: str | None = None, breaks_at: int = -1) -> None:
        self.enough, self.closed_reason, self.breaks_at = enough, closed_reason, breaks_at
        self.reads = 0
        self.done = threading.Event()
        self.closed = 0

    def open(self) -> str | None:
        if self.closed_reason is not None:
            self.done.set()
        return self.closed_reason

    def sample(self) -> Iterator[Reading]:
        if self.reads == self.breaks_at:
            self.done.set()
            raise ZeroDivisionError("the sensor is broken")
        yield Reading(self.reads, "a", "level_m", float(self.reads))
        self.reads += 1
        if self.reads == self.enough:
            self.done.set()

    def close(self) -> Iterator[Reading]:
        self.closed += 1
        yield Reading(99, "a", "level_m", 99.0)


def run(sampler: FakeSampler, folder: Path) -> tuple[SamplerReport, list[dict[str, Any]]]:
    log = ArrowLog(folder / "fake.arrow", sample_schema)
    thread = SamplerThread(sampler, log)
    thread.start()
    assert sampler.done.wait(30)
    report = thread.stop()
    table, torn = read_log(folder / "fake.arrow")
    assert not torn
    return report, table.to_pylist()


def test_readings_arrive_in_order_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    sampler = FakeSampler(enough=3)
    report, rows = run(sampler, tmp_path)
    values = [row["value"] for row in rows if row["metric"] == "level_m"]
    assert values[:3] == [0, 1, 2]
    assert values[-1] == 99
    assert {row["source"] for row in rows} == {"fake"}
    assert (report.status, report.reason, sampler.closed) == ("ok", None, 1)


def test_own_cost_is_written_down(tmp_path: Path) -> None:
    sampler = FakeSampler()
    sampler.helper_cpu_s = 5.0
    report, rows = run(sampler, tmp_path)
    assert rows[-1]["metric"] == "sampler_cpu_s"
    assert rows[-1]["value"] == report.cpu_s
    assert report.cpu_s > 5


def test_sampler_that_cannot_open_leaves_its_reason_for_every_metric(tmp_path: Path) -> None:
    report, rows = run(FakeSampler(closed_reason="no such sensor here"), tmp_path)
    missing = [row for row in rows if row["value"] is None]
    assert {row["metric"] for row in missing} == {"level_m", "speed_m_per_s"}
    assert {(row["key"], row["reason"]) for row in missing} == {("*", "no such sensor here")}
    assert report.reason == "no such sensor here"


def test_failing_sampler_is_reported_once_and_paused(tmp_path: Path) -> None:
    sampler = FakeSampler(breaks_at=2)
    report, rows = run(sampler, tmp_path)
    assert [r["value"] for r in rows if r["key"] == "a"] == [0, 1, 99]
    assert {r["reason"] for r in rows if r["value"] is None} == {"ZeroDivisionError: the sensor is broken"}
    assert report.status == "partial"
    assert report.reason == "ZeroDivisionError: the sensor is broken"


def test_sampler_that_rests_is_not_woken(tmp_path: Path) -> None:
    sampler = FakeSampler(enough=3)
    sample = sampler.sample

    def sample_and_rest() -> Iterator[Reading]:
        yield from sample()
        sampler.rest_s = 3600.0 if sampler.reads == 3 else 0.0

    sampler.sample = sample_and_rest  # type: ignore[method-assign]
    log = ArrowLog(tmp_path / "fake.arrow", sample_schema)
    thread = SamplerThread(sampler, log)
    thread.start()
    assert sampler.done.wait(30)
    time.sleep(0.1)  # a hundred ticks
    assert thread.stop().status == "ok"
    assert sampler.reads == 3


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    sampler = FakeSampler()
    thread = SamplerThread(sampler, ArrowLog(tmp_path / "fake.arrow", sample_schema))
    thread.start()
    assert sampler.done.wait(30)
    assert thread.stop().status == thread.stop().status == "ok"
    assert sampler.closed == 1


def test_warning_of_the_sampler_makes_it_partial(tmp_path: Path) -> None:
    sampler = FakeSampler()
    sampler.warning = "one sensor fell silent"
    report, _ = run(sampler, tmp_path)
    assert (report.status, report.reason) == ("partial", "one sensor fell silent")


def test_value_that_is_not_finite_becomes_a_reason(tmp_path: Path) -> None:
    sampler = FakeSampler()
    sampler.close = lambda: iter([Reading(1, "b", "level_m", math.inf)])  # type: ignore[method-assign]
    _, rows = run(sampler, tmp_path)
    (row,) = [row for row in rows if row["key"] == "b"]
    assert (row["value"], row["reason"]) == (None, "not a finite number")


def test_sampler_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "stop_limit_s", 0.1)
    release = threading.Event()
    sampler = FakeSampler()

    def hang() -> Iterator[Reading]:
        sampler.done.set()
        release.wait(30)
        return iter(())

    sampler.sample = hang  # type: ignore[method-assign]
    report, _ = run(sampler, tmp_path)
    release.set()
    assert report.status == "n/a"
    assert report.reason == "did not stop within 0.1 s"


def test_log_that_cannot_be_written_is_a_reason_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ArrowLog(tmp_path / "fake.arrow", sample_schema)
    sampler = FakeSampler()
    sampler.close = lambda: iter([Reading(1, "b", "level_m", "no number")])  # type: ignore[arg-type, method-assign]
    monkeypatch.setattr(math, "isfinite", lambda value: True)
    thread = SamplerThread(sampler, log)
    thread.start()
    assert sampler.done.wait(30)
    assert "could not be written" in str(thread.stop().reason)


def test_schedule_keeps_to_its_grid() -> None:
    schedule = Schedule(10, start_s=100, jitter=lambda: 0.5)  # in the middle: no shift
    assert schedule.delay_s(100) == 0
    assert schedule.delay_s(103) == 7
    assert schedule.delay_s(110.5) == 9.5


def test_schedule_skips_what_was_missed() -> None:
    schedule = Schedule(10, start_s=100, jitter=lambda: 0.5)
    schedule.delay_s(100)
    assert schedule.delay_s(147) == 0  # the tick at 140 is overdue, those before are gone
    assert schedule.delay_s(147) == 3


def test_schedule_shifts_by_a_tenth_at_most_and_never_takes_a_tick_twice() -> None:
    early, late = Schedule(10, 100, jitter=lambda: 0.0), Schedule(10, 100, jitter=lambda: 1.0)
    for schedule in (early, late):
        schedule.delay_s(100)
    assert (early.delay_s(100), late.delay_s(100)) == (9, 11)
    assert early.delay_s(109) == 10  # tick 1 was taken at 109; next is tick 2, at 119


def test_schedule_can_pause() -> None:
    schedule = Schedule(10, start_s=100, jitter=lambda: 0.5)
    schedule.delay_s(100)
    schedule.skip(30)
    assert schedule.delay_s(100) == 40


@pytest.mark.parametrize("period", [1, 2, 3, 5, 0.75, 1.25])
def test_jitter_meets_every_part_of_a_periodic_load_equally_often(period):
    """A load that is busy for the first quarter of its period, sampled within ticks of one second."""
    jitter, ticks = even_jitter(), 2000
    met = sum(((tick + jitter()) % period) < period / 4 for tick in range(ticks))
    assert abs(met / ticks - 0.25) < 0.01  # random jitter is further off once in three times


def test_jitter_starts_anywhere():
    assert len({even_jitter()() for _ in range(20)}) == 20
