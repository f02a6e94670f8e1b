"""What a recorded run tells of its parts: work of stages, copies, steps, memory by place, energy, start-up.

Each figure is None, or missing, where the run does not tell it. Knows nothing of throughput or of causes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.telemetry import CopyFigures, MemoryFigures, StageFigures

if TYPE_CHECKING:
    import pandas as pd

    from profiler.run import Run
    from profiler.timeline import Timeline

host = "host"
window_work = ("sum", "optimizer")


def describe_parts(run: Run, timeline: Timeline) -> dict[str, Any]:
    """Fields of Telemetry, by name."""
    return {
        "stages": _stages(timeline),
        "copies": _copies(timeline),
        "step_s": _step_s(timeline),
        "window_tokens": _mean(_steady(timeline)["tokens"]),
        "token_bytes": _token_bytes(timeline),
        "memory": describe_memory(run),
        "energy_j_per_token": _energy(timeline),
        "startup_s": _startup_s(run),
    }


def describe_memory(run: Run) -> dict[str, MemoryFigures]:
    """By place: the peak seen, what it was planned to be, and what there was for it. Also of a failed run.

    Of a GPU: bytes in tensors. What the plan adds for the allocator's gaps and for code is taken off the
    limit. Of the host: memory that only this run's processes have.
    """
    gauges = run.events[run.events["kind"] == "gauge"]
    peaks: dict[str, float] = {}
    for name in ("allocated_bytes", "peak_allocated_bytes"):  # the second is never less
        mine = gauges[gauges["name"] == name]
        by_device = mine.groupby(mine["device"].astype(str))["value"].max()
        peaks |= {str(place): float(value) for place, value in by_device.items() if value > 0}
    private = _peak_of_host(run.samples)
    if private is not None:
        peaks[host] = private
    plan = run.manifest.get("memory_plan")
    plan = plan if isinstance(plan, Mapping) else {}
    planned = {str(each.get("place")): each for each in plan.get("places") or () if isinstance(each, Mapping)}
    own_bytes = _number(plan.get("process_bytes")) or 0.0
    return {
        place: MemoryFigures(
            peak_bytes=peak, **_planned(planned.get(place, {}), own_bytes if place == host else 0.0)
        )
        for place, peak in peaks.items()
    }


def _planned(place: Mapping[str, Any], own_bytes: float) -> dict[str, float | None]:
    needed, free = _number(place.get("needed_bytes")), _number(place.get("free_bytes"))
    in_tensors = _number(place.get("allocated_bytes"))
    if in_tensors is None:  # the host
        in_tensors = needed
    if needed is None or in_tensors is None:
        return {"limit_bytes": None, "planned_bytes": None}
    limit = None if free is None else free - (needed - in_tensors) + own_bytes
    return {"limit_bytes": limit, "planned_bytes": in_tensors + own_bytes}


def _peak_of_host(samples: pd.DataFrame) -> float | None:
    mine = samples[(samples["source"] == "host") & (samples["key"] == "tree")]
    mine = mine[mine["metric"].isin(("rss_anon_bytes", "rss_shmem_bytes"))]
    sums = mine.groupby("t_ns")["value"].sum(min_count=1)
    return _number(sums.max()) if len(sums) else None


def _stages(timeline: Timeline) -> dict[str, StageFigures]:
    from profiler.capacity import measure_loads

    loads = measure_loads(timeline)
    if loads is None:
        return {}
    found = {}
    for name, load in (("prefetch", loads.prefetch), ("target", loads.target), ("drafter", loads.drafter)):
        mine = timeline.batches[timeline.batches["stage"] == name]
        if load is None or not len(mine):
            continue
        before, behind = {"prefetch": ("", "q_pre"), "target": ("q_pre", "q_hs"), "drafter": ("q_hs", "")}[
            name
        ]
        found[name] = StageFigures(
            busy_s=float(mine["seconds"].mean()),
            tokens=float(mine["tokens"].mean()),
            batches=len(mine),
            get_wait_share=load.wait(f"get {before}") if before else None,
            put_wait_share=load.wait(f"put {behind}") if behind else None,
            copy_share=load.host_copies + load.peer_copies,
        )
    return found


def _copies(timeline: Timeline) -> dict[str, CopyFigures]:
    from profiler.forecast.observations import mean_copies

    return {hop: CopyFigures(bytes=size, seconds=s) for hop, (size, s) in mean_copies(timeline).items()}


def _steady(timeline: Timeline) -> pd.DataFrame:
    return timeline.windows.iloc[timeline.steady.warmup_windows :]


def _step_s(timeline: Timeline) -> float | None:
    """Sum and optimizer step of a window, on the drafter that makes them."""
    devices, windows = timeline.devices, len(_steady(timeline))
    mine = devices[(devices["stage"] == "drafter") & devices["name"].isin(window_work)]
    return float(mine["seconds"].sum()) / windows if len(mine) and windows else None


def _token_bytes(timeline: Timeline) -> float | None:
    """Of the hidden states of one token, by what drafters took; else by what was copied."""
    tokens = timeline.batches.loc[timeline.batches["stage"] == "target", "tokens"].mean()
    for frame, count in ((timeline.takes, "takes"), (timeline.copies, "copies")):
        known = frame[frame["bytes"] > 0]
        if len(known) and tokens > 0:
            return float(known["bytes"].sum() / known[count].sum() / tokens)
    return None


def _energy(timeline: Timeline) -> float | None:
    """Joules of the run's GPUs for each trained token; None unless the power of all is known."""
    power_w = timeline.gpus["power_w"].to_numpy(dtype=float)
    windows = _steady(timeline)
    tokens, seconds = float(windows["tokens"].sum()), float(windows["seconds"].sum())
    if not len(power_w) or tokens <= 0:
        return None
    return _number(float(power_w.sum()) * seconds / tokens)


def _startup_s(run: Run) -> float | None:
    """From the run's beginning to the first stage at work."""
    marks = run.events[(run.events["kind"] == "mark") & (run.events["name"] == "start")]
    return float(marks["t_ns"].min() - run.start_ns) / 1e9 if len(marks) else None


def _mean(values: pd.Series) -> float | None:
    return _number(values.mean()) if len(values) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
