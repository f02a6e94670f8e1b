"""Is there enough of the run to judge? Fewer than ten steady windows or three batches a thread: no names."""

from __future__ import annotations

from typing import Final

from profiler import signals
from profiler.finding import Evidence, Finding, Remedy
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
            summary=_summary(timeline, lack),
            range_s=timeline.range_s,
            evidence=(
                *(_seen(timeline) if lack else ()),
                quantity("steady windows", float(steady.windows_used), ""),
                quantity("warm-up windows cut", float(steady.warmup_windows), ""),
                quantity("range judged", hi_s - lo_s, "s"),
                share("windows that were steady", *_steady_share(timeline)),
                *(_missing(timeline) if lack else ()),
            ),
            remedy=Remedy(_remedy(timeline)) if lack else None,
            condition="the run is too short, not stuck: windows do end" if steady.windows_seen else None,
            is_sickness=False,
            measured_cost_share=None,
            measured_cost_reason="lack of data costs no throughput",
            predicted_cost_s=None,
            predicted_cost_reason="lack of data costs no throughput",
            predicted_gain=None,
            predicted_gain_reason="lack of data costs no throughput",
        )
    ]


def _summary(timeline: Timeline, lack: str | None) -> str:
    if lack is None:
        return f"Rejected: {timeline.steady.windows_used} steady windows were seen."
    if timeline.failure is not None:
        return f"The run failed before enough of it was seen to name a cause: {timeline.failure}."
    too_little = "Too little of the run was seen to name a cause"
    if not len(timeline.threads) and not timeline.steady.windows_seen:
        return f"{too_little}: the command tells nothing of its stages, queues and steps."
    if len(timeline.threads) and not signals.named_stages(timeline):
        return f"{too_little}: {signals.missing_signals(timeline)[0].reason}."
    return f"{too_little}: {lack}."


def _remedy(timeline: Timeline) -> str:
    if timeline.failure is not None:
        return "Mend that first: what the command said of it stands in its own output, or in the run's log."
    missing = [
        signal.name for signal in signals.missing_signals(timeline) if signal.reason == signals.instrument
    ]
    if missing:
        return (
            f"Missing: {'; '.join(missing)}. Tell them from inside the trainer, in about ten lines "
            "(docs/probe-api.md), or import its own metrics: dflash-profile import FILE (docs/import.md)."
        )
    if not signals.named_stages(timeline):
        return "Call the stages target and drafter (docs/probe-api.md), or read the closing sums as they are."
    return (
        f"Let it run for at least {2 * min_windows} windows, or take smaller ones for a short "
        "benchmark (window.tokens changes the training signal: for measuring only)."
    )


def _seen(timeline: Timeline) -> list[Evidence]:
    """What can be said without an instrument, and of stages that no cause is known for."""
    if signals.named_stages(timeline):
        return []
    unsampled = "host memory and CPU time were not sampled"
    return [
        *(share(f"{stage} {what}", part) for stage, what, part in signals.stage_sums(timeline)),
        quantity("CPU cores in use", signals.cores_used(timeline), "", unsampled),
        quantity("resident memory at most", signals.peak_resident_bytes(timeline), "B", unsampled),
        share("utilisation of the busiest GPU", signals.mean_utilisation(timeline), "no GPU was read"),
        share("time any thread holds the GIL", signals.gil_held_share(timeline), timeline.gil.no_holders),
    ]


def _missing(timeline: Timeline) -> list[Evidence]:
    return [
        share(f"missing: {signal.name}", None, signal.reason) for signal in signals.missing_signals(timeline)
    ]


def _steady_share(timeline: Timeline) -> tuple[float | None, str | None]:
    seen = timeline.steady.windows_seen
    return (timeline.steady.windows_used / seen, None) if seen else (None, "no whole window was seen")
