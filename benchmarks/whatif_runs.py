"""One run of the accuracy page, recorded in this process; and what is forecast from it of others.

Knows nothing of which runs there are.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.recorded_run import rates, record_here
from benchmarks.small_runs import write_conversations
from benchmarks.whatif_cases import Case, paced_cores
from dflash.contract.errors import DFlashError
from dflash.faults.injection import prepare_injected
from dflash.trainer import prepare
from profiler.diagnosis import diagnose
from profiler.forecast.run_forecast import RunForecast
from profiler.forecast.what_if import predict_config
from profiler.run import Run
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline

least_windows, most_windows = 24, 80
longest_s = 40.0
Row = dict[str, Any]


def measure(case: Case, runs: Path, seconds: float, expected: float | None) -> Row:
    """Record a run of about so long, at `expected` tokens/s, unless it is there; what it made."""
    path = runs / case.name
    if (
        not (path / "run.json").exists()
        or json.loads((path / "run.json").read_text())["status"] != "finished"
    ):
        shutil.rmtree(path, ignore_errors=True)
        _record(case, path, runs, seconds, expected)
    return {**asdict(case), "name": case.name, **rates(measure_throughput(Timeline.of(Run.open(path))))}


def _record(case: Case, path: Path, runs: Path, seconds: float, expected: float | None) -> None:
    data = runs / f"conversations-{os.getpid()}.jsonl"
    if not data.exists():
        write_conversations(data)
    config = case.configure(data)
    windows = 0.0 if expected is None else seconds * expected / config.window.tokens
    steps = math.ceil(min(max(windows, least_windows), most_windows))
    config = config.replacing({"run.max_steps": steps, "run.max_seconds": longest_s})
    cores = paced_cores if case.paced else len(os.sched_getaffinity(0))
    record_here(path, config, partial(prepare_injected, case.request) if case.paced else prepare, cores=cores)


def forecast(base: Path, others: Mapping[str, Mapping[str, Any]]) -> Row:
    """From the run in `base`: for each of the others, by name and with its knobs, what it would come to."""
    run = Run.open(base)
    assert run.config is not None
    try:
        predictor = RunForecast(Timeline.of(run), run).predictor
    except DFlashError as error:
        return {"base": base.name, "reason": error.what, "forecasts": {}}
    found = {}
    for name, knobs in others.items():
        prediction = predict_config(predictor, run.config, run.config.replacing(knobs))
        found[name] = {
            "predicted": prediction.tokens_per_s,
            "low": prediction.low,
            "high": prediction.high,
            "closed_form": prediction.closed_form_tokens_per_s,
            "limit": prediction.limit,
        }
    return {"base": base.name, "reason": None, "forecasts": found}


def diagnose_sick(path: Path) -> Row:
    """The causes that are supported in a run, with their predicted gains and the knobs of their remedies."""
    run = Run.open(path)
    timeline = Timeline.of(run)
    diagnosis = diagnose(timeline, RunForecast(timeline, run))
    causes = [
        {
            "cause": finding.cause,
            "gain": finding.predicted_gain,
            "knobs": dict(finding.remedy.knobs) if finding.remedy else {},
        }
        for finding in diagnosis.findings
        if finding.supported and finding.is_sickness
    ]
    return {"base": path.name, "causes": causes}


def neutral_knobs(case: Case, names: Sequence[str]) -> dict[str, Any]:
    """Of a case's configuration the knobs that a forecast knows."""
    values = case.configure(Path("conversations.jsonl")).values()
    return {name: values[name] for name in names}
