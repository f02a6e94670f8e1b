"""From a Timeline to a Diagnosis: all rules applied, ordered, and said in three sentences.

Knows nothing of single causes, nor of how a diagnosis is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler.capacity import Capacities, Loads, measure_capacities, measure_loads, shares_devices
from profiler.finding import ClosingPart, ClosingSum, Diagnosis, Evidence, Finding
from profiler.forecast.gains import predict_gains
from profiler.rules import all_rules
from profiler.rules.verdicts import percent
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline
from profiler.waits import name_of_part

_shown_evidence = 5  # numbers in the Why sentence; the rest stays with the finding
_verdict_order = {"supported": 0, "not_enough_evidence": 1, "rejected": 2}


def diagnose(timeline: Timeline) -> Diagnosis:
    """What limits the run. Pure: reads the timeline only."""
    throughput = measure_throughput(timeline)
    loads = measure_loads(timeline)
    capacities = measure_capacities(loads, throughput, shared_device=shares_devices(timeline))
    findings = predict_gains(timeline, rank([finding for rule in all_rules for finding in rule(timeline)]))
    primary = next((finding for finding in findings if finding.supported), None)
    headline, why, next_step = _say(primary) if primary else _say_unexplained(loads, capacities)
    return Diagnosis(
        headline=headline,
        why=why,
        next_step=next_step,
        findings=findings,
        throughput=throughput,
        capacities=capacities,
        closing_sums=closing_sums(timeline),
        emulated=timeline.emulated,
        warnings=(*timeline.warnings, *timeline.host_memory.warnings()),
    )


def rank(findings: list[Finding]) -> tuple[Finding, ...]:
    """Supported ones first, sicknesses before states, the dearer first; the rules' own order breaks ties."""

    def place(finding: Finding) -> tuple[int, bool, float]:
        cost = finding.measured_cost_share or 0.0
        return _verdict_order[finding.verdict], not finding.is_sickness, -cost

    return tuple(sorted(findings, key=place))


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


def _say(finding: Finding) -> tuple[str, str, str]:
    shown = [item for item in finding.evidence if item.value is not None][:_shown_evidence]
    remedy = finding.remedy.text if finding.remedy else "Nothing to do."
    if finding.remedy and finding.remedy.knobs:
        remedy += f" Try: {_assignments(finding.remedy.knobs)}."
    return finding.summary, f"{'; '.join(map(_sentence, shown))}.", remedy


def _sentence(item: Evidence) -> str:
    return f"{item.name}: {item.text}"


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
        "Nothing to change on this evidence. The closing sums show the rest; a longer run tells more.",
    )
