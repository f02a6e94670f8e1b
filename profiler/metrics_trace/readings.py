"""What a trace says of GPUs, host, GIL and launches, as samples under the names that our own samplers use.

A figure that the file lacks has no rows; one that it has in places has rows there. Knows nothing of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from profiler.metrics_trace.reader import MetricsTrace

gib: Final = 2.0**30
mib: Final = 2.0**20
sweeps_per_s: Final = 1000.0  # the GIL's wait share becomes two counts, as if looked at so often
gpu_metrics: Final = {  # field: metric, factor
    "util": ("util_pct", 1.0),
    "power_w": ("power_w", 1.0),
    "limit_w": ("power_limit_w", 1.0),
    "mem_gib": ("mem_used_bytes", gib),
    "sm_mhz": ("sm_clock_mhz", 1.0),
    "temp_c": ("temp_c", 1.0),
    "throttle": ("throttle_reasons", 1.0),
}
no_file_pages: Final = "the file does not tell pages of files from anonymous ones: they are in rss_anon_bytes"


class Reading(NamedTuple):
    """A sample, at a time since the trace's start."""

    t_s: float
    source: str
    key: str
    metric: str
    value: float | None
    reason: str | None = None


def read_samples(trace: MetricsTrace, gpu_names: dict[str, str], thread_keys: list[str]) -> Iterator[Reading]:
    """All samples of a trace. `thread_keys`: the stage threads, as the host sampler names threads."""
    rows = trace.rows.assign(end_s=trace.rows["start_s"] + trace.rows["length_s"])
    yield from _gpus(trace, rows, gpu_names)
    yield from _memory(rows)
    yield from _levels(rows, "launches_s", "trainer", "*", "launches_per_s")
    yield from _levels(rows, "copies.d2h_gbps", "trainer", "*", "d2h_gb_per_s")
    yield from _totals(rows, "host.cpu_cores", "host", "tree", "cpu_s")
    if rows["gil.wait_frac"].notna().any():
        yield from _gil(rows, thread_keys)


def _gpus(trace: MetricsTrace, rows: pd.DataFrame, names: dict[str, str]) -> Iterator[Reading]:
    at_s = rows["start_s"].to_numpy()
    for key, mine in trace.gpus.groupby("gpu", sort=False):
        times = at_s[mine["row"].to_numpy()]
        for column, (metric, factor) in gpu_metrics.items():
            yield from _known(times, mine[column] * factor, "gpu", names[str(key)], metric)
        yield from _known(times, mine["d2h_gbps"], "trainer", names[str(key)], "d2h_gb_per_s")


def _memory(rows: pd.DataFrame) -> Iterator[Reading]:
    shared = rows["host.shmem_gib"]
    rest = rows["host.rss_gib"] - shared.fillna(0)
    yield from _known(rows["start_s"], rest.clip(lower=0) * gib, "host", "tree", "rss_anon_bytes")
    yield from _levels(rows, "host.shmem_gib", "host", "tree", "rss_shmem_bytes", gib)
    yield from _levels(rows, "host.limit_gib", "host", "machine", "mem_limit_bytes", gib)
    yield from _levels(rows, "host.avail_gib", "host", "machine", "mem_available_bytes", gib)
    if rest.notna().any():
        yield Reading(0.0, "host", "tree", "rss_file_bytes", None, no_file_pages)
    for metric in ("swap_in_bytes", "swap_out_bytes"):  # one rate for both: half of it each, the sum is right
        yield from _totals(rows, "host.swap_mib_s", "host", "machine", metric, mib / 2)


def _gil(rows: pd.DataFrame, thread_keys: list[str]) -> Iterator[Reading]:
    """One share for all threads becomes the same counts for each of them."""
    known = rows.assign(sweeps=np.where(rows["gil.wait_frac"].notna(), sweeps_per_s, np.nan))
    yield from _totals(known, "sweeps", "gil_wait", "*", "gil_sweeps")
    for key in thread_keys:
        yield from _totals(known, "gil.wait_frac", "gil_wait", key, "gil_wait_samples", sweeps_per_s)


def _levels(
    rows: pd.DataFrame, column: str, source: str, key: str, metric: str, factor: float = 1.0
) -> Iterator[Reading]:
    yield from _known(rows["start_s"], rows[column] * factor, source, key, metric)


def _totals(
    rows: pd.DataFrame, column: str, source: str, key: str, metric: str, factor: float = 1.0
) -> Iterator[Reading]:
    """A rate as a count that rises through each interval; intervals without the rate leave it where it is."""
    values = rows[column]
    if not values.notna().any():
        return
    total = (values.fillna(0) * factor * rows["length_s"]).cumsum()
    yield Reading(0.0, source, key, metric, 0.0)
    yield from _known(rows["end_s"], total.where(values.notna()), source, key, metric)


def _known(
    times: pd.Series | np.ndarray[tuple[int], np.dtype[np.float64]],
    values: pd.Series,
    source: str,
    key: str,
    metric: str,
) -> Iterator[Reading]:
    for t_s, value in zip(np.asarray(times, float), values.to_numpy(dtype=float), strict=True):
        if np.isfinite(value):
            yield Reading(float(t_s), source, key, metric, float(value))
