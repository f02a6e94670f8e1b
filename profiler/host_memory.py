"""The run's host memory against its limit, and what swapping did to its throughput.

Looks at the whole run, not only its steady range: swapping begins late, and the quiet time before it, which
it is compared with, may count as warm-up. Knows nothing of why memory grew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

near_limit_share: Final = 0.8  # of the limit: time for a warning
swap_bytes_per_s: Final = 20e6  # traffic that counts as swapping
onset_bytes: Final = 64e6  # of traffic, after which swapping has begun
_least_windows = 3  # on either side of the onset

Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # seconds since the run's start, values


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes and tokens per second. What is None is unknown, and `reason` says why."""

    limit_bytes: float | None = None  # the least of the machine and the cgroup chain
    peak_bytes: float | None = None  # anonymous and shared memory of all processes of the run
    peak_at_s: float | None = None
    growth_bytes_per_s: float | None = None  # over the last half of the run
    own_swap_bytes: float | None = None  # of the run's own pages at most
    swapped: bool | None = None  # whether there was swapping to speak of on the machine
    onset_s: float | None = None
    swap_rate: float | None = None  # bytes per second, in and out, from the onset on
    quiet_tokens_per_s: float | None = None  # before the onset
    swapping_tokens_per_s: float | None = None  # after it
    reason: str | None = None

    @property
    def peak_share(self) -> float | None:
        """Of the limit."""
        if self.peak_bytes is None or not self.limit_bytes:
            return None
        return self.peak_bytes / self.limit_bytes

    @property
    def lost_share(self) -> float | None:
        """Of the throughput, since swapping began. 0 without swapping, None when it cannot be known."""
        if self.swapped is False:
            return 0.0
        if self.quiet_tokens_per_s is None or self.swapping_tokens_per_s is None:
            return None
        return max(1.0 - self.swapping_tokens_per_s / self.quiet_tokens_per_s, 0.0)

    def warnings(self) -> tuple[str, ...]:
        """What a person should know before it hurts."""
        if self.peak_share is None or self.peak_share < near_limit_share or not self.limit_bytes:
            return ()
        reached = f"host memory reached {100 * self.peak_share:.0f} % of its limit"
        return (f"{reached} of {self.limit_bytes / 1e9:.3g} GB: beyond it the kernel swaps or kills",)


unsampled: Final = HostMemory(reason="host memory was not sampled")


def measure_host_memory(samples: pd.DataFrame, windows: pd.DataFrame, start_ns: int) -> HostMemory:
    """From all samples of a run and its windows (`Timeline.windows`)."""
    host = samples[samples["key"].isin(("tree", "machine")) & samples["value"].notna()]
    host = host.assign(t_s=(host["t_ns"] - start_ns) / 1e9)
    used = _series(host, "tree", "rss_anon_bytes", "rss_shmem_bytes")
    swap = _series(host, "machine", "swap_in_bytes", "swap_out_bytes")
    if len(used[0]) == 0:
        return unsampled
    limits, own = _series(host, "machine", "mem_limit_bytes")[1], _series(host, "tree", "swap_bytes")[1]
    peak = int(np.argmax(used[1]))
    memory = HostMemory(
        limit_bytes=float(limits[-1]) if len(limits) else None,
        peak_bytes=float(used[1][peak]),
        peak_at_s=float(used[0][peak]),
        growth_bytes_per_s=_slope(used),
        own_swap_bytes=float(own.max()) if len(own) else None,
    )
    if len(swap[0]) == 0:
        return replace(memory, reason="swap traffic was not sampled")
    end_s = float(host["t_s"].max())
    onset_s, rate = _find_onset(_at(swap, used[0]), end_s)
    if onset_s is None:
        return replace(memory, swapped=False)
    begun = (windows["end_ns"] - start_ns) / 1e9 > onset_s
    quiet, swapping = _rate(windows[~begun]), _rate(windows[begun])
    lacks = quiet is None or swapping is None
    return replace(
        memory,
        swapped=True,
        onset_s=onset_s,
        swap_rate=rate,
        quiet_tokens_per_s=quiet,
        swapping_tokens_per_s=swapping,
        reason="too few windows before or after swapping began to compare" if lacks else None,
    )


def _series(host: pd.DataFrame, key: str, *metrics: str) -> Series:
    """The sum of some metrics of one key over time, each carried forward; empty when one is missing."""
    mine = host[(host["key"] == key) & host["metric"].isin(metrics)]
    table = mine.pivot_table(index="t_s", columns="metric", values="value", aggfunc="last", observed=True)
    if len(table.columns) < len(metrics):
        return np.array([]), np.array([])
    total = table.ffill().bfill().sum(axis=1)
    return total.index.to_numpy(dtype=float), total.to_numpy(dtype=float)


def _at(series: Series, times: NDArray[np.float64]) -> Series:
    """A series that has a row when it changes, read at `times`."""
    places = np.searchsorted(series[0], times, side="right") - 1
    return times, series[1][places.clip(min=0)]


def _find_onset(swap: Series, end_s: float) -> tuple[float | None, float | None]:
    """When swapping began, and bytes per second from there on; None when there was too little to matter."""
    times, total = swap
    reached = np.flatnonzero(total - total[0] >= onset_bytes)
    if len(reached) == 0:
        return None, None
    onset_s = float(times[max(int(reached[0]) - 1, 0)])
    rate = float(total[-1] - total[0]) / max(end_s - onset_s, 1e-9)
    return (onset_s, rate) if rate >= swap_bytes_per_s else (None, None)


def _rate(windows: pd.DataFrame) -> float | None:
    known = windows[windows["tokens"].notna() & (windows["seconds"] > 0)]
    seconds = float(known["seconds"].sum())
    return float(known["tokens"].sum()) / seconds if len(known) >= _least_windows else None


def _slope(used: Series) -> float | None:
    times, values = used
    late = times >= (times[0] + times[-1]) / 2
    if late.sum() < 3:
        return None
    return float(np.polyfit(times[late], values[late], 1)[0])
