"""Copies beside the stages take longer than the stages' work: links set the pace, and are alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Evidence, Finding, Remedy
from profiler.rules import numa_remote_host_buffers, straggling_link
from profiler.rules.remedies import fastest_ways
from profiler.rules.verdicts import (
    Case,
    Check,
    compared_cost_share,
    judge,
    percent,
    quantity,
    queue_state_share,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "link-bound"


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What the stages wait for copies; 0 where some links are slow, which have causes of their own."""
    if _has_slow_links(timeline, loads):
        return 0.0
    return loads.lost_share(target=loads.target.copy_wait, drafter=loads.drafter.copy_wait)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when a link is under way most of the time and stages wait for its copies."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    place, taken, rate = _busiest_end(timeline)
    case = Case(
        cause=cause,
        summary="Copies of hidden states take longer than the stages' work, and links set the pace",
        cost=cost(timeline, loads),
        checks=[
            Check(not _has_slow_links(timeline, loads), "some links are slower than their equals"),
            Check(taken is not None and taken >= queue_state_share, "no link is busy most of the time"),
        ],
        evidence=[
            share("targets waiting for copies", loads.target.copy_wait),
            share("drafters waiting for copies", loads.drafter.copy_wait),
            share(f"time of copies {place}", taken, "no copies were timed"),
            quantity("rate of these copies", rate, "GB/s", "no bytes of copies were recorded"),
            *_work(loads),
        ],
        remedy=Remedy(
            "Measure the links (dflash-profile links) and take the fastest way for each pair of devices: "
            "transport.preset=auto. Or send less: transport.trim, or a colocated split, whose hidden states "
            "stay where they are.",
            fastest_ways(timeline),
        ),
        condition="another way is faster, or the states need not travel",
    )
    return [judge(case, timeline)]


def with_split(finding: Finding, split: str, gain: float) -> Finding:
    """The finding with the split that a forecast has chosen."""
    text = (
        f"Let hidden states travel less: of the splits that are possible, pipeline.split={split} is forecast "
        f"to help most with fewest devices, by {percent(gain)}. Or send less: transport.trim."
    )
    return replace(finding, remedy=Remedy(text, {"pipeline.split": split}), condition="the forecast holds")


def _has_slow_links(timeline: Timeline, loads: Loads) -> bool:
    costs = (rule.cost(timeline, loads) or 0.0 for rule in (straggling_link, numa_remote_host_buffers))
    return max(costs) >= compared_cost_share


def _work(loads: Loads) -> list[Evidence]:
    return [share("targets working", loads.target.busy), share("drafters working", loads.drafter.busy)]


def _busiest_end(timeline: Timeline) -> tuple[str, float | None, float | None]:
    """Where copies beside the stages take most time: in words, the share of it, and their rate in GB/s."""
    copies = timeline.copies[timeline.copies["stage"] == "link"]
    lo_ns, hi_ns = timeline.range_ns
    ends = [
        (word, str(end), rows)
        for word, column in (("from", "src"), ("to", "dst"))
        for end, rows in copies[copies[column] != "host"].groupby(column, observed=True)
    ]
    if not ends or hi_ns <= lo_ns:
        return "on links", None, None
    word, end, rows = max(ends, key=lambda found: float(found[2]["seconds"].sum()))
    seconds, size = float(rows["seconds"].sum()), float(rows["bytes"].sum(skipna=False))
    rate = size / 1e9 / seconds if size == size and seconds > 0 else None
    return f"{word} {end}", min(seconds / ((hi_ns - lo_ns) / 1e9), 1.0), rate
