"""The GPU allocator holds much memory that no tensor fits into: it frees its cache, asks again, and waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.verdicts import Case, Check, compared_cost_share, judge, percent, quantity, share
from profiler.timeline import Timeline

cause: Final = "allocator-fragmentation"
many_retries: Final = 3.0  # a retry or two as a run grows into its memory are no pattern
unused_share: Final = 0.1  # of reserved memory: below it memory is not in pieces but full


def cost(timeline: Timeline, loads: Loads | None) -> float | None:
    """What retries cost against the time before.

    Where they were there from the start: against windows without one, or at most what is unaccounted.
    """
    figures = timeline.allocator
    if loads is None or not figures.retries or figures.began_quiet:
        return figures.lost_share
    bound = loads.lost_share(target=loads.target.unaccounted, drafter=loads.drafter.unaccounted)
    return max(bound or 0.0, figures.lost_share or 0.0)


def goes_on(timeline: Timeline) -> bool:
    """Whether there are retries enough to be a pattern."""
    return (timeline.allocator.retries or 0.0) >= many_retries


def check(timeline: Timeline) -> list[Finding]:
    """Supported when retries go on, throughput falls with them, and memory is reserved but not in use."""
    figures = timeline.allocator
    unused, reason = figures.unused_share, figures.reason
    no_gauges = reason or (
        "reserved and allocated bytes were not recorded" if figures.retries else "no retries"
    )
    case = Case(
        cause=cause,
        summary="The GPU allocator's memory is in pieces: it gives its cache back and asks again",
        cost=cost(timeline, measure_loads(timeline)),
        cost_reason=reason,
        least_cost=compared_cost_share,
        checks=[
            Check(
                None if figures.retries is None else goes_on(timeline),
                f"only {figures.retries or 0.0:.0f} retries of the allocator",
            ),
            Check(
                None if unused is None else unused >= unused_share,
                f"tensors use {percent(1 - (unused or 0.0))} of what is reserved: it is full, not in pieces",
            ),
        ],
        evidence=[
            quantity("retries of the allocator", figures.retries, "", reason),
            quantity("reserved since the first retry", figures.reserved_bytes, "B", no_gauges),
            quantity("in use by tensors", figures.allocated_bytes, "B", no_gauges),
            share("reserved and not in use", unused, no_gauges),
            quantity(
                "windows without a retry", figures.quiet_tokens_per_s, "tokens/s", reason or "no retries"
            ),
            quantity("with retries", figures.retrying_tokens_per_s, "tokens/s", reason or "no retries"),
        ],
        remedy=Remedy(
            "Let segments grow: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Or make shapes fewer "
            "(buckets of lengths, batches of one size), so that freed blocks fit again; or leave more memory "
            "free by a smaller token budget."
        ),
        condition="reserved memory stays well above what tensors use while retries go on",
    )
    finding = judge(case, timeline)
    if finding.supported and figures.onset_s is not None and figures.until_s is not None:
        return [replace(finding, range_s=(figures.onset_s, figures.until_s))]
    return [finding]
