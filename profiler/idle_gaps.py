"""When a GPU of a run stood still for 100 ms or more: from its power every 20 ms and from its stage's events.

Power falls toward its idle floor where nothing runs, whoever fails to give work; events know when the stage
enqueued nothing, to the microsecond, but not what other streams did. Where both are there, both must agree,
but for power so low that nothing can have run. Pure but for `find_idle_gaps`, which reads a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.intervals import Intervals, between, common_part, covered, merged, none
from profiler.run import Run

gap_columns: Final = ["key", "device", "role", "index", "start_s", "end_s", "seconds", "common", "evidence"]
least_s: Final = 0.1
power_delay_s: Final = 0.0  # of the driver's series behind the GPU; benchmarks/idle_gaps.py tells
_blur_s: Final = 0.03  # by which 20 ms samples may misplace an edge
_surely: Final = 0.25  # of the way from idle to busy power: a gap must fall below it
_shoulder: Final = 5  # samples beside a gap, from whose power down to idle the middle is its edge
_fell: Final = 0.6  # a gap that events tell must have brought power below it
_still: Final = 0.2  # below it nothing runs, whatever events tell
_least_contrast: Final = 0.5  # idle over busy power: a trace with more never was idle
_idle_limit_share: Final = 0.4  # of the power limit: what draws more is not idle
never_idle: Final = "power never fell near idle"
_silence_s: Final = 0.5  # between samples: what lies in it is unknown
# Told on the host clock by some trainers; where the GPU's is there, the host's is only the enqueueing.
_gpu_host_work: Final = ("gather", "sum", "optimizer", "validate")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Activity:
    """Power between the idle floor (0) and busy (1), over time in seconds."""

    t_s: Floats
    level: Floats

    def lowest(self, start_s: float, end_s: float) -> float:
        """The least level in a time; NaN where there is no sample."""
        inside = self.level[(self.t_s >= start_s) & (self.t_s <= end_s)]
        return float(inside.min()) if len(inside) else np.nan


def read_activity(t_s: Floats, watts: Floats, limit_w: float | None = None) -> Activity | str:
    """Power as activity, or why there is none: `never_idle`, or the trace does not tell."""
    known = np.isfinite(watts)
    t_s, watts = t_s[known], watts[known]
    if len(watts) < 10:
        return "too few power samples"
    floor_w = float(_median_of_three(watts).min())
    busy_w = float(np.percentile(watts, 90))
    if limit_w is not None and floor_w > _idle_limit_share * limit_w:
        return never_idle
    if floor_w > _least_contrast * busy_w:
        return "power hardly varied: always idle, or always at one load"
    return Activity(t_s, np.clip((watts - floor_w) / (busy_w - floor_w), 0.0, 1.0))


def power_gaps(activity: Activity, least: float = least_s) -> Intervals:
    """Times of low power, between crossings of half the power beside them, which a mean leaves in place."""
    t_s, level = activity.t_s, activity.level
    low = np.r_[False, level < _surely, False]
    starts, ends = np.flatnonzero(low[1:] & ~low[:-1]), np.flatnonzero(~low[1:] & low[:-1]) - 1
    pieces = []
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        bottom = first + int(level[first : last + 1].argmin())
        before, after = level[max(first - _shoulder, 0) : first], level[last + 1 : last + 1 + _shoulder]
        pieces.append((_edge(t_s, level, bottom, before, -1), _edge(t_s, level, bottom, after, 1)))
    found = merged(pieces) if pieces else none
    silent = np.flatnonzero(np.diff(t_s) > _silence_s)
    unknown = merged(np.column_stack([t_s[silent], t_s[silent + 1]])) if len(silent) else none
    if len(unknown) and len(found):
        found = common_part(found, between(unknown, float(t_s[0]), float(t_s[-1])))
    return found[found[:, 1] - found[:, 0] >= least - _blur_s]


def combine(
    activity: Activity | None, working: Intervals | None, low_s: float, high_s: float
) -> list[tuple[float, float, str]]:
    """Gaps with their evidence: `events+power`, `power` or `events`, in time order.

    `working` are the times for which the stage's events tell device work; None: no such events.
    """
    by_power = none if activity is None else power_gaps(activity)
    if working is None or not len(working):
        return [(start, end, "power") for start, end in by_power]
    told = between(working, low_s, high_s)
    told = told[told[:, 1] - told[:, 0] >= least_s]
    if activity is None:
        return [(start, end, "events") for start, end in told]
    found = [
        (start, end, "events+power") for gap in told for start, end in _confirmed(gap, activity, by_power)
    ]
    seen = merged([(start, end) for start, end, _ in found]) if found else none
    found += [
        (start, end, "power")
        for start, end in by_power
        if covered((start, end), seen) < 0.5 and activity.lowest(start, end) < _still
    ]
    return sorted(found)


def find_idle_gaps(
    run: Run, gpus: pd.DataFrame, lo_ns: int, hi_ns: int
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Idle gaps of the GPUs in `gpus` (`measure_gpus`), and for each GPU without any basis the reason.

    `common`: whether all targets' GPUs stood still for half of the gap at least; None without targets.
    """
    origin = run.start_ns
    low_s, high_s = (lo_ns - origin) / 1e9, (hi_ns - origin) / 1e9
    found: dict[str, list[tuple[float, float, str]]] = {}
    reasons: dict[str, str] = {}
    for gpu in gpus.to_dict("records"):
        activity = _activity_of(run, gpu, lo_ns, hi_ns)
        working = _working(run, gpu["device"], lo_ns, hi_ns)
        if isinstance(activity, str) and activity != never_idle and (working is None or not len(working)):
            reasons[gpu["key"]] = f"{activity}, and no event tells work of {gpu['device']}"
            continue
        usable = None if isinstance(activity, str) else activity
        found[gpu["key"]] = [] if activity == never_idle else combine(usable, working, low_s, high_s)
    return _tabulate(found, gpus), reasons


def _tabulate(found: dict[str, list[tuple[float, float, str]]], gpus: pd.DataFrame) -> pd.DataFrame:
    idle = {key: merged([gap[:2] for gap in gaps]) if gaps else none for key, gaps in found.items()}
    targets = [idle[key] for key in gpus.loc[gpus["role"].isin(["target", "shared"]), "key"] if key in idle]
    everywhere = targets[0] if targets else none
    for other in targets[1:]:
        everywhere = common_part(everywhere, other)
    rows: list[dict[str, Any]] = [
        {
            **{name: gpu[name] for name in ("key", "device", "role", "index")},
            "start_s": start,
            "end_s": end,
            "seconds": end - start,
            "common": covered((start, end), everywhere) >= 0.5 if targets else None,
            "evidence": evidence,
        }
        for gpu in gpus.to_dict("records")
        for start, end, evidence in found.get(gpu["key"], [])
    ]
    return pd.DataFrame(rows, columns=gap_columns)


def _activity_of(run: Run, gpu: dict[Any, Any], lo_ns: int, hi_ns: int) -> Activity | str:
    """Levels come from the whole recording, which is idle at its ends at least; times from the range."""
    samples = run.samples
    mine = samples[(samples["key"] == gpu["key"]) & (samples["metric"] == "power_sample_w")]
    if not mine["value"].notna().any():
        return str(next(iter(mine["reason"].dropna()), "power samples were not recorded"))
    limit_w = float(gpu["power_limit_w"])
    t_s = (mine["t_ns"].to_numpy(dtype=np.int64) - run.start_ns) / 1e9 - power_delay_s
    whole = read_activity(t_s, mine["value"].to_numpy(dtype=float), limit_w if np.isfinite(limit_w) else None)
    if isinstance(whole, str):
        return whole
    inside = (whole.t_s >= (lo_ns - run.start_ns) / 1e9) & (whole.t_s <= (hi_ns - run.start_ns) / 1e9)
    return Activity(whole.t_s[inside], whole.level[inside]) if inside.sum() >= 2 else "too few power samples"


def _working(run: Run, device: str, lo_ns: int, hi_ns: int) -> Intervals | None:
    """Device work as the stages of a device told it, in seconds; None where nothing was timed on the GPU."""
    events = run.events
    spans = events[(events["kind"] == "span") & (events["device"] == device)]
    timed = spans["clock"] == "gpu"
    if not timed.any():
        return None
    host_only = [name for name in _gpu_host_work if name not in set(spans.loc[timed, "name"])]
    mine = spans[timed | spans["name"].isin(host_only)]
    starts = (mine["t_ns"].to_numpy(dtype=np.int64) - run.start_ns) / 1e9
    pieces = merged(np.column_stack([starts, starts + mine["dur_ns"].to_numpy(dtype=float) / 1e9]))
    low_s, high_s = (lo_ns - run.start_ns) / 1e9, (hi_ns - run.start_ns) / 1e9
    return merged(np.clip(pieces, low_s, high_s))


def _confirmed(gap: Floats, activity: Activity, by_power: Intervals) -> list[tuple[float, float]]:
    """What of a gap that events tell power agrees with: all of it, pieces, or nothing."""
    start, end = float(gap[0]), float(gap[1])
    if covered(gap, by_power) >= 0.5:
        return [(start, end)]
    pieces = common_part(by_power, gap.reshape(1, 2))
    long_ones = pieces[pieces[:, 1] - pieces[:, 0] >= least_s - _blur_s]
    if len(long_ones):
        return [(float(a), float(b)) for a, b in long_ones]
    # A gap little longer than the driver's own averaging leaves a dent only.
    is_short = end - start < 2.5 * least_s
    return [(start, end)] if is_short and activity.lowest(start, end + 2 * _blur_s) < _fell else []


def _edge(t_s: Floats, level: Floats, bottom: int, beside: Floats, step: int) -> float:
    """When the level crosses half of that beside a gap, seen from its bottom; else the end of the trace."""
    if not len(beside):
        return float(t_s[0 if step < 0 else -1])
    middle = (float(beside.max()) + float(level[bottom])) / 2
    place = bottom
    while level[place + step] < middle:
        place += step
    part = (middle - level[place]) / (level[place + step] - level[place])
    return float(t_s[place] + part * (t_s[place + step] - t_s[place]))


def _median_of_three(values: Floats) -> Floats:
    """One sample out of line does not set a level."""
    return np.median(np.column_stack([values[:-2], values[1:-1], values[2:]]), axis=1)
