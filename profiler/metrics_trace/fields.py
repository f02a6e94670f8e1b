"""The fields of a metrics line: name, unit and what can be believed (docs/import.md: what becomes of them).

Knows nothing of files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Field:
    """One number of a line. A value outside `low` to `high` cannot be true and counts as missing."""

    path: str  # dotted
    unit: str
    low: float = 0.0
    high: float = 1e15

    def accept(self, value: object) -> float | None:
        """The value as a number; None when it is no number, or one that cannot be true."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        number = float(value) if abs(value) <= 1e300 else math.inf
        return number if self.low <= number <= self.high else None


def _share(path: str) -> Field:
    return Field(path, "share", high=1.0)


line_fields: Final = (
    Field("t", "s", low=-1e12, high=1e12),
    Field("dt", "s"),
    Field("tok_s", "tokens/s"),
    Field("loss", "nats", low=-1e15),
    Field("budget", "tokens", low=1.0),
    Field("q.pre.depth", "batches"),
    Field("q.pre.cap", "batches"),
    _share("q.pre.get_wait_frac"),
    Field("q.hs.depth", "batches"),
    Field("q.hs.cap", "batches"),
    _share("q.hs.put_wait_frac"),
    _share("q.hs.get_wait_frac"),
    Field("q.hs.produced", "batches, total"),
    Field("q.hs.consumed", "batches, total"),
    Field("target.fwd_s", "s a batch"),
    Field("target.pack_s", "s a batch"),
    Field("target.d2h_s", "s a batch"),
    _share("target.d2h_overlap"),
    Field("drafter.fwdbwd_s", "s a batch"),
    Field("drafter.xdev_copy_s", "s a move"),
    _share("drafter.wrong_home_frac"),
    Field("drafter.scalar_sync_s", "s a batch"),
    Field("drafter.h2d_s", "s a batch"),
    Field("drafter.optim_s", "s a batch"),
    Field("host.rss_gib", "GiB"),
    Field("host.shmem_gib", "GiB"),
    Field("host.limit_gib", "GiB"),
    Field("host.avail_gib", "GiB"),
    Field("host.swap_mib_s", "MiB/s"),
    Field("host.cpu_cores", "cores"),
    _share("gil.wait_frac"),
    Field("copies.d2h_gbps", "GB/s"),
    Field("compile.recompiles", "in the interval"),
    Field("compile.secs", "s in the interval"),
    Field("alloc.reserved_gib", "GiB"),
    Field("alloc.allocated_gib", "GiB"),
    Field("alloc.retries", "total"),
    Field("launches_s", "1/s"),
)
gpu_fields: Final = (
    Field("util", "%", high=100.0),
    Field("power_w", "W"),
    Field("limit_w", "W"),
    Field("mem_gib", "GiB"),
    Field("sm_mhz", "MHz"),
    Field("temp_c", "°C", low=-273.0),
    Field("throttle", "bit mask"),
)
gpu_link_field: Final = Field("copies.per_gpu_d2h_gbps", "GB/s")

other_paths: Final = ("split", "q.hs.shared", "gpu", "copies.per_gpu_d2h_gbps")  # not plain numbers
tables: Final = ("q", "q.pre", "q.hs", "target", "drafter", "host", "gil", "copies", "compile", "alloc")
roles: Final = ("target", "drafter")
most_threads: Final = 1024  # of one stage
