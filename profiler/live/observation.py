"""From the end of a run to a LiveView: the figures of its last minute, and what they mean.

Pure: `now_ns` and `alive` are told by the caller. Knows nothing of files or terminals.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.gil_waits import measure_gil
from profiler.live.follower import Recent
from profiler.live.journal import read_journal
from profiler.live.machine import Readings, see_gpus, see_memory, see_threads
from profiler.live.pace import measure_pace
from profiler.live.pipeline import see_queues, see_stages
from profiler.live.verdict import give_verdict
from profiler.live.view import LiveView, RunState
from profiler.run_status import RunStatus
from profiler.timeline import Timeline
from profiler.waits import beside

flush_ns = 300_000_000  # what happened later than so long ago may not be written yet


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules said of a recent range. The dearest part of a view, and good for some seconds."""

    diagnosis: Diagnosis
    range_s: tuple[float, float] | None  # None: nothing was there to judge


def judge(recent: Recent) -> Judgement:
    """Apply the rules of a diagnosis to the recent range."""
    timeline = Timeline.of(recent.run)
    lo_ns, hi_ns = timeline.range_ns
    return Judgement(diagnose(timeline), timeline.range_s if hi_ns > lo_ns else None)


def observe(
    recent: Recent,
    judgement: Judgement,
    status: RunStatus,
    *,
    now_ns: int | None = None,
    finishing: bool = False,
) -> LiveView:
    """The view at `now_ns` on the run's clock; None: at the last thing that the run wrote.

    `status`: how the run stands, which only the machine it runs on can tell. `finishing`: the command has
    ended, and its recorder has not.
    """
    run, latest_ns = recent.run, recent.latest_ns
    end_ns = max(latest_ns or run.start_ns, 0 if now_ns is None else now_ns - flush_ns)
    since_ns = recent.since_ns
    lo_ns = end_ns if since_ns is None else max(since_ns, min(_first_work_ns(recent), end_ns))
    pace = measure_pace(recent, end_ns)
    state = _state(recent, status, end_ns, finishing=finishing)
    has_range = end_ns > lo_ns
    gil = measure_gil(run.samples, lo_ns, end_ns)
    stages = see_stages(recent, lo_ns, end_ns, gil) if has_range else ()
    readings = Readings(recent)
    gpus, gpus_reason = see_gpus(recent, readings)
    threads, threads_reason = see_threads(recent, gil)
    return LiveView(
        run=state,
        range_s=((lo_ns - run.start_ns) / 1e9, (end_ns - run.start_ns) / 1e9) if has_range else None,
        verdict=give_verdict(state, pace, stages, judgement.diagnosis, judgement.range_s),
        pace=pace,
        stages=stages,
        queues=see_queues(recent, lo_ns, end_ns) if has_range else (),
        limit=judgement.diagnosis.capacities.limit,
        gpus=gpus,
        gpus_reason=gpus_reason,
        threads=threads,
        threads_reason=threads_reason,
        memory=see_memory(recent, readings),
        journal=read_journal(recent),
        warnings=(*recent.warnings, *_said(run.manifest.get("warnings"))),
    )


def _first_work_ns(recent: Recent) -> int:
    """When the first stage began: a run that still loads has no shares to show of any."""
    spans = recent.run.events
    spans = spans[(spans["kind"] == "span") & ~spans["stage"].isin(beside)]
    return max(int(spans["t_ns"].min()), recent.run.start_ns) if len(spans) else recent.run.start_ns


def _state(recent: Recent, status: RunStatus, end_ns: int, *, finishing: bool) -> RunState:
    manifest = recent.run.manifest
    pids = manifest.get("pids")
    latest_ns = recent.latest_ns
    return RunState(
        path=str(recent.run.path),
        command=tuple(_said(manifest.get("command"))),
        status=status.status,
        reason=status.reason,
        # A run that cannot be told from here may still grow: on a disk shared with the machine it runs on.
        over=status.status not in ("running", "unknown") and not finishing,
        elapsed_s=max(0.0, (end_ns - recent.run.start_ns) / 1e9),
        silent_s=None if latest_ns is None else max(0.0, (end_ns - latest_ns) / 1e9),
        emulated=recent.run.emulated,
        recorded=isinstance(pids, dict) and pids.get("recorder") is not None,
    )


def _said(values: object) -> tuple[str, ...]:
    """A list of text in run.json."""
    return tuple(map(str, values)) if isinstance(values, list) else ()
