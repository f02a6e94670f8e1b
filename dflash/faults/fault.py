"""What a fault is: a name, what it does, how strong it may be, and how it is planted.

Knows nothing of single faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dflash.faults.rig import Rig

Setting = str | int | float | tuple[int, ...]
share_of_throughput = "share of the throughput that it takes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `plant` is called once, before the trainer starts, with a strength in (0, `below`)."""

    name: str
    cause: str  # the finding that is right for it
    does: str
    plant: Callable[[Rig, float], None]
    unit: str = share_of_throughput
    below: float = 1.0
    strengths: tuple[float, ...] = (0.12, 0.3, 0.6)  # to try, weakest first: it costs about a tenth
    knobs: Mapping[str, Setting] = field(default_factory=dict)  # without which it has nothing to act on
