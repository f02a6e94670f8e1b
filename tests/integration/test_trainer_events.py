"""What a running trainer emits beside its spans: allocator gauges at their own pace, warnings of losses."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dflash import trainer as trainer_module
from dflash.batch import WindowInfo
from dflash.contract.config import load_config
from dflash.contract.events import Probe, event_schema
from dflash.devices import LogicalDevice
from dflash.loss_health import LossHealth
from dflash.trainer import prepare
from dflash.window_figures import WindowFigures
from tests.small_training import on_logical_devices

small = (*on_logical_devices, "run.max_steps=4")


class Rows(list[dict[str, Any]]):
    def append(self, row: Any) -> None:
        super().append(dict(zip(event_schema.names, row, strict=True)))


def run(*changes: str) -> Rows:
    rows = Rows()
    prepare(load_config(None, (*small, *changes)), probe=Probe(rows, "trainer")).run()
    return rows


@pytest.fixture
def with_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogicalDevice, "memory_figures", lambda self: {"allocated_bytes": 7.0})


@pytest.mark.usefixtures("with_allocator")
@pytest.mark.parametrize(("every_s", "least", "most"), [(3600.0, 4, 4), (0.0, 6, 10**6)])
def test_allocators_are_read_by_the_clock_and_not_by_windows(
    monkeypatch: pytest.MonkeyPatch, every_s: float, least: int, most: int
) -> None:
    """Of two devices: at the start, by the clock, and at the end, which has the peaks."""
    monkeypatch.setattr(trainer_module, "memory_every_s", every_s)
    gauges = [row for row in run() if row["name"] == "allocated_bytes"]
    assert least <= len(gauges) <= most
    assert {(row["device"], row["value"]) for row in gauges} == {("logical:0", 7.0), ("logical:1", 7.0)}


def test_a_loss_that_is_not_healthy_is_a_warning_in_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_self: LossHealth, window: WindowInfo, figures: WindowFigures) -> list[str]:
        assert figures.loss > 0
        return ["it stands still"] if window.step == 2 else []

    monkeypatch.setattr(LossHealth, "check", check)
    (warning,) = [row for row in run() if row["name"] == "warning"]
    assert (warning["kind"], warning["window"], warning["stage"]) == ("mark", 2, "trainer")
    assert warning["note"] == "it stands still"


def test_threads_ask_for_the_gil_as_soon_as_the_knob_says_while_they_run() -> None:
    before, seen = sys.getswitchinterval(), set[float]()
    trainer = prepare(load_config(None, (*small, "pipeline.switch_interval_ms=0.25")))
    trainer.window_done = lambda window, figures: seen.add(sys.getswitchinterval())
    trainer.run()
    assert [*seen] == [pytest.approx(0.25e-3)]
    assert sys.getswitchinterval() == before
