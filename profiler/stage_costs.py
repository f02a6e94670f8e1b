"""What a trained token costs each stage, part by part, in blocks of consecutive windows.

The blocks give every figure its noise: a part that differs between two runs by less than it differs between
the blocks of one run has not changed. Knows nothing of what a cost means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.gil_waits import measure_gil
from profiler.run import Run
from profiler.timeline import Timeline
from profiler.waits import close_devices, name_of_part, thread_spans

most_blocks: Final = 20
Part = tuple[str, str, str]  # stage; kind; name, as in closing sums
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class StageCosts:
    """Seconds by part and block, summed over the threads of the stage; every block has trained tokens."""

    tokens: Seconds  # trained, by block
    seconds: Mapping[Part, Seconds]
    range_s: float  # of all blocks
    threads: Mapping[str, int]
    batches: Mapping[str, float]  # over all blocks

    def of(self, part: Part) -> Seconds:
        """Seconds of a part by block; zeros where the run has no such part."""
        return self.seconds.get(part, np.zeros_like(self.tokens))

    @property
    def pace(self) -> float:
        """Seconds a trained token."""
        return self.range_s / float(self.tokens.sum())

    def s_per_batch(self, part: Part) -> float | None:
        """Seconds of one batch's way through the stage that went to the part."""
        batches = self.batches.get(part[0], 0.0)
        return float(self.of(part).sum()) / batches if batches > 0 else None

    def s_per_token(self, part: Part, blocks: NDArray[np.int64] | None = None) -> Seconds:
        """Seconds a trained token, the stage's threads working in parallel; one value a row of `blocks`."""
        rows = np.arange(len(self.tokens))[None] if blocks is None else blocks
        spent = self.of(part)[rows].sum(axis=1) / max(self.threads.get(part[0], 1), 1)
        costs: Seconds = spent / self.tokens[rows].sum(axis=1)
        return costs


def measure_costs(run: Run, timeline: Timeline, *, split_gil: bool = True) -> StageCosts:
    """The costs over the steady windows of `run`; without steady windows, there are no blocks.

    `split_gil`: waits for the GIL are a part of their own, where they were sampled; else they stay in work.
    """
    spans = thread_spans(run.events)
    edges, tokens = _cut(timeline)
    sampled = timeline.gil.by_tid if split_gil else {}
    parts: dict[Part, Seconds] = {}
    for block, (lo_ns, hi_ns) in enumerate(edges):
        inside = spans[(spans["start_ns"] < hi_ns) & (spans["end_ns"] > lo_ns)]
        # A block of too few looks has the shares of the whole range; where that has none, no block has any.
        gil = measure_gil(run.samples, lo_ns, hi_ns).by_tid or sampled if sampled else {}
        rows = close_devices(inside, lo_ns, hi_ns, gil)
        for stage, kind, name, channel, path, seconds in rows[
            ["stage", "kind", "name", "channel", "path", "seconds"]
        ].itertuples(index=False):
            part = (stage, kind, name_of_part(kind, name, channel, path))
            parts.setdefault(part, np.zeros(len(edges)))[block] += seconds
    threads = timeline.threads[["stage", "index", "device", "tid"]].drop_duplicates()["stage"].value_counts()
    batches = timeline.service.groupby("stage")["batches"].sum()
    range_s = sum(hi_ns - lo_ns for lo_ns, hi_ns in edges) / 1e9
    covered = range_s / max(timeline.range_s[1] - timeline.range_s[0], 1e-9)
    return StageCosts(
        tokens=tokens,
        seconds=parts,
        range_s=range_s,
        threads={str(stage): int(count) for stage, count in threads.items()},
        batches={str(stage): covered * float(count) for stage, count in batches.items()},
    )


def _cut(timeline: Timeline) -> tuple[list[tuple[int, int]], Seconds]:
    """The steady windows inside the timeline's range, in blocks: their edges and their tokens."""
    if timeline.steady.reason is not None:
        return [], np.zeros(0)
    lo_ns, hi_ns = timeline.range_ns
    used = timeline.windows.iloc[timeline.steady.warmup_windows :]
    used = used[(used["start_ns"] >= lo_ns) & (used["end_ns"] <= hi_ns)]
    groups: list[pd.DataFrame] = [
        used.iloc[rows] for rows in np.array_split(np.arange(len(used)), most_blocks) if len(rows)
    ]
    edges = [(int(group["start_ns"].iloc[0]), int(group["end_ns"].iloc[-1])) for group in groups]
    return edges, np.array([float(group["tokens"].sum()) for group in groups])
