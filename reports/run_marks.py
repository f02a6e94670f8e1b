"""What is marked on the time axis of a run: warm-up, findings and idle GPUs, as spans and lanes.

Knows nothing of how they are drawn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from profiler.finding import Diagnosis, Finding
from profiler.timeline import Timeline
from reports import style, text
from reports.time_chart import Lane, Span

_whole_share: Final = 0.9  # a finding over so much of the measured time is no stretch of its own
_most_gpus: Final = 8  # with a lane each; more share one
_most_views: Final = 5


class View(NamedTuple):
    """A stretch of time to look at, for readers who do not drag."""

    words: str
    start_s: float
    end_s: float


def mark_lanes(timeline: Timeline, diagnosis: Diagnosis) -> tuple[Lane, ...]:
    """One lane for each supported finding, then one for each GPU that stood still."""
    lanes = [
        Lane(
            name=finding.cause,
            pieces_s=(finding.range_s,),
            colour=style.bad if finding.is_sickness else style.accent,
        )
        for finding in diagnosis.findings
        if finding.supported
    ]
    gaps = timeline.idle_gaps
    devices = [str(name) for name in gaps["device"].unique()]
    groups = [(name, gaps[gaps["device"] == name]) for name in devices]
    if len(devices) > _most_gpus:
        groups = [(text.count_of(len(devices), "GPU"), gaps)]
    lanes += [
        Lane(
            name=f"{name} stood still",
            pieces_s=tuple(zip(mine["start_s"].tolist(), mine["end_s"].tolist(), strict=True)),
            colour=style.wait,
        )
        for name, mine in groups
    ]
    return tuple(lanes)


def mark_spans(timeline: Timeline, diagnosis: Diagnosis) -> tuple[Span, ...]:
    """Bands behind the panels: warm-up, findings that are about a part of the time, idle gaps."""
    measured = diagnosis.throughput
    spans = []
    if measured.range_s is not None and measured.warmup_s:
        spans.append(Span(name="warm-up", start_s=0.0, end_s=measured.range_s[0]))
    spans += [
        Span(name=finding.cause, start_s=finding.range_s[0], end_s=finding.range_s[1])
        for finding in diagnosis.findings
        if finding.supported and _is_part(finding, timeline)
    ]
    gaps = timeline.idle_gaps
    return (
        *spans,
        *(
            Span(name="", start_s=float(start), end_s=float(end))
            for start, end in zip(gaps["start_s"], gaps["end_s"], strict=True)
        ),
    )


def list_views(timeline: Timeline, diagnosis: Diagnosis) -> tuple[View, ...]:
    """What is worth a look from near: the measured time, partial findings, the longest idle gaps."""
    views = []
    if diagnosis.throughput.range_s is not None:
        views.append(View("measured time", *diagnosis.throughput.range_s))
    views += [
        View(finding.cause, *finding.range_s)
        for finding in diagnosis.findings
        if finding.supported and _is_part(finding, timeline)
    ]
    for gap in timeline.idle_gaps.sort_values("seconds", ascending=False).head(2).to_dict("records"):
        around = 4 * float(gap["seconds"])
        words = f"{gap['device']} still for {text.duration(gap['seconds'])}"
        views.append(View(words, max(gap["start_s"] - around, 0.0), gap["end_s"] + around))
    return tuple(views[:_most_views])


def _is_part(finding: Finding, timeline: Timeline) -> bool:
    start, end = timeline.range_s
    return finding.range_s[1] - finding.range_s[0] < _whole_share * (end - start)
