"""Is there enough of the run to judge? Fewer than ten steady windows or three batches a thread: no names."""

from __future__ import annotations

from typing import Final

from profiler.finding import Finding, Remedy
from profiler.rules.verdicts import lacking, quantity, share
from profiler.steady import min_windows
from profiler.timeline import Timeline

cause: Final = "not-enough-data"


def check(timeline: Timeline) -> list[Finding]:
    """Supported when no other cause may be judged."""
    lack, steady = lacking(timeline), timeline.steady
    lo_s, hi_s = timeline.range_s
    return [
        Finding(
            cause=cause,
            verdict="supported" if lack else "rejected",
            confidence=1.0,
            summary=f"Too little of the run was seen to name a cause: {lack}."
            if lack
            else f"Rejected: {steady.windows_used} steady windows were seen.",
            range_s=timeline.range_s,
            evidence=(
                quantity("steady windows", float(steady.windows_used), ""),
                quantity("warm-up windows cut", float(steady.warmup_windows), ""),
                quantity("range judged", hi_s - lo_s, "s"),
                share("windows that were steady", *_steady_share(timeline)),
            ),
            remedy=Remedy(
                f"Let it run for at least {2 * min_windows} windows, or take smaller ones for a short "
                "benchmark (window.tokens changes the training signal: for measuring only)."
            )
            if lack
            else None,
            condition="the run is too short, not stuck: windows do end",
            is_sickness=False,
            measured_cost_share=None,
            measured_cost_reason="lack of data costs no throughput",
            predicted_cost_s=None,
            predicted_cost_reason="lack of data costs no throughput",
            predicted_gain=None,
            predicted_gain_reason="lack of data costs no throughput",
        )
    ]


def _steady_share(timeline: Timeline) -> tuple[float | None, str | None]:
    seen = timeline.steady.windows_seen
    return (timeline.steady.windows_used / seen, None) if seen else (None, "no whole window was seen")
