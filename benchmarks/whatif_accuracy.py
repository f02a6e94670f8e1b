"""How right what-if forecasts are: fitted on one real run on logical devices, held against runs of others.

Every setting is forecast before it is run. Results are kept after each run, and a second call goes on where
the first one ended; --first says how many settings. Other load on the machine is noise: the base is run again
at the end, and how far the two lie apart is told beside the errors.

    python benchmarks/whatif_accuracy.py --out DIR [--seconds 12] [--first 24]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.result_file import write_result
from dflash.contract.config import load_config
from dflash.contract.rundir import RunDir
from profiler.forecast.what_if import ask
from profiler.run import Run
from profiler.throughput import Throughput, measure_throughput
from profiler.timeline import Timeline

base: Final = (
    "data.max_length=128",
    "pipeline.token_budget=256",
    "window.tokens=512",
    "drafter.layers=1",
    "devices.pageable_gbps=0.005",
    "devices.pinned_gbps=0.02",
    "devices.link_gbps=0.05",
    "run.epochs=50",
    "run.checkpoint_every=-1",
)
settings: Final = (
    "transport=peer",
    "transport=pinned",
    "transport=shared",
    "split=2-1",
    "split=3-1",
    "split=2-1 transport=peer",
    "split=3-1 transport=peer",
    "split=2-2",
    "split=2-2 transport=peer",
    "split=1-2 transport=pinned",
    "split=2-1 transport=pinned",
    "transport.depth=1",
    "transport.depth=6",
    "split=2-1 transport=peer transport.depth=1",
    "split=colocated-1",
    "split=colocated-2",
    "schedule=lockstep",
    "schedule=lockstep transport=peer",
    "schedule=lockstep split=2-1 transport=pinned",
    "token_budget=512",
    "token_budget=512 transport=peer",
    "pageable_gbps=0.0025",
    "pageable_gbps=0.02",
    "transport=peer link_gbps=0.004",
)


def measure(path: Path, changes: str, seconds: float) -> Throughput:
    """Run the base with `changes` for so long; what it made."""
    shutil.rmtree(path, ignore_errors=True)
    config = load_config(None, [*base, f"run.max_seconds={seconds:g}", *changes.split()])
    toml = path.with_suffix(".toml")
    toml.write_text(config.to_toml())
    command = [sys.executable, "-m", "dflash", "run", "--run-dir", str(path), str(toml)]
    subprocess.run(command, check=True, capture_output=True, timeout=seconds + 120)
    RunDir(path).update(hardware={"usable_cores": len(os.sched_getaffinity(0))})
    return measure_throughput(Timeline.of(Run.open(path)))


def compare(path: Path, fitted_on: Path, changes: str, seconds: float) -> dict[str, Any]:
    """Forecast, run, and set side by side."""
    prediction = ask([Run.open(fitted_on)], changes.split()).prediction
    measured = measure(path, changes, seconds)
    truth = measured.tokens_per_s
    return {
        "setting": changes,
        "predicted": prediction.tokens_per_s,
        "low": prediction.low,
        "high": prediction.high,
        "measured": truth,
        "reason": measured.reason,
        "error": None if truth is None else prediction.tokens_per_s / truth - 1.0,
        "covered": None if truth is None else prediction.low <= truth <= prediction.high,
    }


def main() -> None:
    """Write whatif_accuracy.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--first", type=int, default=len(settings))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept, fitted_on = options.out / "whatif_accuracy_rows.jsonl", options.out / "base"
    if not kept.exists():
        measure(fitted_on, "", options.seconds)
        kept.touch()
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    for changes in settings[len(rows) : options.first]:
        rows.append(compare(options.out / "other", fitted_on, changes, options.seconds))
        with kept.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    first = measure_throughput(Timeline.of(Run.open(fitted_on))).tokens_per_s
    again = measure(options.out / "again", "", options.seconds).tokens_per_s
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    result = {
        "seconds": options.seconds,
        "settings": len(rows),
        "measured_settings": len(errors),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "covered_share": float(np.mean([row["covered"] for row in rows if row["covered"] is not None])),
        "base_again": None if again is None or first is None else again / first - 1.0,
        "load_average": os.getloadavg()[0],
        "rows": rows,
    }
    write_result(options.out / "whatif_accuracy.json", "whatif_accuracy", result)


if __name__ == "__main__":
    main()
