"""What a run recorded over time, as panels: queues, throughput, loss, memory, GIL, GPUs; or why not.

Covers the whole run, not only its steady part. Knows nothing of how panels are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from profiler.gpu_identity import GpuUse, gpu_uses
from profiler.run import Run
from profiler.steady import read_windows
from profiler.waits import stages
from reports.series import Floats, Series
from reports.time_chart import Panel

_everything: Final = "*"  # the key of a reading that concerns a whole source
_memory_kinds: Final = {"rss_anon_bytes": "anonymous", "rss_shmem_bytes": "shared", "rss_file_bytes": "files"}
_gpu_panels: Final = (  # metric, title, unit, scale, ceiling
    ("util_pct", "GPU utilisation", "%", 1.0, 100.0),
    ("power_w", "GPU power", "W", 1.0, None),
    ("mem_used_bytes", "GPU memory", "GB", 1e-9, None),
)
_crowd: Final = 4  # so many GPUs share a panel whatever they do; more are drawn by role
_gil_points: Final = 360  # looks are counted over as many stretches at most: few looks are noise
_gil_threads: Final = 7  # drawn, those that wait most
_least_wait: Final = 0.005


def collect_panels(run: Run) -> tuple[Panel, ...]:
    """All panels in reading order. One without data has no series and a reason."""
    return (
        _depth_panel(run),
        _rate_panel(run),
        _note_panel(run, "loss", "Loss", "nats"),
        _note_panel(run, "accuracy", "Accuracy", "share"),
        _memory_panel(run),
        _gil_panel(run),
        *(panel for kind in _gpu_panels for panel in _gpu_panels_of(run, *kind)),
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
    series = tuple(_sampled(run, parts, 1e-9))
    return Panel(
        title="Host memory",
        unit="GB resident",
        series=series,
        reason=None if series else _why_missing(run, "host", "rss_anon_bytes"),
    )


def _gil_panel(run: Run) -> Panel:
    """Share of looks that found a thread waiting for the GIL, between rows; in a long run, every nth."""
    looks = run.samples[(run.samples["source"] == "gil_wait") & run.samples["value"].notna()]
    sweeps = looks[looks["metric"] == "gil_sweeps"]
    step = max(1, -(-len(sweeps) // _gil_points))
    at_ns, counted = (sweeps[name].to_numpy()[::step] for name in ("t_ns", "value"))
    waits = looks[looks["metric"] == "gil_wait_samples"]
    found = [
        (str(key), _share_of_looks(at_ns, counted, mine))
        for key, mine in waits.groupby("key", observed=True)
        if len(at_ns) > 1
    ]
    told = [(key, shares) for key, shares in found if np.nanmax(shares, initial=0.0) >= _least_wait]
    told = sorted(told, key=lambda item: -float(np.nansum(item[1])))[:_gil_threads]
    t_s = (at_ns[1:].astype(np.int64) - run.start_ns) / 1e9
    series = (
        Series(name=key.partition(":")[2] or key, t_s=t_s, values=100 * shares, holds="since_last")
        for key, shares in told
    )
    quiet = f"no thread waited for more than {100 * _least_wait:g} % of any stretch"
    return Panel(
        title="Waiting for the GIL",
        unit="% of the thread's time",
        series=tuple(series),
        reason=quiet if found else _why_missing(run, "gil_wait", "gil_wait_samples"),
    )


def _share_of_looks(at_ns: Any, counted: Floats, waits: pd.DataFrame) -> Floats:
    """Waits over looks between neighbours of `at_ns`; NaN before the thread was first seen."""
    place = np.searchsorted(waits["t_ns"].to_numpy(), at_ns, side="right") - 1
    totals = np.where(place >= 0, waits["value"].to_numpy(dtype=float)[np.maximum(place, 0)], np.nan)
    looks = np.diff(counted)
    shares = np.full(len(looks), np.nan)
    np.divide(np.diff(totals), looks, out=shares, where=looks > 0)
    return shares


def _gpu_panels_of(
    run: Run, metric: str, title: str, unit: str, scale: float, ceiling: float | None
) -> list[Panel]:
    """One panel, or one a role where many GPUs would hide one another."""
    samples = run.samples[(run.samples["source"] == "gpu") & (run.samples["metric"] == metric)]
    uses = gpu_uses(run.manifest) or {}
    by_role: dict[str, list[tuple[GpuUse, pd.DataFrame]]] = {}
    for key, mine in samples.groupby("key", observed=True, sort=True):
        use = uses.get(str(key))
        role = use.roles[0][0] if use is not None and use.roles else ""
        role = role if role in stages else "others"
        by_role.setdefault(role, []).append((use or GpuUse(str(key)), mine))
    alone = len(by_role) < 2 or sum(map(len, by_role.values())) <= _crowd
    if alone:
        by_role = {"": [part for parts in by_role.values() for part in parts]}
    panels = []
    for role in sorted(by_role, key=(*stages, "others", "").index):
        named = ((use.label if alone else use.device, mine) for use, mine in by_role[role])
        series = tuple(_sampled(run, named, scale))
        panels.append(
            Panel(
                title=f"{title}, {_plural(role)}" if role else title,
                unit=unit,
                series=series,
                reason=None if series else _why_missing(run, "gpu", metric),
                ceiling=ceiling,
            )
        )
    return panels


def _plural(role: str) -> str:
    return role if role.endswith("s") else f"{role}s"


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
