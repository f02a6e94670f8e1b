"""One run of the labelled suite: recorded, kept with the truth beside it, diagnosed into a row.

Knows nothing of which runs make up the suite.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.run_archive import kept
from benchmarks.small_runs import small_config, write_conversations
from benchmarks.suite_cases import Case, OutOfTimeError
from benchmarks.warm_trainer import WarmTrainer
from dflash.contract.rundir import python_command
from dflash.faults.injection import truth_variable
from profiler.diagnosis import diagnose
from profiler.forecast.run_forecast import RunForecast
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.timeline import Timeline

longest_s = 120.0  # of a run
grace_s = 3.0  # for one that is stopped


def carry_out(case: Case, max_steps: int, keep: Path, until_s: float | None) -> dict[str, Any]:
    """Record (unless it was kept) and diagnose one run; its row.

    `until_s`: of the monotonic clock, when it must have ended. Raises OutOfTimeError, and RuntimeError when
    the trainer fails.
    """
    folder = keep / case.name
    began_s = time.monotonic()
    if not (folder / kept[-1]).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _record_run(case, folder, max_steps, until_s)
    return {**diagnosed(folder), "took_s": round(time.monotonic() - began_s, 1)}


def diagnosed(folder: Path) -> dict[str, Any]:
    """The row of a run that was kept."""
    case = Case(**json.loads((folder / "case.json").read_text()))
    truth = json.loads((folder / "truth.json").read_text())
    run = Run.open(folder / "run")
    timeline = Timeline.of(run)
    diagnosis = diagnose(timeline, RunForecast(timeline, run))
    named = [finding for finding in diagnosis.findings if finding.supported]
    right = next((finding for finding in diagnosis.findings if finding.cause == truth["cause"]), None)
    return {
        **asdict(case),
        "key": case.key,
        "truth": truth,
        "tokens_per_s": diagnosis.throughput.tokens_per_s,
        "named": [finding.cause for finding in named],
        "headline": diagnosis.headline,
        "said_of_truth": right and right.summary,
        "remedy": dict(named[0].remedy.knobs) if named and named[0].remedy else {},
        "recorded_with": recorded_with(run),
    }


def recorded_with(run: Run) -> str:
    """Where a kept run was recorded, which need not be where it is diagnosed."""
    versions, hardware = run.manifest["versions"], run.manifest["hardware"]
    cores = f"{hardware['usable_cores']} of {hardware['cores']} cores"
    return f"python {versions['python']}, torch {versions['torch']}, {cores}"


def _record_run(case: Case, folder: Path, max_steps: int, until_s: float | None) -> None:
    left_s = longest_s if until_s is None else min(longest_s, until_s - grace_s - time.monotonic())
    if left_s <= 0:
        raise OutOfTimeError(case.key)
    data = write_conversations(folder / "conversations.jsonl")
    config = small_config(data, seed=case.seed, max_steps=max_steps).replacing(case.knobs)
    (folder / "run.toml").write_text(config.to_toml())
    os.environ[truth_variable] = str(folder / "truth.json")
    request = f"{case.fault}:{case.strength}"
    command = [*python_command(), "run", str(folder / "run.toml"), "--inject", request]
    options = RecordOptions(gpu="none", log=folder / "log", time_limit_s=left_s, grace_s=grace_s)
    recording = record(command, folder / "run", options, start=WarmTrainer)
    if until_s is not None and time.monotonic() >= until_s - grace_s:
        raise OutOfTimeError(case.key)
    if recording.status != "finished":
        raise RuntimeError(f"{case.key}: {recording.status}\n{(folder / 'log').read_text()[-2000:]}")
    (folder / kept[-1]).write_text(json.dumps(asdict(case)) + "\n")
