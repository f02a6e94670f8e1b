"""The stage that sets the pace runs on a slow fallback: the fast kernels are not installed, or not usable.

A run tells which kernels it uses; only a run with the fast ones tells what they bring, so this cause has no
price. Knows nothing of kernels but what the run says of them.
"""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Evidence, Finding, Remedy, Verdict
from profiler.rules.verdicts import healthy_efficiency, lacking, no_forecast, percent, share, unjudged
from profiler.timeline import Timeline

cause: Final = "slow-kernel-fallback"
_marks: Final = ("(slow)", "fallback", "reference pytorch")  # in what a run says of a kernel
_unpriced: Final = "only a run with the fast kernels tells what they bring"
_confidence: Final = 0.8


def fallbacks(timeline: Timeline) -> dict[str, str]:
    """{part: what the run says of its kernel} where that is a fallback.

    On logical devices, which have no fast kernels to miss, only what calls itself one counts.
    """
    marks = ("fallback",) if timeline.emulated else _marks
    return {
        part: words
        for part, words in (timeline.kernels or {}).items()
        if any(mark in words.lower() for mark in marks)
    }


def hampered(timeline: Timeline, loads: Loads) -> dict[str, str]:
    """The fallbacks of the stage that sets the pace, if its work fills its time."""
    load = loads.target if loads.target.busy >= loads.drafter.busy else loads.drafter
    if load.busy + load.gil_wait < healthy_efficiency:
        return {}
    return {
        part: words
        for part, words in fallbacks(timeline).items()
        if part.startswith(("drafter", "loss", "optimizer")) == (load.stage == "drafter")
    }


def check(timeline: Timeline) -> list[Finding]:
    """Supported when the limiting stage works all the time and the run says that it does so on a fallback."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    verdict, summary = _decide(timeline, loads)
    return [
        Finding(
            cause=cause,
            verdict=verdict,
            confidence=0.0 if verdict == "not_enough_evidence" else _confidence,
            summary=summary,
            range_s=timeline.range_s,
            evidence=(
                share("targets working", loads.target.busy),
                share("drafters working", loads.drafter.busy),
                *(
                    Evidence(f"kernel of {part}", 1.0, "", words)
                    for part, words in fallbacks(timeline).items()
                ),
            ),
            remedy=Remedy(
                f"Install the fast kernels: {'; '.join(hampered(timeline, loads).values())}. The start-up "
                "line names the kernels in use."
            )
            if verdict == "supported"
            else None,
            condition="a wheel of the kernels exists for this GPU, CUDA and torch",
            is_sickness=True,
            measured_cost_share=None,
            measured_cost_reason=_unpriced,
            predicted_cost_s=None,
            predicted_cost_reason=_unpriced,
            predicted_gain=None,
            predicted_gain_reason=no_forecast,
        )
    ]


def _decide(timeline: Timeline, loads: Loads) -> tuple[Verdict, str]:
    lack = lacking(timeline)
    if lack is not None:
        return "not_enough_evidence", f"Not judged: {lack}."
    if timeline.kernels is None:
        return "not_enough_evidence", "Not judged: the run does not say which kernels it uses."
    if not fallbacks(timeline):
        return "rejected", "Rejected: the run names no fallback among its kernels."
    slow = hampered(timeline, loads)
    if not slow:
        busiest = max(loads.target.busy, loads.drafter.busy)
        return (
            "rejected",
            f"Rejected: the stage on it is not the limit (work fills {percent(busiest)} at most).",
        )
    parts = ", ".join(f"{part}: {words}" for part, words in slow.items())
    return "supported", f"The stage that sets the pace runs on slow fallback kernels ({parts})."
