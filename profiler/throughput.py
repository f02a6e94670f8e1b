"""What a run's throughput is: tokens whose gradient reached a step, per second, with an interval.

Knows nothing of why it is what it is. docs/diagnosis.md has the definition in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.steady import SteadyRange, method_text, min_windows

if TYPE_CHECKING:
    from profiler.timeline import Timeline

confidence_level = 0.90
resamples = 2000
_seed = 0  # the same run always gets the same interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates over the steady windows. All rates are None, with a reason, when windows are too few."""

    tokens_per_s: float | None  # real context tokens
    low: float | None  # 90 % interval of tokens_per_s
    high: float | None
    samples_per_s: float | None  # documents
    processed_tokens_per_s: float | None  # with padding
    supervised_tokens_per_s: float | None  # under the loss mask
    windows_used: int
    windows_seen: int
    windows_set_aside: int  # marks with a missing count or a clock that ran backwards
    warmup_s: float | None  # cut after the first window's end; None when nothing could be cut
    range_s: tuple[float, float] | None  # of the windows used, since the run's start
    method: str = method_text
    reason: str | None = None  # why there is no number


def measure_throughput(timeline: Timeline) -> Throughput:
    """The throughput of the timeline's steady windows."""
    return throughput_of(timeline.windows, timeline.steady, timeline.start_ns)


def throughput_of(windows: pd.DataFrame, steady: SteadyRange, start_ns: int = 0) -> Throughput:
    """The throughput of those `windows` (see `read_windows`) that `steady` counts."""
    used = windows.iloc[steady.warmup_windows :]
    enough = steady.reason is None and len(used) >= min_windows
    range_s = ((steady.start_ns - start_ns) / 1e9, (steady.end_ns - start_ns) / 1e9) if len(used) else None

    def rate(column: str) -> float | None:
        amounts, seconds = used[column], float(used["seconds"].sum())
        if not enough or bool(amounts.isna().any()):
            return None
        return float(amounts.sum()) / seconds

    low, high = bootstrap_interval(used) if enough else (None, None)
    return Throughput(
        tokens_per_s=rate("tokens"),
        low=low,
        high=high,
        samples_per_s=rate("documents"),
        processed_tokens_per_s=rate("processed_tokens"),
        supervised_tokens_per_s=rate("supervised_tokens"),
        windows_used=len(used),
        windows_seen=steady.windows_seen,
        windows_set_aside=steady.set_aside,
        warmup_s=steady.warmup_s if len(used) else None,
        range_s=range_s,
        reason=steady.reason,
    )


def bootstrap_interval(windows: pd.DataFrame) -> tuple[float, float]:
    """The 90 % interval of tokens per second: percentiles over resampled windows."""
    return percentile_interval(resample_rates(windows))


def resample_rates(windows: pd.DataFrame, seed: int = _seed) -> NDArray[np.float64]:
    """Tokens per second of resampled blocks of consecutive windows; give each run of a pair its own `seed`.

    Blocks of about the cube root of the count keep the correlation between neighbours.
    """
    count = len(windows)
    block = max(2, round(count ** (1 / 3)))
    blocks = -(-count // block)
    starts = np.random.default_rng(seed).integers(0, count - block + 1, size=(resamples, blocks))
    rows = (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :count]
    tokens: NDArray[np.float64] = windows["tokens"].to_numpy(dtype=float)
    seconds: NDArray[np.float64] = windows["seconds"].to_numpy(dtype=float)
    rates: NDArray[np.float64] = tokens[rows].sum(axis=1) / seconds[rows].sum(axis=1)
    return rates


def percentile_interval(draws: NDArray[np.float64], level: float = confidence_level) -> tuple[float, float]:
    """The interval that holds the middle `level` of the draws."""
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)
