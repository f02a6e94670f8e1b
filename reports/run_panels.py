"""What a run recorded over time, as panels: queues, throughput, loss, memory, GPUs; and why one is missing.

Covers the whole run, not only its steady part. Knows nothing of how panels are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from profiler.gpu_identity import gpu_uses
from profiler.run import Run
from profiler.steady import read_windows
from reports.series import Floats, Series
from reports.time_chart import Panel

_everything: Final = "*"  # the key of a reading that concerns a whole source
_memory_kinds: Final = {"rss_anon_bytes": "anonymous", "rss_shmem_bytes": "shared", "rss_file_bytes": "files"}
_gpu_panels: Final = (  # metric, title, unit, scale, ceiling
    ("util_pct", "GPU utilisation", "%", 1.0, 100.0),
    ("power_w", "GPU power", "W", 1.0, None),
    ("mem_used_bytes", "GPU memory", "GB", 1e-9, None),
)


def collect_panels(run: Run) -> tuple[Panel, ...]:
    """All panels in reading order. One without data has no series and a reason."""
    return (
        _depth_panel(run),
        _rate_panel(run),
        _note_panel(run, "loss", "Loss", "nats"),
        _note_panel(run, "accuracy", "Accuracy", "share"),
        _memory_panel(run),
        *(_gpu_panel(run, *panel) for panel in _gpu_panels),
    )


def _seconds(run: Run, t_ns: pd.Series) -> Floats:
    return (t_ns.to_numpy(dtype=np.int64) - run.start_ns) / 1e9


def _depth_panel(run: Run) -> Panel:
    events = run.events
    gauges = events[(events["kind"] == "gauge") & (events["name"] == "depth")]
    series = tuple(
        Series(
            name=str(channel),
            t_s=_seconds(run, mine["t_ns"]),
            values=mine["value"].to_numpy(dtype=float),
            holds="until_next",
        )
        for channel, mine in gauges.groupby("channel", observed=True, sort=True)
    )
    return Panel(title="Queue depth", unit="batches", series=series, reason="no depth was recorded")


def _rate_panel(run: Run) -> Panel:
    windows, _ = read_windows(run.events)
    rates = (windows["tokens"] / windows["seconds"]).to_numpy(dtype=float)
    series = Series(name="tokens/s", t_s=_seconds(run, windows["end_ns"]), values=rates, holds="since_last")
    return Panel(
        title="Throughput by window", unit="tokens/s", series=(series,), reason="no whole window was seen"
    )


def _note_panel(run: Run, key: str, title: str, unit: str) -> Panel:
    """A figure of every window's note."""
    events = run.events
    marks = events[(events["kind"] == "mark") & (events["name"] == "window")]
    values = np.array([_number_in(note, key) for note in marks["note"]], dtype=float)
    absent = not np.isfinite(values).any()
    series = Series(name=key, t_s=_seconds(run, marks["t_ns"]), values=values, holds="since_last")
    return Panel(
        title=title,
        unit=unit,
        series=() if absent else (series,),
        reason=f"no window says its {key}",
        floor_zero=key != "loss",
    )


def _number_in(note: str | None, key: str) -> float:
    try:
        value: Any = json.loads(note or "{}").get(key)
    except (ValueError, AttributeError):
        return np.nan
    return float(value) if isinstance(value, int | float) else np.nan


def _memory_panel(run: Run) -> Panel:
    samples = run.samples[run.samples["key"] == "tree"]
    parts = ((name, samples[samples["metric"] == metric]) for metric, name in _memory_kinds.items())
    return Panel(
        title="Host memory",
        unit="GB resident",
        series=tuple(_sampled(run, parts, 1e-9)),
        reason=_why_missing(run, "host", "rss_anon_bytes"),
    )


def _gpu_panel(run: Run, metric: str, title: str, unit: str, scale: float, ceiling: float | None) -> Panel:
    samples = run.samples[(run.samples["source"] == "gpu") & (run.samples["metric"] == metric)]
    uses = gpu_uses(run.manifest) or {}
    parts = (
        (uses[str(key)].label if str(key) in uses else str(key), mine)
        for key, mine in samples.groupby("key", observed=True, sort=True)
    )
    return Panel(
        title=title,
        unit=unit,
        series=tuple(_sampled(run, parts, scale)),
        reason=_why_missing(run, "gpu", metric),
        ceiling=ceiling,
    )


def _sampled(run: Run, parts: Iterable[tuple[str, pd.DataFrame]], scale: float) -> Iterable[Series]:
    for name, samples in parts:
        values = samples["value"].to_numpy(dtype=float) * scale
        if np.isfinite(values).any():
            yield Series(name=name, t_s=_seconds(run, samples["t_ns"]), values=values)


def _why_missing(run: Run, source: str, metric: str) -> str:
    """The recorded reason, or that nobody sampled."""
    samples = run.samples[run.samples["source"] == source]
    if not len(samples):
        return f"the run was not recorded with the {source} sampler"
    for mine in (samples[samples["metric"] == metric], samples[samples["key"] == _everything]):
        reasons = [str(reason) for reason in mine["reason"].dropna().unique()]
        if reasons:
            return "; ".join(reasons)
    return f"the {source} sampler gave no {metric}"
