"""What the last minute means, in three sentences: how the run ended, whether it stands still, what limits it.

The rules of a diagnosis judge; here it is only said what they lack. Knows nothing of files.
"""

from __future__ import annotations

from typing import Final

from profiler.finding import Diagnosis
from profiler.live.view import Pace, RunState, StageRow, Verdict
from profiler.rules import not_enough_data
from profiler.steady import min_windows

stalled_s: Final = 20.0  # without the end of a window …
stalled_windows: Final = 8.0  # … and so many times as long as one usually takes: it stands still
stalled_without_usual_s: Final = 600.0  # the same where no usual length is known
_threads_named = 4


def give_verdict(
    state: RunState,
    pace: Pace,
    stages: tuple[StageRow, ...],
    diagnosis: Diagnosis,
    range_s: tuple[float, float] | None,
) -> Verdict:
    """The most pressing thing there is to say. `range_s`: what the diagnosis is about."""
    if state.status == "failed":
        return _say_failed(state, diagnosis, range_s)
    if state.status == "running" and _stands_still(pace):
        return _say_still(pace, stages, range_s)
    primary = diagnosis.primary
    if primary is not None and primary.cause == not_enough_data.cause:
        return _say_early(state, pace, primary.summary, range_s)
    sick = primary is not None and primary.is_sickness
    return Verdict(
        mood="sick" if sick else "unknown" if primary is None else "healthy",
        headline=diagnosis.headline,
        why=diagnosis.why,
        next_step=diagnosis.next_step,
        cause=None if primary is None else primary.cause,
        range_s=range_s,
    )


def _say_failed(state: RunState, diagnosis: Diagnosis, range_s: tuple[float, float] | None) -> Verdict:
    return Verdict(
        mood="failed",
        headline=f"The run failed: {state.reason or 'no reason was recorded'}",
        why=f"Before that: {diagnosis.headline}",
        next_step="",
        cause=None,
        range_s=range_s,
    )


def _stands_still(pace: Pace) -> bool:
    if pace.last_window_s is None:
        return False
    usual_s = pace.window_s
    limit_s = stalled_without_usual_s if usual_s is None else max(stalled_s, stalled_windows * usual_s)
    return pace.last_window_s > limit_s


def _say_still(pace: Pace, stages: tuple[StageRow, ...], range_s: tuple[float, float] | None) -> Verdict:
    usual = "" if pace.window_s is None else f"; one usually takes {pace.window_s:.2g} s"
    quiet = sorted((row for row in stages if not row.ended), key=lambda row: -row.quiet_s)[:_threads_named]
    threads = ", ".join(f"{row.stage} {row.index} for {row.quiet_s:.0f} s" for row in quiet)
    return Verdict(
        mood="stalled",
        headline=f"No window has ended for {pace.last_window_s:.0f} s{usual}.",
        why=f"At one and the same thing: {threads}." if threads else "No stage thread has told anything.",
        next_step="Unless it validates or saves: `py-spy dump --pid PID` shows where each thread stands.",
        cause=None,
        range_s=range_s,
    )


def _say_early(state: RunState, pace: Pace, summary: str, range_s: tuple[float, float] | None) -> Verdict:
    if state.over:
        headline, why, next_step = summary, f"{pace.windows} windows were seen.", ""
    elif pace.last_window_s is None:
        headline = "No window has ended yet: it loads, or trains its first one."
        why = "A rate needs two windows, a verdict ten steady ones."
        next_step = "Wait." if (state.silent_s or 0.0) < stalled_s else f"Silent for {state.silent_s:.0f} s."
    else:
        missing = max(min_windows - pace.windows, 1)
        headline = f"Too early to say what limits it: {pace.windows} whole windows in the range."
        why = f"Missing: {summary.partition(': ')[2] or summary}"
        after = "" if pace.window_s is None else f", in about {missing * pace.window_s:.0f} s at this pace"
        next_step = f"A verdict needs {min_windows} steady windows{after}."
    return Verdict(
        mood="unknown",
        headline=headline,
        why=why,
        next_step=next_step,
        cause=not_enough_data.cause,
        range_s=range_s,
    )
