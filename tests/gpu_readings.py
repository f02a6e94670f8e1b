"""GPU readings of a recorded machine, written into a played run as the sampler would have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.events import sample_schema
from dflash.contract.rundir import RunDir
from profiler.machine import describe_hardware
from profiler.samplers.gpu import GpuSampler
from profiler.samplers.replay import ReplaySensors
from tests.run_builder import nanoseconds

cases = Path(__file__).parent / "data" / "cases" / "nvml"


def watch(
    run: Path,
    file: Path,
    *,
    seconds: float = 60.0,
    every_s: float = 1.0,
    devices: Sequence[Mapping[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Sample the machine of `file` over the run's first seconds; `devices` as the trainer would list them."""
    now_s = 0.0
    sensors = ReplaySensors(file, lambda: nanoseconds(now_s))
    sampler = GpuSampler(sensors, every_s, clock=lambda: now_s)
    reason = sampler.open()
    log = ArrowLog(run / "samples" / "gpu.arrow", sample_schema)
    while reason is None and now_s < seconds:
        for reading in sampler.sample():
            own_time = reading.metric == "power_sample_w" and reading.value is not None
            t_ns = reading.t_ns if own_time else nanoseconds(now_s)
            log.append((t_ns, "gpu", reading.key, reading.metric, reading.value, reading.reason))
        now_s += every_s
    log.close()
    gpus = sensors.devices() if reason is None else ()
    entries: dict[str, Any] = {"hardware": describe_hardware(gpus, reason, environ or {})}
    if devices is not None:
        entries["devices"] = list(devices)
    RunDir(run).update(**entries)


def listed(file: Path, order: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """run.json "devices" for the roles of a case file; `order`: CUDA's place -> place in the file."""
    data = json.loads(file.read_text(encoding="utf-8"))
    counts: dict[str, int] = {}
    found = []
    for place, role in enumerate(data["roles"]):
        gpu = data["gpus"][place if order is None else order[place]]
        index = counts.get(role, 0)
        counts[role] = index + 1
        found.append(
            {"name": f"cuda:{place}", "role": role, "index": index, "uuid": gpu["uuid"], "pci": gpu["pci"]}
        )
    return found
