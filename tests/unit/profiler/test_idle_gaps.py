"""Idle gaps from synthetic power traces, whose true gaps are known, and from events beside them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from profiler import idle_gaps
from profiler.idle_gaps import combine, never_idle, power_gaps, read_activity
from profiler.intervals import Intervals, between, covered, merged, none

Floats = NDArray[np.float64]
fine_s = 0.001
seeds = range(3)


def true_gaps(seed: int, total_s: float = 60.0) -> Intervals:
    """Bursts of 0.15 to 0.9 s with gaps of 0.1 to 0.5 s between."""
    random = np.random.default_rng(seed)
    at_s, gaps = 0.5, []
    while at_s < total_s - 1:
        length_s = random.uniform(0.1, 0.5)
        gaps.append((at_s, at_s + length_s))
        at_s += length_s + random.uniform(0.15, 0.9)
    return merged(gaps)


def trace(
    gaps: Intervals,
    seed: int = 0,
    *,
    total_s: float = 60.0,
    mean_s: float = 0.0,
    decay_s: float = 0.0,
    noise_w: float = 15.0,
    light_w: float | None = None,
) -> tuple[Floats, Floats]:
    """What a driver would sample every 20 ms: 650 W at work (or now and then `light_w`), 120 W idle."""
    random = np.random.default_rng(seed + 1000)
    t_s = np.arange(0, total_s, fine_s)
    watts = np.full(len(t_s), 650.0)
    if light_w is not None:
        watts[(t_s // 0.7).astype(int) % 3 == 0] = light_w
    for start, end in gaps:
        watts[(t_s >= start) & (t_s < end)] = 120.0
    if mean_s:
        width = round(mean_s / fine_s)
        watts = np.convolve(np.r_[np.full(width - 1, watts[0]), watts], np.ones(width) / width, "valid")
    if decay_s:
        part = fine_s / decay_s
        for place in range(1, len(watts)):
            watts[place] = watts[place - 1] + part * (watts[place] - watts[place - 1])
    sampled = np.arange(7, len(t_s), 20) + random.integers(-2, 3, len(range(7, len(t_s), 20)))
    sampled = np.clip(sampled, 0, len(t_s) - 1)
    return t_s[sampled], watts[sampled] + random.normal(0, noise_w, len(sampled))


def score(found: Intervals, truth: Intervals) -> tuple[float, float]:
    """Recall and precision: a gap is found where half of it is."""
    recall = np.mean([covered(gap, found) >= 0.5 for gap in truth])
    precision = np.mean([covered(gap, truth) >= 0.5 for gap in found])
    return float(recall), float(precision)


shapes: dict[str, dict[str, float]] = {
    "sharp": {},
    "noisy": {"noise_w": 40.0},
    "mean of 50 ms": {"mean_s": 0.05},
    "mean of 100 ms": {"mean_s": 0.1},
    "ramp of 30 ms": {"decay_s": 0.03},
    "lighter work": {"light_w": 400.0},
    "light work, mean of 50 ms": {"light_w": 300.0, "mean_s": 0.05},
}


@pytest.mark.parametrize("shape", shapes)
def test_nearly_all_gaps_are_found_from_power_alone(shape: str) -> None:
    scores = []
    for seed in seeds:
        truth = true_gaps(seed)
        activity = read_activity(*trace(truth, seed, **shapes[shape]), 700.0)
        assert not isinstance(activity, str)
        scores.append(score(power_gaps(activity), truth))
    recall, precision = np.mean(scores, axis=0)
    assert recall >= 0.95
    assert precision >= 0.95


def test_edges_are_within_a_sample_or_two() -> None:
    truth = true_gaps(0)
    activity = read_activity(*trace(truth), 700.0)
    assert not isinstance(activity, str)
    found = power_gaps(activity)
    assert len(found) == len(truth)
    assert np.abs(found - truth).max() < 0.03


@pytest.mark.parametrize("change", [lambda w: w, lambda w: w * 0.5 + 300], ids=["full", "half"])
def test_gpu_that_never_idles_has_no_gaps(change: Callable[[Floats], Floats]) -> None:
    t_s, watts = trace(none)
    assert read_activity(t_s, change(watts), 700.0) == never_idle


def test_work_at_two_levels_is_no_gap() -> None:
    t_s, watts = trace(true_gaps(0))
    lifted = np.where(watts < 300, watts + 230, watts)  # 350 W where it was idle
    assert read_activity(t_s, lifted, 700.0) == never_idle


def test_gpu_that_is_always_idle_cannot_be_told_from_power() -> None:
    t_s, watts = trace(none)
    found = read_activity(t_s, watts * 0.18, 700.0)
    assert isinstance(found, str)
    assert found != never_idle


def test_silence_of_the_sensor_is_no_gap() -> None:
    t_s, watts = trace(merged([(5.0, 5.3), (40.0, 40.4)]))
    heard = (t_s < 20.0) | (t_s > 25.0)
    quiet = (t_s > 19.9) & (t_s < 25.1)
    watts = np.where(quiet, 120.0, watts)
    activity = read_activity(t_s[heard], watts[heard], 700.0)
    assert not isinstance(activity, str)
    assert all(end - start < 1 for start, end in power_gaps(activity))


def test_single_low_samples_are_no_gap() -> None:
    t_s, watts = trace(merged([(5.0, 5.5)]))
    watts[1000::50] = 120.0
    activity = read_activity(t_s, watts, 700.0)
    assert not isinstance(activity, str)
    assert len(power_gaps(activity)) == 1


def test_events_and_power_agree() -> None:
    truth = true_gaps(1)
    activity = read_activity(*trace(truth, 1, mean_s=0.1), 700.0)
    assert not isinstance(activity, str)
    found = combine(activity, between(truth, 0.0, 60.0), 0.0, 60.0)
    gaps = merged([(start, end) for start, end, _ in found])
    assert score(gaps, truth) == (1.0, 1.0)
    assert {evidence for _, _, evidence in found} == {"events+power"}


def test_work_that_no_event_tells_is_not_called_idle() -> None:
    truth = merged([(10.0, 10.3), (30.0, 30.4)])
    activity = read_activity(*trace(truth), 700.0)
    assert not isinstance(activity, str)
    told = merged(
        [(0.0, 10.0), (10.3, 20.0), (20.5, 30.0), (30.4, 60.0)]
    )  # 20.0 to 20.5: work without events
    found = combine(activity, told, 0.0, 60.0)
    assert [round(start) for start, _, _ in found] == [10, 30]


def test_part_of_an_untold_time_may_be_idle() -> None:
    activity = read_activity(*trace(merged([(10.6, 11.0), (30.0, 30.4)])), 700.0)
    assert not isinstance(activity, str)
    found = combine(activity, merged([(0.0, 10.0), (11.0, 30.0), (30.4, 60.0)]), 0.0, 60.0)
    start, end, evidence = found[0]
    assert (start, end) == pytest.approx((10.6, 11.0), abs=0.03)
    assert evidence == "events+power"


def test_stall_inside_work_that_events_tell_is_found_by_power() -> None:
    activity = read_activity(*trace(merged([(10.0, 10.4), (30.0, 30.4)])), 700.0)
    assert not isinstance(activity, str)
    found = combine(activity, merged([(0.0, 30.0), (30.4, 60.0)]), 0.0, 60.0)
    assert [evidence for _, _, evidence in found] == ["power", "events+power"]


def test_events_serve_alone_where_power_tells_nothing() -> None:
    found = combine(None, merged([(0.0, 1.0), (1.05, 2.0), (2.2, 3.0)]), 0.0, 3.5)
    assert found == [(2.0, 2.2, "events"), (3.0, 3.5, "events")]


def test_work_timed_on_the_gpu_is_not_read_from_the_host_too() -> None:
    # A step is only enqueued on the host, long before or after the GPU makes it.
    def row(name: str, clock: str, start_s: float, end_s: float) -> dict[str, object]:
        return {
            "kind": "span", "name": name, "clock": clock, "device": "cuda:0",
            "t_ns": int(start_s * 1e9), "dur_ns": int((end_s - start_s) * 1e9),
        }  # fmt: skip

    def working(*rows: dict[str, object]) -> list[list[float]]:
        run = SimpleNamespace(events=pd.DataFrame(rows), start_ns=0)
        found = idle_gaps._working(run, "cuda:0", 0, int(10e9))  # type: ignore[arg-type]
        assert found is not None
        return found.tolist()

    backward = row("backward", "gpu", 1, 2)
    assert working(backward, row("optimizer", "host", 5, 6)) == [[1, 2], [5, 6]]
    assert working(backward, row("optimizer", "host", 5, 6), row("optimizer", "gpu", 2, 3)) == [[1, 3]]
