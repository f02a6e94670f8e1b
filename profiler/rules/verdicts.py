"""How a rule comes to a verdict: the cost must be worth naming, and every tell-tale must be there.

The thresholds are public (docs/diagnosis.md). Knows nothing of particular causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profiler.capacity import Loads
from profiler.finding import Evidence, Finding, Remedy, Verdict, cost_name
from profiler.timeline import Timeline
from profiler.waits import family_of

named_cost_share: Final = 0.08  # of the throughput; what costs less is not named
compared_cost_share: Final = 0.04  # where one run holds its own comparison: siblings, or before and after
sure_cost_share: Final = 0.25  # from here on a cost alone leaves no doubt
queue_state_share: Final = 0.5  # of the time a queue must be nearly full (or nearly empty) to be called so
away_share: Final = 0.1  # of the takes
deep_items: Final = 8.0  # hidden-state batches waiting in host memory, over all queues, on average
staged_rss_share: Final = 0.05  # of the process's memory
healthy_efficiency: Final = 0.85  # of what the stages alone allow
_missing_penalty = 0.15  # of confidence, for each tell-tale that could not be read
no_forecast = "no forecast yet"


@dataclass(frozen=True, slots=True)
class Check:
    """A tell-tale: whether it is there (None: cannot be known), and the sentence when it is not."""

    holds: bool | None
    otherwise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a rule brings forward; `judge` makes the Finding of it."""

    cause: str
    summary: str  # when supported
    cost: float | None  # share of the throughput
    cost_reason: str | None = None  # why it is unknown
    checks: Sequence[Check] = ()
    evidence: Sequence[Evidence | None] = ()
    remedy: Remedy | None = None
    condition: str | None = None
    least_cost: float = named_cost_share
    predicted_cost_s: float | None = None
    predicted_cost_reason: str | None = "this cause is a wait, not work that arithmetic could price"


def judge(case: Case, timeline: Timeline) -> Finding:
    """The verdict on a sickness."""
    lack = lacking(timeline)
    cost = None if lack else case.cost
    unknown = None if cost is not None else lack or case.cost_reason or "the pace of a stage is unknown"
    verdict, confidence, summary = _decide(case, cost, unknown)
    evidence = tuple(item for item in case.evidence if item is not None)
    return Finding(
        cause=case.cause,
        verdict=verdict,
        confidence=confidence,
        summary=summary,
        range_s=timeline.range_s,
        evidence=(share(cost_name, cost, unknown), *evidence),
        remedy=case.remedy if verdict == "supported" else None,
        condition=case.condition,
        is_sickness=True,
        measured_cost_share=cost,
        measured_cost_reason=unknown,
        predicted_cost_s=case.predicted_cost_s,
        predicted_cost_reason=None if case.predicted_cost_s is not None else case.predicted_cost_reason,
        predicted_gain=None,
        predicted_gain_reason=no_forecast,
    )


def unjudged(cause: str, timeline: Timeline) -> Finding:
    """The finding of a rule that lacks a whole stage."""
    reason = "the run holds no spans of targets, or none of drafters"
    return judge(Case(cause=cause, summary="", cost=None, cost_reason=reason), timeline)


def _decide(case: Case, cost: float | None, unknown: str | None) -> tuple[Verdict, float, str]:
    if cost is None:
        return "not_enough_evidence", 0.0, f"Not judged: {unknown}."
    if cost < case.least_cost:
        doubt = cost / case.least_cost
        return "rejected", 0.95 - 0.45 * doubt, f"Rejected: it costs {percent(cost)} of the throughput."
    for check in case.checks:
        if check.holds is False:
            return "rejected", 0.8, f"Rejected: {check.otherwise}."
    missing = sum(check.holds is None for check in case.checks)
    strength = min((cost - case.least_cost) / (sure_cost_share - case.least_cost), 1.0)
    confidence = max(0.5 + 0.45 * strength - _missing_penalty * missing, 0.1)
    weakly = "" if strength > 0.25 else " (weak)"
    return "supported", confidence, f"{case.summary}: {percent(cost)} of the throughput is lost{weakly}."


def lacking(timeline: Timeline) -> str | None:
    """What a verdict lacks: steady windows, or whole batches of a stage. None: nothing."""
    if timeline.steady.reason is not None:
        return timeline.steady.reason
    for stage in ("target", "drafter"):
        served, mine = (frame["stage"].to_numpy() == stage for frame in (timeline.service, timeline.devices))
        batches = float(timeline.service["batches"].to_numpy(dtype=float)[served].sum())
        columns = (timeline.devices[name].to_numpy()[mine] for name in ("index", "tid"))
        threads = len(set(zip(*columns, strict=True)))  # every rule asks: sets cost a tenth of frames
        if batches < 3 * max(threads, 1):
            return (
                f"{batches:.1f} batches of the {stage} stage fall into the steady range; "
                f"at least 3 for each of its {max(threads, 1)} threads are needed"
            )
    return None


def queue_share(timeline: Timeline, family: str, column: str) -> float | None:
    """The mean of a depth column over the queues of a family (`q_pre`, `q_hs`); None when not recorded."""
    mine = [family_of(channel) == family for channel in timeline.depths["channel"]]
    values = timeline.depths[column].to_numpy(dtype=float)[np.array(mine, dtype=bool)]
    return float(values.mean()) if len(values) and bool(np.isfinite(values).all()) else None


def is_mostly(value: float | None) -> bool | None:
    """Whether a share of time makes a state of it; None stays unknown."""
    return None if value is None else value >= queue_state_share


def nearly_full(timeline: Timeline, loads: Loads) -> bool | None:
    """Whether the hidden-state queues are nearly full most of the time, have become so, or soon will."""
    if loads.still_filling:
        return True
    late, capacity = (queue_share(timeline, "q_hs", column) for column in ("late_mean", "capacity"))
    if late is not None and capacity is not None and late >= 0.75 * capacity:
        return True
    return is_mostly(queue_share(timeline, "q_hs", "high_share"))


def share(name: str, value: float | None, reason: str | None = None) -> Evidence:
    """Evidence that is a part of a whole, 0 to 1."""
    return _evidence(name, value, "share", "" if value is None else percent(value), reason)


def queue_evidence(timeline: Timeline, family: str, column: str) -> Evidence:
    """How full a kind of queue was."""
    words = {"high_share": "nearly full", "low_share": "nearly empty"}[column]
    reason = "depths or the capacity of the queue were not recorded"
    return share(f"time {family} is {words}", queue_share(timeline, family, column), reason)


def seconds(name: str, value: float | None, reason: str | None = None) -> Evidence:
    """Evidence that is a duration."""
    return _evidence(name, value, "s", "" if value is None else f"{value:.3g} s", reason)


def quantity(name: str, value: float | None, unit: str, reason: str | None = None) -> Evidence:
    """Evidence that is an amount of `unit`; bytes and rates are shown with a prefix."""
    if unit == "GB/s" and value is not None:  # slow links are not told in thousandths
        return _evidence(name, value, unit, amount(1e9 * value, "B/s"), reason)
    return _evidence(name, value, unit, "" if value is None else amount(value, unit), reason)


def _evidence(name: str, value: float | None, unit: str, text: str, reason: str | None) -> Evidence:
    if value is not None:
        return Evidence(name, value, unit, text)
    reason = reason or "not recorded"
    return Evidence(name, None, unit, f"n/a: {reason}", reason)


def percent(value: float) -> str:
    """0.553 as "55 %"; small ones keep a digit."""
    return f"{100 * value:.1f} %" if 0.0005 <= abs(value) < 0.095 else f"{100 * value:.0f} %"


def amount(value: float, unit: str) -> str:
    """A number with a unit and, where it is long, an SI prefix."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()
