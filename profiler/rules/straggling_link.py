"""One link of several that should be alike is far slower, and memory nodes do not explain it.

Between two GPUs, or between a GPU and host memory where all hang on one node: a link that runs at a part of
its width or generation, a cable, a path across another switch.
"""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Evidence, Finding, Remedy
from profiler.rules.remedies import fastest_ways
from profiler.rules.uneven_copies import LinkGroup, compare, lost_to, on_another_node, uneven, uneven_factor
from profiler.rules.verdicts import (
    Case,
    Check,
    amount,
    compared_cost_share,
    judge,
    quantity,
    seconds,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "straggling-link"
_shown: Final = 8  # links, the slowest first
_words: Final = {"down": "to host memory", "up": "from host memory", "peer": "between GPUs"}


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What slow links cost that memory nodes do not explain; None where no two links can be compared."""
    groups = compare(timeline)
    known = [group for group in groups if not group.told_only]
    return lost_to(_suspected(timeline), timeline, loads) if known else None


def check(timeline: Timeline) -> list[Finding]:
    """Supported when one of several equal links is slow and stages wait for its copies."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    slow = _suspected(timeline)
    worst = max(slow or compare(timeline), key=lambda group: group.factor, default=None)
    case = Case(
        cause=cause,
        summary=_describe(worst) if worst is not None and slow else "",
        cost=cost(timeline, loads),
        cost_reason="no two links that should be alike were timed",
        least_cost=compared_cost_share,
        checks=[Check(bool(slow), f"links of one kind are alike (within a factor of {uneven_factor})")],
        evidence=[
            *_rates(worst),
            seconds("a slow copy takes longer by", worst.extra_s if worst else None, "no copies were timed"),
            share("targets waiting for copies", loads.target.copy_wait + loads.target.copies),
            share("drafters waiting for copies", loads.drafter.copy_wait + loads.drafter.copies),
        ],
        remedy=Remedy(
            "Measure the link by itself (dflash-profile links), then look at its width and generation "
            "(nvidia-smi -q, nvidia-smi nvlink -s) and at what else shares its switch. Meanwhile go round "
            "it: transport=auto takes the faster way for each pair, another split other pairs.",
            fastest_ways(timeline) if slow else {},
        ),
        condition="the link is slow by itself too, and not only while others copy",
        predicted_cost_s=worst.extra_s if worst is not None and slow else None,
        predicted_cost_reason="no slow copies were timed",
    )
    return [judge(case, timeline)]


def _suspected(timeline: Timeline) -> tuple[LinkGroup, ...]:
    groups = (group for group in uneven(compare(timeline)) if not group.told_only)
    return tuple(group for group in groups if on_another_node(timeline, group) is False)


def _describe(group: LinkGroup) -> str:
    link = group.slow[0]
    rest = f" (and {len(group.slow) - 1} more)" if len(group.slow) > 1 else ""
    return (
        f"The link of {link.name}{rest} carries {amount(1e9 * link.gb_per_s, 'B/s')} where others "
        f"{_words[group.way]} carry up to {amount(1e9 * group.fastest.gb_per_s, 'B/s')}"
    )


def _rates(group: LinkGroup | None) -> list[Evidence]:
    links = [] if group is None else sorted(group.links, key=lambda link: link.gb_per_s)
    shown = links if len(links) <= _shown else [*links[: _shown - 1], links[-1]]
    return [quantity(f"copies of {link.name}", link.gb_per_s, "GB/s") for link in shown]
