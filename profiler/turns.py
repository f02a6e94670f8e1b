"""Whether targets and drafters are at work at the same time. Knows nothing of why they are not."""

from __future__ import annotations

from typing import Final

import pandas as pd

from profiler.intervals import Intervals, common_part, length, merged

_at_work: Final = ("work", "copy", "gpu_wait")


def work_together(spans: pd.DataFrame, lo_ns: int, hi_ns: int) -> float | None:
    """Of the time in which the stage works that works less: the part in which the other does, too.

    A stage works while any of its threads does, or copies itself; by the GPU's clock where there is one.
    `spans`: as of `waits.thread_spans`. None where one of them did not work between the two times.
    """
    targets, drafters = (_work(spans, stage, lo_ns, hi_ns) for stage in ("target", "drafter"))
    less = min(length(targets), length(drafters))
    return length(common_part(targets, drafters)) / less if less > 0 else None


def _work(spans: pd.DataFrame, stage: str, lo_ns: int, hi_ns: int) -> Intervals:
    mine = spans[(spans["stage"] == stage) & spans["kind"].isin(_at_work)]
    timed = mine["clock"] == "gpu"
    if timed.any():  # the host only enqueues then
        mine = mine[timed | (mine["kind"] == "copy")]
    ends = mine[["start_ns", "end_ns"]].to_numpy(dtype=float).clip(lo_ns, hi_ns)
    return merged(ends - lo_ns)
