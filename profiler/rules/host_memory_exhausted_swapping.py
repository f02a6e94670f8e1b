"""Host memory is used up: the kernel swaps, and whoever touches memory waits for the disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.finding import Finding, Remedy, Scalar
from profiler.host_memory import HostMemory, near_limit_share
from profiler.rules.remedies import peer_transport
from profiler.rules.verdicts import Case, Check, judge, percent, quantity, share
from profiler.timeline import Timeline

cause: Final = "host-memory-exhausted-swapping"


def check(timeline: Timeline) -> list[Finding]:
    """Supported when swapping began, the run's memory is near its limit, and throughput fell since."""
    memory = timeline.host_memory
    case = Case(
        cause=cause,
        summary="Host memory is exhausted and the machine swaps",
        cost=memory.lost_share,
        cost_reason=memory.reason,
        checks=[Check(_is_ours(memory), _otherwise(memory))],
        evidence=[
            quantity("swap traffic since it began", memory.swap_rate, "B/s", _no_swap(memory)),
            share("run's memory of its limit at most", memory.peak_share, memory.reason),
            quantity("run's memory at most", memory.peak_bytes, "B", memory.reason),
            quantity("limit", memory.limit_bytes, "B", memory.reason),
            quantity("growth over the last half", memory.growth_bytes_per_s, "B/s", memory.reason),
            quantity("run's own pages in swap at most", memory.own_swap_bytes, "B", memory.reason),
            quantity("before swapping", memory.quiet_tokens_per_s, "tokens/s", _no_swap(memory)),
            quantity("since swapping", memory.swapping_tokens_per_s, "tokens/s", _no_swap(memory)),
        ],
        remedy=Remedy(
            "Hold fewer hidden states in host memory: a lower transport depth, slabs of exact size, or a "
            "transport that keeps them on the GPUs. If memory still grows after that, look for a leak.",
            _knobs(timeline),
        ),
        condition="the memory that grows is that of waiting batches; growth with short queues is a leak",
    )
    finding = judge(case, timeline)
    if finding.supported and memory.onset_s is not None:
        return [replace(finding, range_s=(memory.onset_s, max(memory.onset_s, timeline.range_s[1])))]
    return [finding]


def _is_ours(memory: HostMemory) -> bool | None:
    """Whether the run itself fills the memory, rather than a neighbour of it."""
    if memory.peak_share is None:
        return None
    return memory.peak_share >= near_limit_share or bool(memory.own_swap_bytes)


def _otherwise(memory: HostMemory) -> str:
    reached = memory.peak_share or 0.0
    return (
        f"the run holds {percent(reached)} of its memory limit at most: somebody else makes the machine swap"
    )


def _no_swap(memory: HostMemory) -> str:
    return memory.reason or "there was no swapping"


def _knobs(timeline: Timeline) -> dict[str, Scalar]:
    """Less in host memory: batches on the GPUs, or, where they are, half as many."""
    values = timeline.config_values
    if values.get("transport.preset") not in ("peer", "auto"):
        return peer_transport(timeline)
    depth = values.get("transport.depth")
    return {"transport.depth": depth // 2} if isinstance(depth, int) and depth > 1 else {}
