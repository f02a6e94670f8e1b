"""Six planted faults in a trainer that is not ours: whether ten lines of probes are enough to name each.

The trainer is examples/threaded_trainer.py: threads, `queue.Queue`, work by sleeping. Each run is recorded
from outside and diagnosed, without a GPU.
    python benchmarks/planted_faults.py --out FILE.json [--batches 400] [--repeats 1]
Exit 1 when a fault is called by another name, or the healthy run is accused.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dflash.contract.rundir import utc_now
from profiler.diagnosis import Diagnosis, diagnose
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.timeline import Timeline

trainer = Path(__file__).resolve().parents[1] / "examples" / "threaded_trainer.py"
causes = {  # fault: the cause to be named first
    "none": "target-bound-healthy",
    "slow-drafter": "drafter-too-slow",
    "starvation": "prefetch-starvation",
    "copy": "sync-d2h-on-critical-path",
    "gil-hog": "gil-contention",
    "log-in-step": "drafter-too-slow",
}
said = {"log-in-step": "Take log off the drafters' thread"}  # what the advice must name besides


def measure(fault: str, batches: int, folder: Path) -> dict[str, Any]:
    """Record and diagnose one run; the row of the table."""
    command = [sys.executable, "-P", str(trainer), "--fault", fault, "--batches", str(batches)]
    options = RecordOptions(gpu="none", log=folder / "log", time_limit_s=300)
    recording = record(command, folder / "run", options)
    diagnosis = diagnose(Timeline.of(Run.open(folder / "run")))
    return {"fault": fault, "status": recording.status, **judged(fault, diagnosis)}


def judged(fault: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """What was said, and whether it is right: named first, and no sickness of a healthy run."""
    named = [finding for finding in diagnosis.findings if finding.supported]
    first = named[0] if named else None
    right = first is not None and first.cause == causes[fault] and said.get(fault, "") in diagnosis.next_step
    return {
        "truth": causes[fault],
        "named": [finding.cause for finding in named],
        "cost_share": None if first is None else first.measured_cost_share,
        "headline": diagnosis.headline,
        "next_step": diagnosis.next_step,
        "right": right,
    }


def main() -> int:
    """Try all faults; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(trainer.parents[1])
    load_before, rows = os.getloadavg(), []
    for repeat in range(arguments.repeats):
        for fault in causes:
            with tempfile.TemporaryDirectory() as folder:
                rows.append({"repeat": repeat, **measure(fault, arguments.batches, Path(folder))})
            print(f"{fault}: {', '.join(rows[-1]['named']) or 'nothing named'}", flush=True)
    document = {
        "benchmark": "planted_faults",
        "utc": utc_now(),
        "command": ["python", *sys.argv],
        "host": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "right": sum(row["right"] for row in rows),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if document["right"] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
