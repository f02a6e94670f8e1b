"""From a Timeline to a Diagnosis: all rules applied, ordered, and said in three sentences.

Knows nothing of single causes, nor of how a diagnosis is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from profiler.capacity import Capacities, Loads, measure_capacities, measure_loads
from profiler.device_places import places_of
from profiler.explanation import explain
from profiler.finding import ClosingPart, ClosingSum, Diagnosis, Finding
from profiler.forecast.gains import predict_gains
from profiler.forecast.run_forecast import RunForecast
from profiler.hardware_limit import Limit
from profiler.rules import all_rules, allocator_fragmentation, host_memory_exhausted_swapping, not_enough_data
from profiler.rules.verdicts import healthy_efficiency, percent
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline
from profiler.waits import name_of_part

of_whole_runs = (
    host_memory_exhausted_swapping.cause,
    allocator_fragmentation.cause,
)  # they find their own range
consequences = {
    # Small batches bring more launches and more Python a token with them.
    "token-budget-too-small": ("gil-contention", "python-packing-loop", "per-step-scalar-sync"),
    # A batch that is moved from one drafter to another goes over links twice.
    "shared-queue-cross-device": ("link-bound",),
    # Who waits for a copy keeps the other drafters waiting at the window's end.
    "straggling-link": ("gradient-sync-wait",),
    "numa-remote-host-buffers": ("gradient-sync-wait",),
    "link-bound": ("gradient-sync-wait",),
    "one-gpu-throttled": ("drafter-too-slow",),  # where it is a drafter's
}
_no_limit = Limit(reason="not worked out: it takes the run's directory, not its times alone")
_verdict_order = {"supported": 0, "not_enough_evidence": 1, "rejected": 2}


def diagnose(timeline: Timeline, forecast: RunForecast | None = None, limit: Limit = _no_limit) -> Diagnosis:
    """What limits the run. Pure: reads the timeline only.

    `forecast`: of the same run, for predicted gains; None: one from the timeline alone. `limit`: of its
    hardware, which is passed on.
    """
    throughput = measure_throughput(timeline)
    loads = measure_loads(timeline)
    capacities = measure_capacities(loads, throughput, places_of(timeline))
    findings = predict_gains(forecast or RunForecast(timeline), rank(_consider(timeline), timeline))
    primary = next((finding for finding in findings if finding.supported), None)
    headline, why, next_step = _say(primary, timeline) if primary else _say_unexplained(loads, capacities)
    if primary and (others := _in_turn(findings)):
        headline = f"{headline} {others}"
    return Diagnosis(
        headline=headline,
        why=why,
        next_step=next_step,
        findings=findings,
        throughput=throughput,
        capacities=capacities,
        closing_sums=closing_sums(timeline),
        limit=limit,
        emulated=timeline.emulated,
        warnings=(*timeline.warnings, *timeline.host_memory.warnings(), *_changes(timeline)),
    )


def rank(findings: list[Finding], timeline: Timeline | None = None) -> tuple[Finding, ...]:
    """Supported ones first, sicknesses before states, the dearer first; the rules' own order breaks ties.

    In a run that changed, the cost of a cause counts for as long as it held. A cause comes before its own
    consequences, whatever they cost.
    """
    named = [finding for finding in findings if finding.supported]
    whole_s = _whole_s(timeline) if timeline is not None and timeline.segments else None

    def cost(finding: Finding) -> float:
        held_s = finding.range_s[1] - finding.range_s[0]
        part = 1.0 if whole_s is None else min(held_s / whole_s, 1.0)
        lost = finding.measured_cost_share
        if lost is None and finding.supported and finding.is_sickness and timeline is not None:
            lost = _slower_than_others(finding, timeline)
        return part * (lost or 0.0)

    def causes(root: Finding, effect: Finding) -> bool:
        return effect.cause in consequences.get(root.cause, ()) and _overlap_s(root, effect) > 0

    def place(finding: Finding) -> tuple[int, bool, float, bool]:
        caused = any(causes(root, finding) for root in named)
        dearest = max([cost(finding), *(cost(f) for f in named if causes(finding, f))])
        return _verdict_order[finding.verdict], not finding.is_sickness, -dearest, caused

    return tuple(sorted(findings, key=place))


def _slower_than_others(finding: Finding, timeline: Timeline) -> float:
    """Share of the throughput at least lost to a cause without a price: against the run's best stretch."""
    paces = [
        (_overlap_s(finding, part) > 0.5 * (part.range_s[1] - part.range_s[0]), pace)
        for part in timeline.segments
        if (pace := _pace(part)) > 0
    ]
    mine = [pace for held, pace in paces if held]
    return max(1.0 - min(mine) / max(pace for _, pace in paces), 0.0) if mine else 0.0


def _pace(part: Timeline) -> float:
    """Tokens/s of a stretch's steady windows; 0 where there are none."""
    lo_ns, hi_ns = part.range_ns
    inside = part.windows[(part.windows["start_ns"] >= lo_ns) & (part.windows["end_ns"] <= hi_ns)]
    seconds = float(inside["seconds"].sum())
    return float(inside["tokens"].sum()) / seconds if seconds > 0 else 0.0


def _overlap_s(one: Finding, other: Finding | Timeline) -> float:
    return min(one.range_s[1], other.range_s[1]) - max(one.range_s[0], other.range_s[0])


def _whole_s(timeline: Timeline) -> float:
    return timeline.segments[-1].range_s[1] - timeline.segments[0].range_s[0]


def _consider(timeline: Timeline) -> list[Finding]:
    """Every rule on the run; of one that changed for good, on each stretch, where their causes differ."""
    whole = [finding for rule in all_rules for finding in rule(timeline)]
    if not timeline.segments:
        return whole
    parts = [_of_stretch(timeline, place) for place in range(len(timeline.segments))]
    told = [tuple(finding.cause for finding in part if finding.supported) for part in parts]
    if len(set(told)) == 1 or _told_s(parts) < 0.5 * _whole_s(timeline):
        return whole
    named = _joined([f for part in parts for f in part if f.supported and f.cause not in of_whole_runs])
    named = [finding for finding in named if finding.cause != not_enough_data.cause]
    lasting = [finding for finding in whole if finding.supported and finding.cause in of_whole_runs]
    named = [f for f in named if f.is_sickness or not any(_fills(sick, f) for sick in lasting)] + lasting
    causes = {finding.cause for finding in named}
    longest = max(parts, key=lambda part: part[0].range_s[1] - part[0].range_s[0])
    rest = {finding.cause: finding for finding in longest if not finding.supported}
    rest |= {finding.cause: finding for finding in whole if not finding.supported}
    return named + [finding for cause, finding in rest.items() if cause not in causes]


def _told_s(parts: list[list[Finding]]) -> float:
    """Time of the stretches of which something is known: a sound one in between says little of the run."""
    known = [p[0].range_s for p in parts if any(f.supported and f.cause != not_enough_data.cause for f in p)]
    return sum(end_s - begin_s for begin_s, end_s in known)


def _fills(sickness: Finding, state: Finding) -> bool:
    """Whether the sickness holds for most of the time for which a stretch by itself looked sound."""
    return _overlap_s(sickness, state) > 0.5 * (state.range_s[1] - state.range_s[0])


def _of_stretch(timeline: Timeline, place: int) -> list[Finding]:
    """Every rule on one stretch. What holds over its steady part holds from the stretch before it on."""
    part = timeline.segments[place]
    begin_s = timeline.segments[place - 1].range_s[1] if place else timeline.range_s[0]
    whole = (min(begin_s, part.range_s[0]), part.range_s[1])
    found = [finding for rule in all_rules for finding in rule(part)]
    return [replace(f, range_s=whole) if f.range_s == part.range_s else f for f in found]


def _joined(findings: list[Finding]) -> list[Finding]:
    """A cause that holds over neighbouring stretches is one finding, with the evidence of the dearest."""
    kept: list[Finding] = []
    for finding in findings:
        last = next((other for other in reversed(kept) if other.cause == finding.cause), None)
        if last is None or finding.range_s[0] > last.range_s[1] + 0.1 * (last.range_s[1] - last.range_s[0]):
            kept.append(finding)
            continue
        dearer = max(last, finding, key=lambda each: each.measured_cost_share or 0.0)
        joined = (min(last.range_s[0], finding.range_s[0]), max(last.range_s[1], finding.range_s[1]))
        kept[kept.index(last)] = replace(dearer, range_s=joined)
    return kept


def _in_turn(findings: tuple[Finding, ...]) -> str:
    """The other causes of a run whose causes took turns, with their times; empty where there is one range."""
    named = [finding for finding in findings if finding.supported]
    first, *others = named
    apart = [
        f for f in others if f.range_s[0] >= first.range_s[1] - 1 or f.range_s[1] <= first.range_s[0] + 1
    ]
    if not apart:
        return ""
    said = "; ".join(f"from {f.range_s[0]:.0f} to {f.range_s[1]:.0f} s {f.cause}" for f in apart)
    return f"This from {first.range_s[0]:.0f} to {first.range_s[1]:.0f} s; {said}."


def _changes(timeline: Timeline) -> list[str]:
    if not timeline.segments:
        return []
    times = ", ".join(f"{part.range_s[0]:.0f} s" for part in timeline.segments[1:])
    return [f"the run changed for good at about {times}: causes are told with the time they held"]


def closing_sums(timeline: Timeline) -> tuple[ClosingSum, ...]:
    """Where each stage thread's time went, largest part first within each kind."""
    lo_ns, hi_ns = timeline.range_ns
    groups = timeline.threads.groupby(["stage", "index", "device", "tid"], observed=True, sort=False)
    keys: list[Any] = list(groups.groups)
    return tuple(
        ClosingSum(
            str(stage),
            int(index),
            str(device),
            int(tid),
            (hi_ns - lo_ns) / 1e9,
            _parts(groups.get_group(key)),
        )
        for key in keys
        for stage, index, device, tid in [key]
    )


def _parts(rows: pd.DataFrame) -> tuple[ClosingPart, ...]:
    parts = [
        ClosingPart(
            row["kind"],
            name_of_part(row["kind"], row["name"], row["channel"], row["path"]),
            float(row["seconds"]),
            float(row["share"]),
        )
        for row in rows.to_dict("records")
    ]
    return tuple(sorted(parts, key=lambda part: (part.kind == "unaccounted", -part.seconds)))


def _say(finding: Finding, timeline: Timeline) -> tuple[str, str, str]:
    remedy = finding.remedy.text if finding.remedy else "Nothing to do."
    if finding.remedy and finding.remedy.knobs:
        remedy += f" Try: {_assignments(finding.remedy.knobs)}."
    return finding.summary, explain(finding, timeline), remedy


def _assignments(knobs: Mapping[str, object]) -> str:
    return " ".join(f"--set {name}={value}" for name, value in knobs.items())


def _say_unexplained(loads: Loads | None, capacities: Capacities) -> tuple[str, str, str]:
    """No rule was convinced: say how much is lost and where the time went, and accuse nobody."""
    reached = capacities.pipeline_efficiency
    losses = [
        (part, f"{load.stage}s: {name} {percent(part)}")
        for load in ([loads.target, loads.drafter] if loads else [])
        for name, part in [
            *load.waits.items(),
            ("own copies", load.copies),
            ("waiting for the GIL", load.gil_wait),
            ("unaccounted", load.unaccounted),
        ]
        if part >= 0.02
    ]
    largest = "; ".join(text for _, text in sorted(losses, reverse=True)[:4])
    pace = "unknown" if reached is None else percent(reached)
    return (
        f"No single known cause: the pipeline reaches {pace} of what its stages allow.",
        f"Where time went beside work: {largest}." if largest else "Work fills the time of every stage.",
        "Nothing to change on this evidence. The closing sums show the rest; a longer run tells more."
        if reached is not None and reached >= healthy_efficiency
        else "No rule knows what took the rest. Closing sums show where it went; a longer run tells more.",
    )
