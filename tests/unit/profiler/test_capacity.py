"""What stages allow alone, and what a removed cost gives back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from profiler.capacity import (
    Loads,
    StageLoad,
    measure_capacities,
    measure_loads,
)
from profiler.device_places import DevicePlaces
from profiler.run import Run
from profiler.throughput import Throughput, measure_throughput
from profiler.timeline import Timeline
from tests.played_pipeline import play


def load(stage: str, *, busy: float = 0.0, rate: float | None = 100.0, **shares: float) -> StageLoad:
    parts = {name: shares.pop(name, 0.0) for name in ("host_copies", "peer_copies", "copy_wait")}
    waits = {name.replace("_q_", " q_"): share for name, share in shares.items()}
    rest = 1.0 - busy - sum(parts.values()) - sum(waits.values())
    facts = {"stage": stage, "threads": 1, "range_s": 100.0, "batches": 50.0, "tokens_per_s": rate}
    return StageLoad(busy=busy, waits=waits, unaccounted=rest, **parts, **facts)  # type: ignore[arg-type]


def throughput(tokens_per_s: float | None) -> Throughput:
    unknown = dict.fromkeys(
        ("low", "high", "samples_per_s", "processed_tokens_per_s", "supervised_tokens_per_s")
    )
    counts = dict.fromkeys(("windows_used", "windows_seen", "windows_set_aside"), 0)
    reason = "too few" if tokens_per_s is None else None
    return Throughput(
        tokens_per_s=tokens_per_s, warmup_s=None, range_s=None, reason=reason, **unknown, **counts
    )


def timeline_of(path: Path) -> Timeline:
    return Timeline.of(Run.open(path))


def test_shares_of_a_stage_add_up_to_one(tmp_path: Path) -> None:
    loads = measure_loads(timeline_of(play(tmp_path / "run", target_copy_s=0.3, preset="host", drafters=2)))
    assert loads is not None
    for stage in (loads.prefetch, loads.target, loads.drafter):
        assert stage is not None
        assert stage.busy + stage.copies + stage.waiting + stage.unaccounted == pytest.approx(1.0)


def test_each_stage_alone_has_the_pace_that_was_played(tmp_path: Path) -> None:
    timeline = timeline_of(
        play(tmp_path / "run", jitter=0.0, optimizer_s=0.0, target_copy_s=0.25, preset="host")
    )
    loads = measure_loads(timeline)
    capacities = measure_capacities(loads, measure_throughput(timeline))
    assert capacities.targets_alone == pytest.approx(3 * 1000 / 1.0, rel=0.01)
    assert capacities.drafters_alone == pytest.approx(1000 / 0.2, rel=0.01)
    assert capacities.prefetch_alone == pytest.approx(1000 / 0.02, rel=0.01)
    assert capacities.limit == "target"
    assert capacities.pipeline_efficiency == pytest.approx(1 / 1.25, rel=0.02)  # the copy is no work
    assert capacities.reason is None


def test_roles_on_one_device_add_their_times() -> None:
    loads = Loads(None, load("target", busy=0.5), load("drafter", busy=0.25))
    capacities = measure_capacities(loads, throughput(100.0), DevicePlaces(0, 0, 1))
    assert capacities.pipeline_efficiency == pytest.approx(0.75)
    assert capacities.limit == "shared device"


def test_unknown_paces_stay_unknown_with_a_reason() -> None:
    loads = Loads(None, load("target", busy=0.5, rate=None), load("drafter", busy=0.25))
    capacities = measure_capacities(loads, throughput(None))
    assert capacities.targets_alone is capacities.pipeline_efficiency is capacities.limit is None
    assert capacities.reason == "no work with token counts was recorded for: prefetch, targets; too few"
    assert loads.lost_share(target=0.3) is None
    assert measure_capacities(None, throughput(None)).drafters_alone is None


def test_a_cost_counts_only_until_the_next_limit() -> None:
    target = load("target", busy=0.6, host_copies=0.4)
    idle = Loads(None, target, load("drafter", busy=0.2, get_q_hs=0.8))
    close = Loads(None, target, load("drafter", busy=0.9, get_q_hs=0.1))
    assert idle.lost_share(target=0.4) == pytest.approx(0.4)
    assert close.lost_share(target=0.4) == pytest.approx(0.1)
    assert close.lost_share() == 0.0


def test_a_cost_gives_back_its_own_time_and_no_wait_for_another_reason() -> None:
    # Both stages wait, and not for each other: what held them up is not among the costs.
    target = load("target", busy=0.64, host_copies=0.06, put_q_hs=0.3)
    loads = Loads(None, target, load("drafter", busy=0.28, get_q_hs=0.72))
    assert loads.lost_share(target=0.06) == pytest.approx(0.06)


def test_a_shared_device_that_hardly_idles_makes_other_costs_cheap() -> None:
    """Copies on the stages' own threads, while the device works for the other."""
    target = load("target", busy=0.5, host_copies=0.4, device_wait=0.1)
    loads = Loads(None, target, load("drafter", busy=0.45, device_wait=0.55), device_work=0.95)
    assert loads.lost_share(target=0.4, drafter=0.5) == pytest.approx(0.05)
    elsewhere = dataclasses.replace(loads, device_work=0.0)
    assert elsewhere.lost_share(target=0.4, drafter=0.5) == pytest.approx(0.4)


def test_the_work_of_shared_logical_devices_is_that_of_both_roles(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", windows=12, forward_s=1.0, backward_s=0.25))
    together = dataclasses.replace(timeline, devices=timeline.devices.assign(device="logical:0"))
    apart, one = measure_loads(timeline), measure_loads(together)
    assert apart is not None
    assert one is not None
    assert apart.device_work == 0.0
    assert one.device_work == pytest.approx(min(3 * one.target.busy + one.drafter.busy, 1.0))
    on_gpus = measure_loads(dataclasses.replace(together, emulated=False))
    assert on_gpus is not None
    assert on_gpus.device_work == 0.0


def test_a_slow_prefetch_makes_other_costs_free() -> None:
    target, drafter = load("target", busy=0.3, host_copies=0.3, get_q_pre=0.4), load("drafter", busy=0.2)
    assert Loads(load("prefetch", busy=1.0), target, drafter).lost_share(target=0.3) == 0.0


def test_a_queue_that_is_still_filling_means_that_drafters_limit() -> None:
    # The targets have not been blocked yet, but produce twice what is used.
    loads = Loads(None, load("target", busy=1.0, rate=200.0), load("drafter", busy=0.3, peer_copies=0.7))
    assert loads.drafters_limit
    assert loads.lost_share(drafter=0.7) == pytest.approx(0.5)


def test_where_hardly_anybody_waits_the_fuller_stage_limits() -> None:
    full, idle = {"busy": 0.35, "host_copies": 0.56}, {"busy": 0.41, "host_copies": 0.15}
    copying = Loads(None, load("target", **full, put_q_hs=0.0002), load("drafter", **idle, get_q_hs=0.0001))
    assert not copying.drafters_limit
    other = Loads(None, load("target", **idle, put_q_hs=0.0002), load("drafter", **full, get_q_hs=0.0001))
    assert other.drafters_limit
    blocked = Loads(None, load("target", **full, put_q_hs=0.02), load("drafter", **idle, get_q_hs=0.0001))
    assert blocked.drafters_limit
