"""Which devices have which roles, what they allow together, and which has time to spare."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from profiler.device_places import DevicePlaces, idlest_device, places_of
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play


def timeline_of(path: Path) -> Timeline:
    return Timeline.of(Run.open(path))


@pytest.mark.parametrize(
    ("places", "target", "drafter", "allowed"),
    [
        (DevicePlaces(0, 0, 1), 200.0, 400.0, 400 / 3),  # times add
        (DevicePlaces(0, 0, 3), 200.0, 400.0, 400.0),
        (DevicePlaces(1, 0, 1), 100.0, 100.0, 100.0),  # the second target would only be in the drafter's way
        (
            DevicePlaces(1, 0, 1),
            100.0,
            400.0,
            160.0,
        ),  # both are full
        (DevicePlaces(0, 1, 1), 100.0, 400.0, 100.0),  # one device for targets, all of it
        (DevicePlaces(2, 0, 1), 100.0, 100.0, 100.0),
    ],
)
def test_what_shared_devices_allow(
    places: DevicePlaces, target: float, drafter: float, allowed: float
) -> None:
    assert places.allowed(target, drafter) == pytest.approx(allowed)


def test_devices_of_targets_and_drafters_are_compared(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", windows=12))

    def on(device: str) -> DevicePlaces:
        return places_of(dataclasses.replace(timeline, devices=timeline.devices.assign(device=device)))

    assert places_of(timeline) == DevicePlaces(3, 1, 0)
    assert on("cuda:0") == DevicePlaces(0, 0, 1)
    assert on("cuda:0").all_shared
    assert not on("cpu").shared


def test_more_targets_than_drafters_share_devices_and_not_all(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", windows=12, targets=2))
    place = timeline.devices["index"].where(timeline.devices["stage"] == "target", 0).astype(str)
    mixed = dataclasses.replace(timeline, devices=timeline.devices.assign(device="cuda:" + place))
    assert places_of(mixed) == DevicePlaces(1, 0, 1)
    assert places_of(mixed).partly_shared


def test_the_idlest_device_is_that_whose_roles_work_least(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", windows=12, forward_s=1.0, backward_s=0.25))
    found = idlest_device(timeline)
    assert found is not None
    assert "drafter" in found[0]
    assert found[1] < 0.9
    nowhere = dataclasses.replace(timeline, devices=timeline.devices.assign(device="cpu"))
    assert idlest_device(nowhere) is None
