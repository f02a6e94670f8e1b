"""Copies to host memory, GPU against GPU: siblings of one run are each other's yardstick.

Rates come from the stages' own copy spans, else from rates that the trainer told for each GPU. Knows nothing
of why one is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from profiler.capacity import host_paths
from profiler.timeline import Timeline

uneven_factor: Final = 1.5  # fastest over slowest: equal links of one run differ by a few per cent


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenCopies:
    """GB/s of copies to host memory by device; empty where fewer than two devices are known."""

    rates: Mapping[str, float] = field(default_factory=dict)
    from_spans: bool = False  # whether the stages' own copies tell, so that their time is known too

    @property
    def factor(self) -> float | None:
        """The fastest over the slowest."""
        return max(self.rates.values()) / min(self.rates.values()) if self.rates else None

    @property
    def is_uneven(self) -> bool:
        return self.factor is not None and self.factor >= uneven_factor

    @property
    def slow(self) -> dict[str, float]:
        """Devices well below the fastest."""
        fastest = max(self.rates.values(), default=0.0)
        return {name: rate for name, rate in self.rates.items() if rate * uneven_factor <= fastest}

    @property
    def excess_share(self) -> float:
        """Of the time of equal copies on all devices: what there would not be at the fastest one's rate."""
        if not self.is_uneven:
            return 0.0
        mean_s = float(np.mean([1 / rate for rate in self.rates.values()]))
        return 1.0 - 1 / max(self.rates.values()) / mean_s


def compare(timeline: Timeline) -> UnevenCopies:
    """The rates of one run."""
    rates = _span_rates(timeline)
    if len(rates) >= 2:
        return UnevenCopies(rates=rates, from_spans=True)
    told = timeline.series("d2h_gb_per_s")
    told = told[(told["key"] != "*") & (told["value"] > 0)]
    means = {str(k): float(v) for k, v in told.groupby("key", observed=True)["value"].median().items()}
    return UnevenCopies(rates=means) if len(means) >= 2 else UnevenCopies()


def _span_rates(timeline: Timeline) -> dict[str, float]:
    copies = timeline.copies
    mine = copies[
        copies["dst"].isin(("cpu", "host")) & copies["path"].isin(host_paths) & copies["gb_per_s"].notna()
    ]
    if not mine["stage"].eq("target").any():
        return {}
    mine = mine[mine["stage"] == "target"]
    sums = mine.groupby("src", observed=True)[["bytes", "seconds"]].sum()
    return {str(src): float(row["bytes"] / 1e9 / row["seconds"]) for src, row in sums.iterrows()}
