"""What is said when a stage runs out of memory: true need or fragmentation, what it had in hand, what waited.

The allocator's figures decide: when memory that is reserved and not in use would have been enough, it lies in
pieces. Knows nothing of how stages fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dflash.batch import Batch

_units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}
_asked = re.compile(r"[Tt]ried to allocate ([\d.]+) (GiB|MiB|KiB|bytes)")

Depths = Sequence[tuple[str, int, int]]  # name, depth, capacity


def explain(error: str, figures: Mapping[str, float], batch: Batch | None, depths: Depths) -> str:
    """One line for the message. `figures`: of `Device.memory_figures`, empty where there are none."""
    parts = [_judge(asked_bytes(error), figures)]
    if batch is not None:
        parts.append(
            f"batch in hand: {len(batch.documents)} documents, {batch.tokens} tokens "
            f"({batch.layout.processed_tokens} with padding), {len(batch.anchors)} anchors"
        )
    if depths:
        parts.append("waiting: " + ", ".join(f"{name} {depth}/{most}" for name, depth, most in depths))
    return "; ".join(parts)


def asked_bytes(error: str) -> int | None:
    """The size of the allocation that failed; None where torch does not say."""
    found = _asked.search(error)
    return round(float(found[1]) * _units[found[2]]) if found else None


def _judge(asked: int | None, figures: Mapping[str, float]) -> str:
    if not {"allocated_bytes", "reserved_bytes"} <= figures.keys():
        return "whether it was fragmentation is unknown: the device has no allocator with figures"
    used, reserved = figures["allocated_bytes"], figures["reserved_bytes"]
    state = (
        f"{used / 1e9:.2f} GB in use of {reserved / 1e9:.2f} GB reserved, "
        f"{figures.get('alloc_retries', 0.0):.0f} retries so far"
    )
    if asked is None:
        return f"how much was wanted is unknown: {state}"
    wanted = f"{asked / 1e9:.2f} GB wanted, {state}"
    if reserved - used >= asked:
        return f"fragmentation: {wanted}; what is free was not in one piece"
    return f"true need: {wanted}"
