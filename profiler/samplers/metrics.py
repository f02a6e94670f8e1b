"""What is read of a GPU: each metric once, with its pace, its form in the log, and what not to believe.

A pace follows what a reading costs and how often the driver renews it (docs/gpu-sensors.md). Knows nothing of
how a metric is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

fast: Final = 0.0  # every tick of the sampler
tick_s: Final = 0.2  # the driver renews utilisation about so often, and keeps a finer series of power itself
slow_s: Final = 1.0  # what costs more, or changes slowly
rare_s: Final = 5.0  # totals that cost up to a millisecond, and what only checks another reading
ends: Final = None  # when sampling starts and when it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetric:
    """One metric."""

    name: str  # with our unit
    interval_s: float | None  # None: at both ends only
    ceiling: float  # in our unit; more than that cannot be true
    per_unit: float = 1.0  # so many of NVML's units are one of ours
    on_change: bool = False  # written when it changes
    zero_is_unknown: bool = False  # some drivers say 0 and mean that they do not know


def _level(
    name: str,
    interval_s: float,
    ceiling: float,
    per_unit: float = 1.0,
    *,
    on_change: bool = False,
    zero_is_unknown: bool = False,
) -> GpuMetric:
    return GpuMetric(
        name=name,
        interval_s=interval_s,
        ceiling=ceiling,
        per_unit=per_unit,
        on_change=on_change,
        zero_is_unknown=zero_is_unknown,
    )


def _total(name: str, per_unit: float = 1.0, interval_s: float | None = slow_s) -> GpuMetric:
    """Counts up: readers take differences."""
    return GpuMetric(
        name=name, interval_s=interval_s, ceiling=1e19, per_unit=per_unit, on_change=interval_s is not None
    )


_percent, _mhz, _watts, _bytes = 100.0, 20_000.0, 20_000.0, 1e15

_listed: Final = (
    _level("power_w", fast, _watts, 1e3, zero_is_unknown=True),
    _level("util_pct", fast, _percent),
    _level("sm_clock_mhz", slow_s, _mhz, zero_is_unknown=True),
    _level("throttle_reasons", slow_s, 2.0**32, on_change=True),
    _level("temp_c", slow_s, 200.0, zero_is_unknown=True),
    _level("mem_clock_mhz", slow_s, _mhz, on_change=True, zero_is_unknown=True),
    _level("mem_used_bytes", slow_s, _bytes),
    _level("mem_reserved_bytes", slow_s, _bytes, on_change=True),
    _level("mem_total_bytes", slow_s, _bytes, on_change=True, zero_is_unknown=True),
    _level("power_limit_w", slow_s, _watts, 1e3, on_change=True, zero_is_unknown=True),
    _level("sm_active_pct", slow_s, _percent),
    _level("sm_occupancy_pct", slow_s, _percent),
    _level("tensor_active_pct", slow_s, _percent),
    _level("dram_active_pct", slow_s, _percent),
    _total("pcie_tx_bytes"),
    _total("pcie_rx_bytes"),
    _total("nvlink_tx_bytes", 1 / 1024, rare_s),
    _total("nvlink_rx_bytes", 1 / 1024, rare_s),
    _total("throttled_power_s", 1e9, rare_s),
    _total("throttled_thermal_s", 1e9, rare_s),
    _total("throttled_board_s", 1e9, rare_s),
    _total("throttled_reliability_s", 1e9, rare_s),
    _level("power_avg_w", rare_s, _watts, 1e3, zero_is_unknown=True),
    _total("energy_j", 1e3, ends),
)

metric_table: Final = {metric.name: metric for metric in _listed}
gpu_metrics: Final = tuple(metric_table)
gpm_metrics: Final = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
memory_metrics: Final = ("mem_used_bytes", "mem_reserved_bytes", "mem_total_bytes")

power_samples: Final = "power_sample_w"  # the driver's own series of 20 ms, drained
drain_s: Final = 1.0  # it holds about 2.4 s
process_metrics: Final = ("own_mem_bytes", "foreign_mem_bytes")  # this run's processes; everybody else's
