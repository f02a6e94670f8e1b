"""Copies, queue depths and memory of two runs, side by side. Knows nothing of throughput or of noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from profiler.run import Run
from profiler.timeline import Timeline
from profiler.waits import family_of

_gpu_memory: Final = ("mem_used_bytes", "unified_mem_used_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of two runs. An unknown one is None and `reason` says why."""

    name: str
    unit: str  # s, bytes, batches, share, GB/s
    a: float | None
    b: float | None
    reason: str | None = None


def compare_copies(a: Timeline, b: Timeline) -> tuple[Figure, ...]:
    """What the copies of each stage and path take a batch; stage `link` copies beside the others."""
    tables = [_copies_by_path(timeline) for timeline in (a, b)]
    figures = []
    for stage, path in sorted(set(tables[0].index) | set(tables[1].index)):
        for column, name, unit, without in (  # a run without such copies spends nothing on them
            ("seconds", "time a batch", "s", 0.0),
            ("bytes", "bytes a batch", "bytes", 0.0),
            ("gb_per_s", "speed", "GB/s", None),
        ):
            values = [_cell(table, (stage, path), column, without) for table in tables]
            figures.append(
                _figure(
                    f"{stage} copies {path}: {name}",
                    unit,
                    values,
                    "no such copies, or without bytes,",
                )
            )
    return tuple(figures)


def compare_depths(a: Timeline, b: Timeline) -> tuple[Figure, ...]:
    """Mean depth and the share of time nearly full of each kind of channel, a mean over its channels."""
    tables = [
        timeline.depths.assign(family=[family_of(str(name)) for name in timeline.depths["channel"]])
        .groupby("family")[["mean", "high_share"]]
        .mean()
        for timeline in (a, b)
    ]
    figures = []
    for family in sorted(set(tables[0].index) | set(tables[1].index)):
        for column, name, unit in (("mean", "mean depth", "batches"), ("high_share", "nearly full", "share")):
            values = [_cell(table, family, column) for table in tables]
            figures.append(_figure(f"{family}: {name}", unit, values, "depth or capacity not recorded"))
    return tuple(figures)


def compare_memory(a: Run, b: Run, time_a: Timeline, time_b: Timeline) -> tuple[Figure, ...]:
    """Peaks over the steady range of host memory, of the fullest GPU, and of torch's allocator."""
    peaks = [_peaks(run, timeline) for run, timeline in ((a, time_a), (b, time_b))]
    return tuple(
        _figure(f"peak of {name}", "bytes", [peaks[0][name], peaks[1][name]], "not recorded")
        for name in peaks[0]
    )


def _peaks(run: Run, timeline: Timeline) -> dict[str, float | None]:
    samples = timeline.samples
    return {
        "host memory, anonymous": _peak(timeline.series("rss_anon_bytes")["value"]),
        "host memory, shared": _peak(timeline.series("rss_shmem_bytes")["value"]),
        "memory of the fullest GPU": _peak(samples.loc[samples["metric"].isin(_gpu_memory), "value"]),
        "torch's reserved memory on one device": _peak(_gauges(run, timeline, "reserved_bytes")),
        "torch's allocated memory on one device": _peak(_gauges(run, timeline, "allocated_bytes")),
    }


def _figure(name: str, unit: str, values: list[float | None], missing: str) -> Figure:
    unknown = [run for run, value in zip("AB", values, strict=True) if value is None]
    reason = f"{missing} in {' and '.join(unknown)}" if unknown else None
    return Figure(name=name, unit=unit, a=values[0], b=values[1], reason=reason)


def _copies_by_path(timeline: Timeline) -> pd.DataFrame:
    """Indexed by stage and path; seconds and bytes are of one batch that the targets made."""
    sums = timeline.copies.groupby(["stage", "path"])[["seconds", "bytes"]].sum(min_count=1)
    batches = float(timeline.service.loc[timeline.service["stage"] == "target", "batches"].sum()) or np.nan
    return pd.DataFrame(
        {
            "seconds": sums["seconds"] / batches,
            "bytes": sums["bytes"] / batches,
            "gb_per_s": (sums["bytes"] / 1e9 / sums["seconds"]).where(sums["seconds"] > 0),
        }
    )


def _cell(table: pd.DataFrame, row: object, column: str, without: float | None = None) -> float | None:
    if row not in table.index:
        return without
    value = float(table[column].to_dict()[row])
    return value if np.isfinite(value) else None


def _gauges(run: Run, timeline: Timeline, name: str) -> pd.Series:
    gauges = run.events[(run.events["kind"] == "gauge") & (run.events["name"] == name)]
    return gauges.loc[gauges["t_ns"].between(*timeline.range_ns), "value"]


def _peak(values: pd.Series) -> float | None:
    peak = values.max() if len(values) else np.nan
    return float(peak) if np.isfinite(peak) else None
