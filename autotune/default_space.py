"""The space that a machine suggests: from its GPUs, their memory and who reaches whom.

Some 1,000 to 3,000 combinations on eight GPUs, so that a search can rank them all: splits leave at most one
GPU idle where there are many. Knobs that are worth varying now and then only (`named_only`) are searched when
they are named. Knows nothing of trials or speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autotune.arithmetic import Limits
from autotune.machine import Machine
from autotune.space import Dimension, SearchSpace
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DeviceError
from dflash.contract.sections import presets
from dflash.contract.split import Split

many_gpus = 4  # beyond that, splits that leave several GPUs idle are left out
deep_prefetch = 8
# Searched when they are named: what they may bring is known to be small, or is chosen right by `auto`.
named_only = (
    "transport.queue",
    "transport.path",
    "transport.dispatch",
    "transport.trim",
    "pipeline.schedule",
    "pipeline.switch_interval_ms",
    "objective.chunk_blocks",
    "target.compile",
    "target.layout",
    "target.attention",
    "drafter.attention",
)


def default_space(base: TrainConfig, machine: Machine, *, max_logical: int = 3) -> SearchSpace:
    """The space over `base` on `machine`.

    Without GPUs the splits are over logical devices, at most `max_logical` of them (all share the CPU).
    The base's own value is always among the choices. Raises DeviceError when the base cannot run here.
    """
    return make_space(base, machine, default_choices(base, machine, max_logical), max_logical=max_logical)


def make_space(
    base: TrainConfig,
    machine: Machine,
    choices: dict[str, tuple[Any, ...]],
    changes_training: Iterable[str] = (),
    *,
    max_logical: int = 3,
) -> SearchSpace:
    """The space over these choices; knobs with one choice are no dimensions of it."""
    allowed = frozenset(changes_training)
    dimensions = tuple(
        Dimension(path, values, changes_training=path in allowed)
        for path, values in choices.items()
        if len(values) > 1 or values != (base.values()[path],)
    )
    limits = Limits.of(machine, emulated=is_emulated(base, machine))
    return SearchSpace(dimensions, base, count_devices(base, machine, max_logical), limits)


def default_choices(base: TrainConfig, machine: Machine, max_logical: int = 3) -> dict[str, tuple[Any, ...]]:
    """{path: choices} of the default space."""
    devices, emulated = count_devices(base, machine, max_logical), is_emulated(base, machine)
    budgets = _powers_of_two(base.data.max_length, base.window.tokens)
    shared = [] if emulated or base.devices.gpus else _sharing_splits(devices)
    choices = {
        "pipeline.split": _with(base.pipeline.split, [*_splits(devices), *shared]),
        "devices.gpus": (base.devices.gpus, devices) if shared else (base.devices.gpus,),
        "pipeline.token_budget": _sorted_with(base.pipeline.token_budget, budgets),
        "transport.preset": _presets(base, machine, emulated=emulated),
        "transport.depth": _sorted_with(base.transport.depth, (1, 2, 4)),
        "pipeline.prefetch_depth": _prefetch_depths(base.pipeline.prefetch_depth, emulated=emulated),
    }
    if not emulated:
        choices["drafter.checkpointing"] = _with(base.drafter.checkpointing, ("none", "layers"))
    return choices


def is_emulated(base: TrainConfig, machine: Machine) -> bool:
    """True where the trainer will run on logical devices."""
    return base.devices.kind == "logical" or (base.devices.kind == "auto" and not machine.gpus)


def count_devices(base: TrainConfig, machine: Machine, max_logical: int = 3) -> int:
    """Devices that splits may spread over. Raises DeviceError where GPUs are asked for and none are there."""
    if base.devices.kind == "cuda" and not machine.gpus:
        raise DeviceError(
            "the configuration asks for CUDA devices and this machine shows none",
            where="devices.kind",
            found=machine.gpu_reason or "no GPU",
            remedy="--set devices.kind=logical searches over emulated devices",
        )
    if is_emulated(base, machine):
        return max(max_logical, base.device_count)
    return len(machine.gpus)


def _presets(base: TrainConfig, machine: Machine, *, emulated: bool) -> tuple[str, ...]:
    """Transports worth comparing. The start's own is always among them."""
    own = base.transport.preset
    # Where the base overrides parts of the preset, a preset no longer says what would be measured.
    if {base.transport.queue, base.transport.path, base.transport.dispatch} != {"preset"}:
        return (own,)
    if emulated:
        out = {"peer" if own == "auto" else "auto"}  # `auto` is `peer` but for bad pairs: one is enough
    elif machine.peers is not None and not machine.peers:
        out = {"shared", "peer", "auto", "host"}  # nobody reaches another: all would go through the host
    else:
        some_apart = len(machine.islands) > 1 or own == "auto"
        # Copies from pageable memory on a stage's own thread cannot win against any other way.
        out = {"host", "peer" if some_apart else "auto"}
    return _with(own, [preset for preset in presets if preset not in out])


def _splits(devices: int) -> list[str]:
    """Splits with a device for each role, fewest devices first, then fewest drafters, colocated ones last."""
    fewest = 1 if devices <= many_gpus else devices - 1
    apart = [
        Split(t, d)
        for t in range(1, devices)
        for d in range(1, devices - t + 1)
        if t + d >= min(fewest, devices)
    ]
    together = [Split(n, n, colocated=True) for n in range(fewest, devices + 1)]
    order = sorted([*apart, *together], key=lambda split: (split.devices, split.colocated, split.drafters))
    return [str(split) for split in order]


def _sharing_splits(devices: int) -> list[str]:
    """Splits whose roles share all devices: of one kind as many as there are, of the other all or half."""
    half = devices // 2
    pairs = dict.fromkeys([(devices, devices), (devices, half), (half, devices)])
    return [f"{targets}-{drafters}" for targets, drafters in pairs if targets and drafters]


def _prefetch_depths(own: int, *, emulated: bool) -> tuple[int, ...]:
    """The start's own and a deep one: on GPUs batches are made far ahead of what they are made for."""
    if emulated:
        return _sorted_with(own, (2, 4, 8))
    return _sorted_with(own, (2,) if own == deep_prefetch else (deep_prefetch,))


def _powers_of_two(low: int, high: int) -> list[int]:
    """Powers of two from `low` up to `high`, both included."""
    first = 1 << (low - 1).bit_length()
    return [first << i for i in range(high.bit_length()) if first << i <= high]


def _with(value: Any, choices: Iterable[Any]) -> tuple[Any, ...]:
    """The choices in their order, each once, with `value` in front where it is missing."""
    each = tuple(dict.fromkeys(choices))
    return each if value in each else (value, *each)


def _sorted_with(value: int, choices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({value, *choices}))
