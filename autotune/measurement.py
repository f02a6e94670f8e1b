"""A recorded run turned into what the search needs: throughput, losses, causes, or why there is none.

Knows nothing of how the run was started or of what is done with its figures.
"""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.failure_words import kind_in_words
from autotune.interleaving import Segment
from autotune.run_figures import describe_memory, describe_parts
from autotune.telemetry import Cause, Failed, FailureKind, MemoryFigures, Outcome, Telemetry
from dflash.contract.errors import RunError

if TYPE_CHECKING:
    import pandas as pd

    from profiler.finding import ClosingSum, Diagnosis
    from profiler.run import Run
    from profiler.timeline import Timeline

losses_kept = 64  # enough to compare with the starting configuration on the same windows
waits_kept = 8
exit_kinds = {2: FailureKind.refused, 124: FailureKind.timeout}  # 124: the recorder's time limit


def measure_run(run_path: Path) -> Outcome:
    """What the run at `run_path`, which ended well, shows; its findings are saved there."""
    from profiler.examination import examine

    try:
        examined = examine(run_path)
        examined.diagnosis.save(run_path)
    except RunError as error:
        return Failed(FailureKind.no_measurement, error.render())
    return _measurement(examined.run, examined.timeline, examined.diagnosis)


def measure_segment(run_path: Path) -> Segment | None:
    """The throughput of the run at `run_path` alone; None where it shows none."""
    from profiler.run import Run
    from profiler.steady import find_steady_range, read_windows
    from profiler.throughput import throughput_of

    try:
        windows, _ = read_windows(Run.open(run_path).events)
    except RunError:
        return None
    found = throughput_of(windows, find_steady_range(windows))
    if found.tokens_per_s is None or found.low is None or found.high is None:
        return None
    return Segment(
        tokens_per_s=found.tokens_per_s, low=found.low, high=found.high, windows=found.windows_used
    )


def measure_soak(run_path: Path) -> Outcome:
    """The memory that the soak at `run_path` took; its pace is that of all windows, and no measurement."""
    from profiler.run import Run
    from profiler.steady import read_windows

    try:
        run = Run.open(run_path)
    except RunError as error:
        return Failed(FailureKind.no_measurement, error.render())
    windows, _ = read_windows(run.events)
    if not len(windows):
        return Failed(FailureKind.too_short, "fewer than two windows ended in a soak")
    pace = float(windows["tokens"].sum() / windows["seconds"].sum())
    return Telemetry(tokens_per_s=pace, steps=len(windows), memory=describe_memory(run))


def failed_memory(run_path: Path) -> dict[str, MemoryFigures]:
    """What a run that failed had taken, as far as it left a word of it."""
    from profiler.run import Run

    try:
        return describe_memory(Run.open(run_path))
    except RunError:
        return {}


def classify_failure(exit_code: int, reason: str) -> FailureKind:
    """The kind of a failure, from the recording's exit code and what it says of itself."""
    told = kind_in_words(reason)
    if told is not None:
        return told
    if exit_code > 128 and exit_code - 128 in set(signal.Signals):
        return FailureKind.crash
    return exit_kinds.get(exit_code, FailureKind.error)


def _measurement(run: Run, timeline: Timeline, diagnosis: Diagnosis) -> Outcome:
    throughput = diagnosis.throughput
    if throughput.tokens_per_s is None or throughput.low is None or throughput.high is None:
        return _without_throughput(run, throughput.reason or "the throughput is not known")
    notes = _window_notes(run.events)
    return Telemetry(
        tokens_per_s=throughput.tokens_per_s,
        low=throughput.low,
        high=throughput.high,
        windows=throughput.windows_used,
        steps=len(notes),
        supervised_tokens=sum(int(note.get("supervised_tokens") or 0) for note in notes),
        losses=tuple(_finite(note.get("loss")) for note in notes[:losses_kept]),
        causes=tuple(
            Cause(
                name=finding.cause,
                summary=finding.summary,
                remedy=dict(finding.remedy.knobs) if finding.remedy else {},
            )
            for finding in diagnosis.findings
            if finding.supported
        ),
        verdict=diagnosis.headline,
        efficiency=diagnosis.capacities.pipeline_efficiency,
        waits=_waits(diagnosis.closing_sums),
        **describe_parts(run, timeline),
    )


def _without_throughput(run: Run, reason: str) -> Failed:
    if run.manifest["status"] != "finished":  # stopped when its time was up
        return Failed(FailureKind.too_short, reason)
    remedy = "its epochs ended before its time: raise run.epochs or lower window.tokens"
    return Failed(FailureKind.data_used_up, f"{reason}; {remedy}")


def _window_notes(events: pd.DataFrame) -> list[dict[str, Any]]:
    """What the trainer noted at each window's end, in window order. An unreadable note counts as empty."""
    marks = events[(events["kind"] == "mark") & (events["name"] == "window")].sort_values("window")
    notes = []
    for text in marks["note"]:
        try:
            note = json.loads(text or "{}")
        except ValueError:
            note = {}
        notes.append(note if isinstance(note, dict) else {})
    return notes


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _waits(sums: tuple[ClosingSum, ...]) -> tuple[tuple[str, float], ...]:
    """The largest waits and copies of any stage thread, as shares of its time."""
    parts = [
        (f"{each.stage} {each.index} {part.name}", part.share)
        for each in sums
        for part in each.parts
        if part.kind in ("wait", "copy")
    ]
    return tuple(sorted(parts, key=lambda part: -part[1])[:waits_kept])
