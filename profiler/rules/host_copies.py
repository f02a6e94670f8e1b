"""Copies through host memory on the stages' own threads: what they cost, and how much memory waits there.

Three causes share these figures. They differ in who is held up and in how deep the queue is. A changed
transport takes the copies off both sides, so both are counted as the cost. Knows nothing of verdicts.
"""

from __future__ import annotations

from profiler.capacity import Loads, seldom
from profiler.copy_times import host_paths
from profiler.finding import Evidence
from profiler.rules import uneven_copies
from profiler.rules.remedies import copy_rate, item_bytes
from profiler.rules.verdicts import Check, deep_items, quantity, queue_share, seconds, share, staged_rss_share
from profiler.timeline import Timeline

_resident = ("rss_anon_bytes", "rss_shmem_bytes", "rss_file_bytes")


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What the stages' own copies through host memory cost, on both sides of the queue.

    What slow links add to them is a cause of its own. On a GPU that roles share, each holds the other up.
    """
    slow = [group for group in uneven_copies.uneven(uneven_copies.host_groups(timeline)) if group.own]
    target, drafter = (uneven_copies.excess_share(slow, loads, stage) for stage in ("target", "drafter"))
    return loads.lost_share(
        target=max(loads.target.host_copies - target, 0.0) + loads.target.held,
        drafter=max(loads.drafter.host_copies - drafter, 0.0) + loads.drafter.held,
    )


def apart_from_host(timeline: Timeline) -> Check:
    """Whether GPUs have memory of their own: where they live in the host's, no way round it is quicker."""
    return Check(not timeline.unified_memory, "the GPUs use the host's memory, so nothing is staged in it")


def waiting_items(timeline: Timeline, column: str = "mean") -> float | None:
    """Hidden-state batches in the queues on average, over all queues; `late_mean`: at the end of the run."""
    mean = queue_share(timeline, "q_hs", column)
    queues = sum(name.startswith("q_hs") for name in timeline.depths["channel"])
    return None if mean is None else mean * queues


def resident_bytes(timeline: Timeline) -> float | None:
    """Mean resident memory of the run's processes; None when it was not sampled."""
    samples = timeline.samples
    mine = samples[(samples["key"] == "tree") & samples["metric"].isin(_resident) & samples["value"].notna()]
    means = mine.groupby("metric", observed=True)["value"].mean()
    return float(means.sum()) if "rss_anon_bytes" in means.index else None


def staged_share(timeline: Timeline, column: str = "mean") -> float | None:
    """The part of resident memory that is batches waiting: depth × bytes ÷ RSS. None when one is unknown."""
    items, size, resident = waiting_items(timeline, column), item_bytes(timeline), resident_bytes(timeline)
    return None if items is None or size is None or not resident else items * size / resident


def is_deep(timeline: Timeline) -> bool | None:
    """Whether many batches wait in host memory, and, where memory was sampled, are a real part of it."""
    deep = [_is_deep(timeline, column) for column in ("mean", "late_mean")]
    return True if True in deep else deep[0]


def _is_deep(timeline: Timeline, column: str) -> bool | None:
    items, part = waiting_items(timeline, column), staged_share(timeline, column)
    if items is None:
        return None
    return items >= deep_items and (part is None or part >= staged_rss_share)


def memory_evidence(timeline: Timeline) -> list[Evidence]:
    """Resident memory added up: items × bytes + the rest."""
    items, size, resident = waiting_items(timeline), item_bytes(timeline), resident_bytes(timeline)
    staged = None if items is None or size is None else items * size
    rest = None if staged is None or resident is None else max(resident - staged, 0.0)
    return [
        quantity("batches waiting", items, "", "depths were not recorded"),
        quantity("one batch of hidden states", size, "B", "no take or copy tells its bytes"),
        quantity("waiting in all", staged, "B", "depth or bytes of a batch are unknown"),
        quantity("resident memory", resident, "B", "host memory was not sampled"),
        quantity("resident memory besides", rest, "B", "host memory was not sampled"),
        share("part of resident memory that waits", staged_share(timeline), "host memory was not sampled"),
    ]


def copy_evidence(timeline: Timeline, loads: Loads, stage: str) -> list[Evidence]:
    """What one side's own copies take."""
    load = loads.target if stage == "target" else loads.drafter
    copy_s, rate = copy_rate(timeline, stage, host_paths)
    return [
        share(f"{stage}s copying through host memory", load.host_copies),
        seconds(f"one copy on the {stage}'s own thread", copy_s, f"no such copies of {stage}s"),
        quantity(f"rate of the {stage}s' copies", rate, "GB/s", f"no such copies of {stage}s with bytes"),
        share(f"{stage}s working", load.busy),
        *_held_up(loads),
    ]


def _held_up(loads: Loads) -> list[Evidence]:
    """Where roles share a GPU: who stands still while the other copies."""
    return [
        share(f"{load.stage}s held up by the other's copies on their GPU", load.held)
        for load in (loads.target, loads.drafter)
        if load.held >= seldom
    ]
