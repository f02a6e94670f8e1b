"""How full each channel was, weighted by time. Knows nothing of who waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.waits import family_of

high_level, low_level = 0.75, 0.25  # of capacity: nearly full, nearly empty
depth_columns = [
    "channel", "capacity", "covered_s", "mean", "p10", "p50", "p90",
    "full_share", "empty_share", "high_share", "low_share", "late_mean",
]  # fmt: skip
_capacity_knobs = {"q_pre": "pipeline.prefetch_depth", "q_hs": "transport.depth"}


def capacity_of(channel: str, config_values: Mapping[str, Any]) -> int | None:
    """The configured capacity of a channel; None when the run does not say."""
    value = config_values.get(_capacity_knobs.get(family_of(channel), ""))
    return value if isinstance(value, int) and value > 0 else None


def _told_capacities(events: pd.DataFrame, hi_ns: int) -> dict[str, int]:
    """What the run itself says of its channels: the last `capacity` gauge of each."""
    gauges = events[(events["kind"] == "gauge") & (events["name"] == "capacity") & (events["t_ns"] < hi_ns)]
    gauges = gauges[gauges["value"] > 0]
    return {str(name): int(value) for name, value in zip(gauges["channel"], gauges["value"], strict=True)}


def weigh_depths(
    events: pd.DataFrame, config_values: Mapping[str, Any], lo_ns: int, hi_ns: int
) -> pd.DataFrame:
    """One row a channel over [lo_ns, hi_ns): time-weighted mean, quantiles and shares of time.

    `high_share` and `low_share` are the time at 75 % of capacity or more and at 25 % or less. `late_mean` is
    the mean of the last quarter, which tells a queue that is still filling. Where the capacity is unknown,
    what needs it is NaN.
    """
    gauges = events[(events["kind"] == "gauge") & (events["name"] == "depth") & (events["t_ns"] < hi_ns)]
    late_ns = hi_ns - (hi_ns - lo_ns) // 4
    told = _told_capacities(events, hi_ns)
    rows = []
    for channel in sorted({str(name) for name in gauges["channel"]}):
        mine = gauges[gauges["channel"] == channel]
        times = mine["t_ns"].to_numpy(dtype=np.int64)
        depth = mine["value"].to_numpy(dtype=float)
        first = max(int(np.searchsorted(times, lo_ns, side="right")) - 1, 0)  # the value in force at lo_ns
        starts = times[first:].clip(lo_ns)
        seconds = np.diff(starts, append=hi_ns) / 1e9
        if len(starts) and seconds.sum() > 0:
            late = np.append(starts[1:], hi_ns).clip(late_ns) - starts.clip(late_ns)
            capacity = told.get(channel, capacity_of(channel, config_values))
            rows.append(_row(channel, capacity, depth[first:], seconds, late))
    return pd.DataFrame(rows, columns=depth_columns)


def _row(
    channel: str,
    capacity: int | None,
    depth: NDArray[np.float64],
    seconds: NDArray[np.float64],
    late: NDArray[np.int64],
) -> dict[str, Any]:
    weight = seconds / seconds.sum()
    order = np.argsort(depth, kind="stable")
    reached = np.cumsum(weight[order])

    def quantile(q: float) -> float:
        return float(depth[order][min(int(np.searchsorted(reached, q - 1e-12)), len(depth) - 1)])

    def share(mask: NDArray[np.bool_]) -> float:
        return float(weight[mask].sum())

    size = np.nan if capacity is None else capacity
    known = capacity is not None
    return {
        "channel": channel,
        "capacity": size,
        "covered_s": float(seconds.sum()),
        "mean": float((depth * weight).sum()),
        "p10": quantile(0.1),
        "p50": quantile(0.5),
        "p90": quantile(0.9),
        "full_share": share(depth >= size) if known else np.nan,
        "empty_share": share(depth <= 0),
        "high_share": share(depth >= high_level * size) if known else np.nan,
        "low_share": share(depth <= low_level * size) if known else np.nan,
        "late_mean": float((depth * late).sum() / late.sum()) if late.sum() > 0 else np.nan,
    }
