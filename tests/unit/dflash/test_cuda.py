"""DeviceClock's arithmetic, on a pretended device whose clock runs apart from the host's."""

from __future__ import annotations

import pytest
import torch

import dflash.cuda
from dflash.cuda import DeviceClock


class World:
    """One true time; the device counts it from another zero, and drifts against the host by some ppm."""

    def __init__(self) -> None:
        self.true_ns, self.drift_ppm = 10**12, 0.0
        self.record_ns = [2_000]  # how long each record-and-wait takes; the last one repeats

    def host_ns(self) -> int:
        return self.true_ns

    def device_ms(self) -> float:
        return (self.true_ns * (1 + self.drift_ppm * 1e-6) + 777_777) / 1e6

    def event(self, *, timed: bool = False, blocking: bool = False) -> FakeEvent:
        assert timed
        return FakeEvent(self)


class FakeEvent:
    """Passed in the middle of the time that recording takes."""

    def __init__(self, world: World) -> None:
        self.world, self.ms = world, 0.0

    def record(self, stream: object) -> None:
        cost_ns = self.world.record_ns[0]
        if len(self.world.record_ns) > 1:
            self.world.record_ns.pop(0)
        self.world.true_ns += cost_ns // 2
        self.ms = self.world.device_ms()
        self.world.true_ns += cost_ns - cost_ns // 2

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return torch.tensor(end.ms - self.ms, dtype=torch.float32).item()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(dflash.cuda, "open_stream", lambda device: None)
    monkeypatch.setattr(dflash.cuda, "_new_event", world.event)
    return world


def measured(world: World, clock: DeviceClock, after_s: float, length_ns: int) -> tuple[int, int]:
    """Errors of start and end, in ns, of a span that begins `after_s` from now."""
    world.true_ns += round(after_s * 1e9)
    start, end = FakeEvent(world), FakeEvent(world)
    start.ms, start_ns = world.device_ms(), world.true_ns
    world.true_ns += length_ns
    end.ms, end_ns = world.device_ms(), world.true_ns
    found = clock.span_ns(start, end)
    return found[0] - start_ns, found[1] - end_ns


def test_spans_land_on_the_host_clock(world: World) -> None:
    clock = DeviceClock(torch.device("cpu"), world.host_ns)
    for after_s in (0.001, 1.0, 5.0):
        assert max(map(abs, measured(world, clock, after_s, 3_000_000))) < 2_000


def test_the_surest_of_three_anchors_counts(world: World) -> None:
    world.record_ns = [900_000, 2_000, 500_000, 2_000]
    clock = DeviceClock(torch.device("cpu"), world.host_ns)
    assert max(map(abs, measured(world, clock, 1.0, 1_000))) < 2_000


def test_a_new_anchor_is_set_in_time_to_follow_drift(world: World) -> None:
    world.drift_ppm = 50.0
    clock = DeviceClock(torch.device("cpu"), world.host_ns)
    measured(world, clock, 3600.0, 1_000)  # 180 ms of drift without an anchor in between
    assert max(map(abs, measured(world, clock, 9.0, 1_000))) < 1_000_000


def test_a_doubtful_anchor_does_not_replace_a_sure_one(world: World) -> None:
    clock = DeviceClock(torch.device("cpu"), world.host_ns)
    sure = clock._anchor
    world.record_ns = [5_000_000]
    measured(world, clock, 11.0, 1_000)
    assert clock._anchor is sure
    world.record_ns = [2_000]
    measured(world, clock, 11.0, 1_000)
    assert clock._anchor is not sure
