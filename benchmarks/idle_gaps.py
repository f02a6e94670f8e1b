"""How many of a GPU's idle gaps are found from outside, from its power every 20 ms, and how truly.

    python benchmarks/idle_gaps.py --out FILE.json [--seconds 60] [--run DIR]
A worker keeps every GPU in bursts of matmuls or of memory traffic, with gaps of 100 to 500 ms between; CUDA
events time the bursts, and the truth is what lies between them. It runs under the recorder, so power is
sampled in another process. Some bursts are told as stage events and some are not, as in a trainer. Judged are
gaps from power alone, for several delays of the power series, and as `Timeline.idle_gaps` gives them. A gap
counts as found where half of it is covered. Exit 1 when the Timeline finds less than 95 %, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dflash.contract.events import open_events
from dflash.contract.rundir import RunDir, environment_variable, utc_now
from profiler.idle_gaps import power_gaps, read_activity
from profiler.intervals import Intervals, covered, merged
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.timeline import Timeline

goal = 0.95
gap_s, burst_s = (0.1, 0.5), (0.15, 0.9)
told_share = 0.8  # of the bursts that become events
memory_share = 0.3  # of the bursts that move memory instead of multiplying
delays_s = [round(step / 100, 2) for step in range(-10, 21, 2)]


def work(seconds: float) -> None:
    """Bursts and gaps on every GPU, told to the run directory; the truth beside it."""
    import torch

    from dflash.cuda import CudaDevice

    run = RunDir(Path(os.environ[environment_variable]))
    log, probe = open_events(run.events / "trainer.arrow")
    devices = [CudaDevice(index) for index in range(torch.cuda.device_count())]
    run.update(
        devices=[
            {"name": device.name, "role": "target", "index": device.index, **device.facts()}
            for device in devices
        ]
    )
    bursts: dict[str, list[tuple[int, int]]] = {str(device.facts()["uuid"]): [] for device in devices}
    threads = [
        threading.Thread(
            target=load,
            args=(device, probe.bind("target", device.index, device.name), seconds, bursts),
        )
        for device in devices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    (run.path / "truth.json").write_text(json.dumps(bursts))


def load(device: Any, probe: Any, seconds: float, bursts: dict[str, list[tuple[int, int]]]) -> None:
    """One GPU's bursts. The host keeps at most a few calls ahead, so that a burst ends when it should."""
    import torch

    device.bind_thread()
    chance = random.Random(device.index)
    a = torch.randn(8192, 8192, device=device.torch_device, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    big = torch.zeros(512 * 1024 * 1024, device=device.torch_device, dtype=torch.bfloat16)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        moves_memory = chance.random() < memory_share
        end_s = time.monotonic() + chance.uniform(*burst_s)
        timing = device.start_timing()
        while time.monotonic() < end_s:
            if moves_memory:
                big.add_(1)
            else:
                torch.matmul(a, a, out=out)
            device.record().wait()
        timing.stop()
        start_ns, end_ns = timing.ends_ns()
        bursts[str(device.facts()["uuid"])].append((start_ns, end_ns))
        if chance.random() < told_share:
            probe.emit_span("forward", start_ns, end_ns, clock="gpu", tokens=1)
        time.sleep(chance.uniform(*gap_s))


def judge(run_path: Path, bursts: dict[str, list[tuple[int, int]]]) -> dict[str, Any]:
    """Recall and precision by GPU."""
    run = Run.open(run_path)
    timeline = Timeline.of(run)
    found: dict[str, Any] = {}
    for uuid, spans in bursts.items():
        busy = (np.array(spans, dtype=np.int64) - run.start_ns) / 1e9
        truth = merged(np.column_stack([busy[:-1, 1], busy[1:, 0]]))
        rows = run.samples[(run.samples["key"] == uuid) & (run.samples["metric"] == "power_sample_w")]
        t_s = (rows["t_ns"].to_numpy(dtype=np.int64) - run.start_ns) / 1e9
        watts = rows["value"].to_numpy(dtype=float)
        gpu = timeline.gpus[timeline.gpus["key"] == uuid].to_dict("records")
        limit_w = float(gpu[0]["power_limit_w"]) if gpu else None
        told = timeline.idle_gaps[timeline.idle_gaps["key"] == uuid]
        found[uuid] = {
            "gaps": len(truth),
            "power_samples": len(rows),
            "spacing_ms": None if len(t_s) < 2 else round(1e3 * float(np.median(np.diff(t_s))), 2),
            "watts_percentiles_1_10_50_90_99": [
                round(float(w), 1) for w in (np.percentile(watts, [1, 10, 50, 90, 99]) if len(watts) else [])
            ],
            "power_alone_by_delay_s": {
                str(delay): by_power(t_s - delay, watts, limit_w, truth, busy) for delay in delays_s
            },
            "timeline": score(merged(told[["start_s", "end_s"]].to_numpy(dtype=float)), truth),
            "evidence": {str(k): int(n) for k, n in told["evidence"].value_counts().items()},
            "unknown": timeline.idle_unknown.get(uuid),
        }
    return found


def by_power(
    t_s: np.ndarray, watts: np.ndarray, limit_w: float | None, truth: Intervals, busy: np.ndarray
) -> dict[str, float | None] | str:
    """Gaps from power alone, within the time that the truth covers."""
    activity = read_activity(t_s, watts, limit_w)
    if isinstance(activity, str):
        return activity
    gaps = power_gaps(activity)
    inside = gaps[(gaps[:, 0] >= busy[0, 0]) & (gaps[:, 1] <= busy[-1, 1])]
    return score(inside, truth)


def score(found: Intervals, truth: Intervals) -> dict[str, float | None]:
    """Recall over gaps of 100 ms and more; precision over all that was found; how far edges are off."""
    long_ones = truth[truth[:, 1] - truth[:, 0] >= gap_s[0]]
    hit = [gap for gap in found if covered(gap, truth) >= 0.5]
    starts = [1e3 * float(gap[0] - truth[np.argmin(np.abs(truth[:, 0] - gap[0])), 0]) for gap in hit]
    return {
        "found": len(found),
        "recall": _mean([covered(gap, found) >= 0.5 for gap in long_ones]),
        "precision": _mean([covered(gap, truth) >= 0.5 for gap in found]),
        "start_off_ms": round(float(np.median(starts)), 1) if starts else None,
    }


def _mean(hits: list[bool]) -> float | None:
    return round(float(np.mean(hits)), 4) if hits else None


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--run", type=Path, help="keep the recorded run there")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    choice = parser.parse_args()
    if choice.work:
        work(choice.seconds)
        return 0
    import torch

    if not torch.cuda.is_available():
        print("no GPU: idle gaps cannot be made here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        path = choice.run or Path(folder) / "run"
        command = [sys.executable, __file__, "--work", "--seconds", str(choice.seconds)]
        recording = record(command, path, RecordOptions(gil=False, time_limit_s=choice.seconds + 120))
        if recording.exit_code:
            print(f"the worker {recording.status}: {recording.reason}", file=sys.stderr)
            return 2
        samplers = recording.run.manifest()["samplers"]
        found = judge(path, json.loads((path / "truth.json").read_text()))
    result = {
        "benchmark": "idle_gaps",
        "utc": utc_now(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "seconds": choice.seconds,
        "gpu_sampler": samplers["gpu"],
        "found": found,
    }
    text = json.dumps(result, indent=1, allow_nan=False)
    if choice.out is not None:
        choice.out.write_text(text + "\n")
    print(text)
    return 0 if all((gpu["timeline"]["recall"] or 0) >= goal for gpu in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
