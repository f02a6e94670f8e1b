"""What a trainer loads: the knobs that models, drafters and data in memory are made of.

Configurations that agree on them can be run one after the other in one process, which loads once. All other
knobs only say how the work is done. Knows nothing of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash.contract.config import TrainConfig

_sections = ("target.", "drafter.", "data.")
_of_the_work = frozenset(
    (
        "target.layout",
        "drafter.checkpointing",
        "drafter.attention",
        "data.cache",
        "data.workers",
        "data.row_seconds",
    )
)
_others = ("pipeline.split", "devices.kind", "devices.gpus", "run.deterministic")


def held_values(config: TrainConfig) -> dict[str, Any]:
    """{dotted path: value} of the knobs on which everything that is loaded depends."""
    return {path: value for path, value in config.values().items() if is_held(path)}


def is_held(path: str) -> bool:
    """Whether something has to be loaded anew when the knob changes."""
    return path in _others or (path.startswith(_sections) and path not in _of_the_work)


def name_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """`pipeline.split 1-1 → 2-1, …` for people; empty when both are the same."""
    return ", ".join(
        f"{path} {before.get(path)} → {after.get(path)}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )
