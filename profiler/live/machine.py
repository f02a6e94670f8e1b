"""GPUs, threads and memory of a run as its samplers last saw them; a metric that is missing says why.

Reads samples of any age (a value written on change holds). Knows nothing of stages, but for their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from profiler.gil_waits import GilWaits
from profiler.live.follower import Recent
from profiler.live.view import GpuRow, Memory, Number, ThreadRow
from profiler.waits import stages

everything = "*"  # the key of a reading that concerns a whole source
_gpu_metrics = {
    "util": "util_pct",
    "sm_active": "sm_active_pct",
    "power_w": "power_w",
    "power_limit_w": "power_limit_w",
    "memory_bytes": "mem_used_bytes",
    "memory_total_bytes": "mem_total_bytes",
    "temperature_c": "temp_c",
}
_memory_points = 240


class Readings:
    """The samples of a recent range, by source, key and metric."""

    def __init__(self, recent: Recent) -> None:
        samples = recent.run.samples
        self._sources = set(samples["source"].unique())
        keys = ["source", "key", "metric"]
        plain = samples.astype(dict.fromkeys(keys, object))
        self._series: dict[tuple[str, str, str], pd.DataFrame] = dict(iter(plain.groupby(keys, sort=False)))  # type: ignore[arg-type]

    def series(self, source: str, key: str, metric: str) -> pd.DataFrame | None:
        """Rows in time order; None when there are none."""
        return self._series.get((source, key, metric))

    def keys(self, source: str, metric: str) -> list[str]:
        return [key for s, key, m in self._series if (s, m) == (source, metric) and key != everything]

    def last(self, source: str, key: str, metric: str, scale: float = 1.0) -> Number:
        """The newest reading."""
        rows = self.series(source, key, metric)
        if rows is None:
            return Number(None, self.why_missing(source, metric))
        value, reason = rows["value"].iloc[-1], rows["reason"].iloc[-1]
        if np.isfinite(value):
            return Number(float(value) * scale)
        return Number(None, str(reason or "not a finite number"))

    def why_missing(self, source: str, metric: str) -> str:
        """The recorded reason, or that nobody sampled."""
        if source not in self._sources:
            return f"no {source} sampler records this run"
        rows = self.series(source, everything, metric)
        reasons = [] if rows is None else [str(reason) for reason in rows["reason"].dropna()]
        return reasons[-1] if reasons else f"the {source} sampler has given no {metric} yet"


def see_gpus(recent: Recent, readings: Readings) -> tuple[tuple[GpuRow, ...], str | None]:
    """Devices of the run first, in stage order, then the other GPUs; and why there are no GPUs to see."""
    roles = _roles(recent.run.manifest.get("devices"))
    hardware = recent.run.manifest.get("hardware")
    listed = hardware.get("gpus") if isinstance(hardware, Mapping) else None
    models = {
        str(gpu["uuid"]): str(gpu.get("name") or "GPU")
        for gpu in (listed if isinstance(listed, list) else [])
        if isinstance(gpu, Mapping) and gpu.get("uuid")
    }
    rows = [_gpu_row(readings, name, uuid, " + ".join(mine)) for (name, uuid), mine in roles.items()]
    used = {uuid for _, uuid in roles}
    sampled = readings.keys("gpu", "util_pct")
    others = [uuid for uuid in dict.fromkeys([*models, *sampled]) if uuid not in used]
    rows += [_gpu_row(readings, models.get(uuid, "GPU"), uuid, "not used") for uuid in others]
    if any(row.uuid for row in rows):
        return tuple(rows), None
    reason = hardware.get("no_gpus") if isinstance(hardware, Mapping) else None
    return tuple(rows), str(reason or readings.why_missing("gpu", "util_pct"))


def _roles(devices: object) -> dict[tuple[str, str | None], list[str]]:
    """(name, uuid) of each device of the run -> what it does there."""
    roles: dict[tuple[str, str | None], list[str]] = {}
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, Mapping):
            name, uuid = str(device.get("name")), device.get("uuid")
            what = " ".join(str(device[part]) for part in ("role", "index") if device.get(part) is not None)
            roles.setdefault((name, str(uuid) if uuid else None), []).append(what)
    return roles


def _gpu_row(readings: Readings, name: str, uuid: str | None, role: str) -> GpuRow:
    numbers = {}
    for field, metric in _gpu_metrics.items():
        scale = 0.01 if metric.endswith("_pct") else 1.0
        no_gpu = Number(None, "not a GPU that a driver knows")
        numbers[field] = no_gpu if uuid is None else readings.last("gpu", uuid, metric, scale)
    return GpuRow(name=name, uuid=uuid, role=role, **numbers)


def see_threads(recent: Recent, measured: GilWaits) -> tuple[tuple[ThreadRow, ...], str | None]:
    """Threads by their wait for the GIL, then by CPU time; and why there is none."""
    stage_of, holders = _stage_threads(recent), dict(measured.holders)
    not_host = "the host sampler has not seen this thread twice in the range"
    not_held = measured.no_holders or "py-spy has not seen it hold the GIL"
    rows = []
    for row in measured.threads.to_dict("records"):
        tid, name = int(row["tid"]), str(row["thread"])
        stage = stage_of.get(tid)
        # py-spy knows threads by Python's names, which the trainer gives its stages with a hyphen.
        held = holders.get(name if stage is None else stage.replace(" ", "-"))
        rows.append(
            ThreadRow(
                name=stage or f"{name} {tid}",
                cpu=_known(row["cpu_share"], not_host),
                gil_wait=_known(row["gil_wait_share"], measured.reason or "this thread was not looked at"),
                cpu_wait=_known(row["cpu_wait_share"], not_host),
                gil_hold=Number(held, None if held is not None else not_held),
            )
        )
    rows.sort(key=lambda row: (-(row.gil_wait.value or 0.0), -(row.cpu.value or 0.0), row.name))
    return tuple(rows), None if rows else "no thread was sampled: neither by the host sampler nor by gil_wait"


def _known(value: float, reason: str) -> Number:
    return Number(min(float(value), 1.0)) if np.isfinite(value) else Number(None, reason)


def _stage_threads(recent: Recent) -> dict[int, str]:
    """Native thread id -> the stage that emits from it."""
    events = recent.run.events
    own = events[events["stage"].isin(stages) & (events["tid"] > 0)]
    pairs = own[["tid", "stage", "index"]].drop_duplicates("tid")
    return {int(tid): f"{stage} {index}" for tid, stage, index in pairs.itertuples(index=False)}


def see_memory(recent: Recent, readings: Readings) -> Memory:
    """Resident memory of the run's processes against what limits it."""
    rows = readings.series("host", "tree", "rss_anon_bytes")
    points: Iterable[Any] = ()
    if rows is not None:
        rows = rows[rows["value"].notna() & (rows["t_ns"] >= (recent.since_ns or 0))].tail(_memory_points)
        points = rows[["t_ns", "value"]].itertuples(index=False)
    return Memory(
        anon_bytes=readings.last("host", "tree", "rss_anon_bytes"),
        shared_bytes=readings.last("host", "tree", "rss_shmem_bytes"),
        file_bytes=readings.last("host", "tree", "rss_file_bytes"),
        limit_bytes=readings.last("host", "machine", "mem_limit_bytes"),
        available_bytes=readings.last("host", "machine", "mem_available_bytes"),
        series=tuple(((t_ns - recent.run.start_ns) / 1e9, float(value)) for t_ns, value in points),
    )
