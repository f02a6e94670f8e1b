"""A search before it runs: its space, what arithmetic rules out and why, the order, and what it costs.

Reads nothing but the configuration, the model's shape and what NVML says of the machine, so it takes no GPU
and less than two seconds. Knows nothing of rendering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.cost import Cost, price
from autotune.default_searcher import order_in_words
from autotune.default_space import is_emulated, named_only
from autotune.effort import Effort
from autotune.machine import Gpu, Machine
from autotune.space import RuledOut, SearchSpace
from dflash.contract.errors import UsageError
from dflash.contract.model_shapes import UnknownShape

json_schema_version = 1
declared_name = "declared GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is run, in order. Values are known of the first one only: the others depend on it."""

    what: str
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOutlook:
    """What arithmetic knows of memory."""

    reason: str | None  # why nothing is known; None: something is
    gpu_bytes: int | None  # of the smallest GPU
    host_bytes: int | None
    start_needs: Mapping[str, int]  # {place: bytes} of the starting configuration, with the longest documents
    unlikely: RuledOut | None  # that may run, but not with the longest documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A search as it would be."""

    space: SearchSpace
    machine: Machine
    declared: bool  # the GPUs are those of another machine
    emulated: bool
    memory: MemoryOutlook
    steps: tuple[Step, ...]
    cost: Cost

    @property
    def held(self) -> dict[str, Any]:
        """Knobs that would be searched if they were named, at what they are."""
        values = self.space.base.values()
        return {path: values[path] for path in named_only if path not in self.space.paths}

    def to_json(self) -> dict[str, Any]:
        """Strict JSON of everything."""
        space, memory = self.space, self.memory
        return {
            "schema": json_schema_version,
            "machine": {**self.machine.describe(), "declared": self.declared},
            "emulated": self.emulated,
            "start": space.baseline,
            "space": space.describe(),
            "changes_training": list(space.changes_training),
            "held": self.held,
            "combinations": space.points,
            "size": space.size,
            "ruled_out": [_ruled_out_json(out) for out in space.ruled_out],
            "memory": {
                "reason": memory.reason,
                "gpu_bytes": memory.gpu_bytes,
                "host_bytes": memory.host_bytes,
                "start_needs_bytes": dict(memory.start_needs),
                "unlikely": None if memory.unlikely is None else _ruled_out_json(memory.unlikely),
            },
            "order": [
                {"what": step.what, "values": None if step.values is None else dict(step.values)}
                for step in self.steps
            ],
            "cost": self.cost.to_json(),
        }


def outline(
    space: SearchSpace,
    machine: Machine,
    effort: Effort,
    *,
    study_dir: Path | None = None,
    declared: bool = False,
) -> Outline:
    """The search over `space`. `study_dir`: where earlier trials may tell how long a start takes."""
    emulated = is_emulated(space.base, machine)
    gpus = 0 if emulated else len(machine.gpus)
    return Outline(
        space=space,
        machine=machine,
        declared=declared,
        emulated=emulated,
        memory=_look_at_memory(space),
        steps=(
            Step(what="the starting configuration", values=space.baseline),
            *(Step(what=words) for words in order_in_words),
        ),
        cost=price(effort, space.size, gpus, emulated=emulated, study_dir=study_dir),
    )


def declare_machine(machine: Machine, gpus: int | None, gpu_memory_gb: float | None) -> Machine:
    """Another machine to plan for: this one with so many GPUs, of so much memory (10^9 bytes each).

    Who reaches whom there, and the memory of its host, are unknown. Raises UsageError where memory is told of
    GPUs that are not.
    """
    if gpus is None and not machine.gpus:
        raise UsageError(
            "memory of GPUs was given, and this machine shows none",
            where="--gpu-memory-gb",
            remedy="say how many there are, for example --gpus 8",
        )
    count = len(machine.gpus) if gpus is None else gpus
    like = machine.gpus[0] if machine.gpus else Gpu(declared_name, "", None)
    size = like.memory_bytes if gpu_memory_gb is None else round(gpu_memory_gb * 1e9)
    cards = tuple(Gpu(like.name, f"declared {place}", size) for place in range(count))
    return replace(machine, gpus=cards, gpu_reason=None, host_bytes=None, peers=None)


def _look_at_memory(space: SearchSpace) -> MemoryOutlook:
    arithmetic, limits = space.arithmetic, space.limits
    unknown = isinstance(arithmetic, UnknownShape)
    unlikely: RuledOut | None = None
    for values in space.configurations:
        reason = None if unknown else space.why_unlikely(values)
        if reason is not None:
            known = unlikely or RuledOut("not with the longest documents", 0, values, reason)
            unlikely = replace(known, count=known.count + 1)
    return MemoryOutlook(
        reason=arithmetic.reason if isinstance(arithmetic, UnknownShape) else None,
        gpu_bytes=limits.gpu_bytes,
        host_bytes=limits.host_bytes,
        start_needs={} if isinstance(arithmetic, UnknownShape) else arithmetic.needed_bytes(space.base),
        unlikely=unlikely,
    )


def _ruled_out_json(out: RuledOut) -> dict[str, Any]:
    return {"kind": out.kind, "count": out.count, "example": dict(out.example), "reason": out.reason}
