"""What GPU readings cost on this machine: each metric alone, and the sampler at its usual paces.

    python benchmarks/gpu_sensors.py [--out FILE.json] [--repeats 200] [--seconds 20]
Exit 2 without an NVIDIA driver.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dflash.contract.arrowlog import ArrowLog
from dflash.contract.events import sample_schema
from dflash.contract.rundir import utc_now
from profiler.samplers.base import SamplerThread
from profiler.samplers.gpu import GpuSampler
from profiler.samplers.metrics import gpm_metrics, gpu_metrics, memory_metrics
from profiler.samplers.nvml import NvmlSensors
from profiler.samplers.sensors import Unreadable

groups: dict[str, tuple[str, ...]] = {
    **{metric: (metric,) for metric in gpu_metrics if metric not in (*gpm_metrics, *memory_metrics)},
    "memory": memory_metrics,
    "GPM": gpm_metrics,
    "a fast tick": ("power_w", "sm_clock_mhz"),
    "all but energy and mean power": tuple(m for m in gpu_metrics if m not in ("energy_j", "power_avg_w")),
}


def cost_us(call: Callable[[], object], repeats: int, pause_s: float = 0.0) -> dict[str, float]:
    """Wall-clock and CPU microseconds of a call."""
    walls = []
    cpu_ns = 0
    for _ in range(repeats):
        cpu_before, before = time.thread_time_ns(), time.perf_counter_ns()
        call()
        walls.append((time.perf_counter_ns() - before) / 1e3)
        cpu_ns += time.thread_time_ns() - cpu_before
        if pause_s:
            time.sleep(pause_s)
    return {
        "median": round(statistics.median(walls), 2),
        "largest": round(max(walls), 1),
        "cpu": round(cpu_ns / repeats / 1e3, 2),
    }


def measure(sensors: NvmlSensors, repeats: int) -> dict[str, Any]:
    """Each reading of the first GPU: its cost, or why there is none."""
    found: dict[str, Any] = {}
    for name, metrics in groups.items():
        sensors.read(0, metrics)
        answers = sensors.read(0, metrics)
        lacking = [answer.reason for answer in answers if isinstance(answer, Unreadable)]
        if len(lacking) == len(metrics):
            found[name] = lacking[0]
        else:
            found[name] = cost_us(lambda metrics=metrics: sensors.read(0, metrics), repeats)
    found["power samples of a second"] = cost_us(lambda: sensors.drain(0), 5, pause_s=1.0)
    found["processes"] = cost_us(lambda: sensors.processes(0), repeats)
    return found


def run_sampler(seconds: float) -> dict[str, float]:
    """The sampler as a recording runs it: CPU and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu.arrow"
        thread = SamplerThread(GpuSampler(NvmlSensors()), ArrowLog(path, sample_schema))
        thread.start()
        time.sleep(seconds)
        report = thread.stop()
        return {
            "cpu_share_of_a_core": round(report.cpu_s / seconds, 5),
            "mb_an_hour": round(path.stat().st_size / seconds * 3600 / 1e6, 2),
        }


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    choice = parser.parse_args()
    sensors = NvmlSensors()
    reason = sensors.open()
    if reason is not None:
        print(f"no GPU readings here: {reason}", file=sys.stderr)
        return 2
    devices = sensors.devices()
    readings = measure(sensors, choice.repeats)
    sensors.close()
    result = {
        "benchmark": "gpu_sensors",
        "utc": utc_now(),
        "gpus": [device.facts() for device in devices],
        "us_a_call": readings,
        "sampler": run_sampler(choice.seconds),
    }
    text = json.dumps(result, indent=1, allow_nan=False)
    if choice.out is not None:
        choice.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
