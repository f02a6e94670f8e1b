"""How long stages stood still while the other stage copied through host memory on the device that both share.

The driver holds up whoever asks a GPU for something while a copy of pageable memory is under way there. A
thread that is held up so is in no span: it is between two of them. Knows nothing of verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd

from profiler.copy_times import host_paths
from profiler.intervals import Intervals, between, common_part, length, merged

_no_gpus: Final = ("cpu", "logical")
_others: Final = {"target": "drafter", "drafter": "target"}


def measure_held(spans: pd.DataFrame, lo_ns: int, hi_ns: int) -> Mapping[str, float]:
    """By stage: the share of its threads' time in no span, within own host copies of the other on its device.

    `spans`: as of `waits.thread_spans`. Of logical devices and CPUs there is none: nothing holds them.
    """
    copies = spans[(spans["kind"] == "copy") & spans["path"].isin(host_paths) & (spans["clock"] == "host")]
    copies = copies[copies["stage"].isin(_others) & ~copies["device"].str.startswith(_no_gpus)]
    if not len(copies):
        return dict.fromkeys(_others, 0.0)
    on_host = spans[spans["clock"] == "host"]
    held: dict[str, float] = {}
    for stage, other in _others.items():
        mine = on_host[on_host["stage"] == stage]
        theirs = copies[copies["stage"] == other]
        threads = mine.groupby(["index", "device", "tid"], observed=True, sort=False)
        shares = [
            _held(rows, theirs[theirs["device"] == device], lo_ns, hi_ns) for (_, device, _), rows in threads
        ]
        held[stage] = sum(shares) / len(shares) if shares else 0.0
    return held


def _held(mine: pd.DataFrame, copies: pd.DataFrame, lo_ns: int, hi_ns: int) -> float:
    """Share of the range."""
    range_ns = hi_ns - lo_ns
    if range_ns <= 0 or not len(copies):
        return 0.0
    free = between(_intervals(mine, lo_ns, hi_ns), 0.0, range_ns)
    return length(common_part(free, _intervals(copies, lo_ns, hi_ns))) / range_ns


def _intervals(spans: pd.DataFrame, lo_ns: int, hi_ns: int) -> Intervals:
    return merged(spans[["start_ns", "end_ns"]].to_numpy(dtype=float).clip(lo_ns, hi_ns) - lo_ns)
