"""From events to named numbers at steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash.contract.events import Probe
from dflash.trackers.figures import FigureReader, Point

note = {
    "loss": 7.5,
    "accuracy": 0.25,
    "slot_accuracy": [0.5, None, 0.0],
    "grad_norm": 1.5,
    "lr": 1e-3,
    "supervised_tokens": 40,
    "states_absent": 0,
}


class Points:
    """A sink that reads."""

    def __init__(self) -> None:
        self.reader, self.found = FigureReader(), list[Point]()

    def append(self, row: tuple[Any, ...]) -> None:
        self.found += self.reader.read(row)


def emit(points: Points) -> Probe:
    return Probe(points, "trainer")


def test_a_window_is_a_point_at_the_steps_made_with_what_is_known() -> None:
    points = Points()
    emit(points).mark("window", t_ns=10**9, window=41, tokens=1000, note=json.dumps(note))
    (point,) = points.found
    assert point.step == 42
    assert point.values == {
        "train/loss": 7.5,
        "train/accuracy": 0.25,
        "train/grad_norm": 1.5,
        "train/lr": 1e-3,
        "train/supervised_tokens": 40.0,
        "train/states_absent": 0.0,
        "train_slots/accuracy_01": 0.5,
        "train_slots/accuracy_03": 0.0,
    }


def test_speed_is_the_tokens_of_a_window_by_the_time_since_the_one_before() -> None:
    points = Points()
    for step, t_ns in enumerate((10**9, 3 * 10**9, 3 * 10**9)):
        emit(points).mark("window", t_ns=t_ns, window=step, tokens=1000, note=json.dumps(note))
    assert [point.values.get("speed/tokens_per_s") for point in points.found] == [None, 500.0, None]


def test_gauges_go_with_the_next_window_and_no_further() -> None:
    points, probe = Points(), emit(Points())
    probe = emit(points)
    for depth in (1, 2):
        probe.gauge("depth", depth, channel="q_hs.0")
    probe.gauge("allocated_bytes", 5e9, device="cuda:0")
    probe.gauge("peak_allocated_bytes", 6e9, device="cuda:0")
    for step in range(2):
        probe.mark("window", window=step, tokens=1, note=json.dumps(note))
    first, second = points.found
    assert (first.values["queues/q_hs.0"], first.values["memory/cuda:0 allocated_bytes"]) == (2.0, 5e9)
    assert not [name for name in second.values if name.startswith(("queues", "memory"))]


def test_an_evaluation_is_a_point_of_its_own() -> None:
    points = Points()
    told = {"step": 7, "loss": 3.0, "accuracy": None, "acceptance_length": 2.25, "slot_accuracy": [0.5]}
    emit(points).mark("evaluation", window=6, note=json.dumps(told))
    (point,) = points.found
    assert (point.step, point.values) == (
        7,
        {"held_out/loss": 3.0, "held_out/acceptance_length": 2.25, "held_out_slots/accuracy_01": 0.5},
    )


@pytest.mark.parametrize("loss", ["NaN", "Infinity"])
def test_what_is_not_finite_is_left_out(loss: str) -> None:
    points = Points()
    emit(points).mark("window", window=0, tokens=1, note=f'{{"loss": {loss}, "lr": 0.5}}')
    assert points.found[0].values == {"train/lr": 0.5}


def test_spans_and_other_marks_are_none() -> None:
    points = Points()
    with emit(points).span("forward"):
        emit(points).mark("take", note="home")
    assert points.found == []
