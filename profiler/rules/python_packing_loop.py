"""Targets pack hidden states on the host, piece by piece, while their device waits for the next forward."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules import uneven_copies
from profiler.rules.verdicts import Case, Check, judge, quantity, seconds, share, unjudged
from profiler.timeline import Timeline

cause: Final = "python-packing-loop"


def cost(_timeline: Timeline, loads: Loads) -> float | None:
    """What the targets' packing costs, where the device idles meanwhile."""
    return loads.lost_share(target=loads.target.gather)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when packing on the targets' thread costs throughput."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target = loads.target
    each = target.gather * target.range_s * target.threads / target.batches if target.batches else None
    case = Case(
        cause=cause,
        summary="Targets pack hidden states in Python between two forwards",
        cost=cost(timeline, loads),
        checks=[
            Check(not loads.drafters_limit, "the drafters hold the targets up, not the other way round"),
            Check(
                not uneven_copies.uneven(uneven_copies.host_groups(timeline)),
                "copies of some GPUs are slow: their buffers are far away, which makes packing slow",
            ),
        ],
        evidence=[
            share("targets packing", target.gather),
            seconds("packing of one batch", each, "no batches of targets"),
            share("targets working besides", target.busy - target.gather),
            share("targets waiting for the GIL", target.gil_wait),
            quantity("targets alone", target.alone_tokens_per_s, "tokens/s", "no forwards with tokens"),
        ],
        remedy=Remedy(
            "Pack in one operation: one index_select or reshape over the whole batch instead of a slice a "
            "document, into a buffer that exists already."
        ),
        condition="packing is Python's own work, not a wait for memory or for the GIL",
    )
    return [judge(case, timeline)]
