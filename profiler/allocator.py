"""What torch's GPU allocator did over a run: retries after a failed request, and what it held meanwhile.

A retry gives cached blocks back to the driver and asks again: the device stands still meanwhile. Looks at the
whole run, since the quiet time before, which it is compared with, may count as warm-up. Knows nothing of why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

least_quiet_windows: Final = 3  # without a retry, to compare with

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Bytes and tokens per second. What is None is unknown, and `reason` says why."""

    retries: float | None = None  # over the run, of all devices
    onset_s: float | None = None  # the first retry's, since the run's start
    until_s: float | None = None  # the last one's
    reserved_bytes: float | None = None  # of the device with the largest gap, on average since the onset
    allocated_bytes: float | None = None  # of the same, by tensors
    quiet_tokens_per_s: float | None = None  # the median window before the first retry, else one without any
    began_quiet: bool = False  # whether there were enough windows before the first retry to compare with
    retrying_tokens_per_s: float | None = None  # from the first retry to the last
    reason: str | None = None

    @property
    def unused_share(self) -> float | None:
        """The part of reserved memory that no tensor uses."""
        if not self.reserved_bytes or self.allocated_bytes is None:
            return None
        return max(1.0 - self.allocated_bytes / self.reserved_bytes, 0.0)

    @property
    def lost_share(self) -> float | None:
        """Of the throughput while there are retries. 0 without any, None when it cannot be known."""
        if self.retries == 0:
            return 0.0
        if not self.quiet_tokens_per_s or self.retrying_tokens_per_s is None:
            return None
        return max(1.0 - self.retrying_tokens_per_s / self.quiet_tokens_per_s, 0.0)


unread: Final = Allocator(reason="retries of the GPU allocator were not recorded")


def measure_allocator(events: pd.DataFrame, windows: pd.DataFrame, start_ns: int) -> Allocator:
    """From all events of a run and its windows (`Timeline.windows`)."""
    gauges = events[events["kind"] == "gauge"]
    rises = _rises(gauges[gauges["name"] == "alloc_retries"])
    if rises is None:
        return unread
    if not len(rises):
        return Allocator(retries=0.0)
    times = rises["t_ns"].to_numpy(dtype=float)
    onset_ns, until_ns = float(times.min()), float(times.max())
    reserved, allocated = _held(gauges, onset_ns)
    figures = Allocator(
        retries=float(rises["rise"].sum()),
        onset_s=(onset_ns - start_ns) / 1e9,
        until_s=(until_ns - start_ns) / 1e9,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
    )
    known = windows[windows["tokens"].notna() & (windows["seconds"] > 0)]
    starts, ends = (known[name].to_numpy(dtype=float) for name in ("start_ns", "end_ns"))
    # A gauge is read now and then: the retry lies between the reading before and this one.
    earlier = rises["before_ns"].to_numpy(dtype=float)
    hit = np.array([bool(((earlier < e) & (times >= s)).any()) for s, e in zip(starts, ends, strict=True)])
    since = known[(ends > earlier.min()) & (starts <= until_ns)]
    before = known[ends <= earlier.min()]
    # Quiet is what lasts clearly longer than the pauses between retries do.
    pause_ns = float(np.median(np.diff(np.unique(times)))) if len(np.unique(times)) > 1 else 0.0
    lasted_ns = float((before["end_ns"] - before["start_ns"]).sum())
    began_quiet = len(before) >= least_quiet_windows and lasted_ns > 2 * pause_ns
    quiet = before if began_quiet else known[~hit]
    if len(quiet) < least_quiet_windows or not len(since):
        return replace(figures, reason="there are too few windows without a retry to compare with")
    return replace(
        figures,
        began_quiet=began_quiet,
        quiet_tokens_per_s=float((quiet["tokens"] / quiet["seconds"]).median()),
        retrying_tokens_per_s=float(since["tokens"].sum() / since["seconds"].sum()),
    )


def _rises(gauges: pd.DataFrame) -> pd.DataFrame | None:
    """t_ns, before_ns (of the reading before) and rise, where the count of a device rose; None: not read."""
    found = []
    for _, mine in gauges.groupby(["stage", "index", "device"], observed=True):
        rise = mine["value"].diff()
        rows = mine.assign(rise=rise, before_ns=mine["t_ns"].shift())[rise > 0]
        found.append(rows[["t_ns", "before_ns", "rise"]])
    return pd.concat(found, ignore_index=True) if found else None


def _held(gauges: pd.DataFrame, onset_ns: float) -> tuple[float | None, float | None]:
    """Reserved and allocated bytes of the device whose gap is largest, on average from the onset on."""
    late = gauges[gauges["t_ns"] >= onset_ns]
    keys = ["stage", "index", "device"]
    means = [
        late[late["name"] == name].groupby(keys, observed=True)["value"].mean()
        for name in ("reserved_bytes", "allocated_bytes")
    ]
    both = pd.concat(means, axis=1, keys=["reserved", "allocated"]).dropna()
    if not len(both):
        return None, None
    gaps = both["reserved"] - both["allocated"]
    worst = both.iloc[int(np.argmax(gaps.to_numpy(dtype=float)))]
    return float(worst["reserved"]), float(worst["allocated"])
