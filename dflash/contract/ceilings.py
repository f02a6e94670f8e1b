"""What GPUs can do at best: the form of ceilings.json, written by `dflash-profile ceilings`.

Unknown is None, with the reason beside it. Knows nothing of how it was measured, nor of what is done with it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

schema_version: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCeilings:
    """One GPU. Rates are 10^9 bytes and 10^12 operations a second."""

    model: str
    uuid: str | None
    matmul_tflops: float | None  # bfloat16 products of large square matrices
    memory_gb_per_s: float | None  # read and written together
    down_gb_per_s: float | None  # to pinned host memory, nothing else going on
    up_gb_per_s: float | None  # from pinned host memory
    peer_gb_per_s: float | None  # to another GPU, the fastest that was tried
    source: str
    reason: str | None = None  # why something is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """GPUs that were measured together."""

    measured_utc: str
    torch: str
    devices: tuple[DeviceCeilings, ...]
    schema: int = schema_version

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)
