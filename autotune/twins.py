"""Combinations of knobs that differ in name only: of those that run alike, one is tried.

How states travel is three knobs and a preset, and where roles sit is a split and a number of devices. One
name stands for all: the starting configuration's own where it is such a one, else what lies next to the names
that other splits are tried with. Knows nothing of machines or memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from dflash.contract.config import TrainConfig
from dflash.contract.sections import TransportConfig, colocated_transports, presets
from dflash.contract.split import Split

# Queues of each drafter's own first: what one drafter does not tell apart stands beside what several do.
preference = ("peer", "auto", "pinned", "shared", "host")
transport_knobs = ("preset", "queue", "path", "dispatch")
Way = tuple[str, ...]  # what of a transport makes a difference to a split


class Twins:
    """The names that searched choices give to one and the same pipeline."""

    def __init__(self, base: TrainConfig, choices: Mapping[str, tuple[Any, ...]]) -> None:
        self._base = base
        self._caps = choices.get("devices.gpus", (base.devices.gpus,))
        self._transports = _name_transports(base, choices)
        self._usual: dict[Way, TransportConfig] = {}

    def find(self, config: TrainConfig) -> str | None:
        """Why this is another name of a combination that is tried anyway; None where it is not."""
        split, cap = config.split, self._usual_cap(config)
        if config.devices.gpus != cap:
            return f"split {split} has the same places with devices.gpus = {cap}"
        usual = self._usual_transport(config)
        if usual == config.transport:
            return None
        names = [
            f"transport.{knob} = {getattr(usual, knob)}"
            for knob in transport_knobs
            if getattr(usual, knob) != getattr(config.transport, knob)
        ]
        nothing = "copies nothing" if split.colocated else "is joined in the same way"
        return f"split {split} {nothing} with {', '.join(names)}, so this makes no difference"

    def _usual_cap(self, config: TrainConfig) -> int:
        devices = config.split.devices
        alike = [cap for cap in self._caps if min(devices, cap or devices) == config.device_count]
        own = self._base.devices.gpus
        return int(own if own in alike else alike[0])

    def _usual_transport(self, config: TrainConfig) -> TransportConfig:
        """The name in use, with the depth and whatever else this configuration has."""
        way = find_way(config.split, config.transport)
        assert way is not None, "the configuration was checked"
        if way not in self._usual:
            own = find_way(self._base.split, self._base.transport)
            named = (name for name in self._transports if find_way(config.split, name) == way)
            self._usual[way] = self._base.transport if own == way else next(named)
        usual = {knob: getattr(self._usual[way], knob) for knob in transport_knobs}
        return dataclasses.replace(config.transport, **usual)


def find_way(split: Split, transport: TransportConfig) -> Way | None:
    """What of the transport makes a difference to the split; None where the two do not go together."""
    own = (transport.queue, transport.path, transport.dispatch)
    if split.colocated:
        known = zip(own, zip(*colocated_transports, strict=True), strict=True)
        return ("colocated",) if all(name in ("preset", *names) for name, names in known) else None
    queue, path, dispatch = (
        name if name != "preset" else given
        for name, given in zip(own, presets[transport.preset], strict=True)
    )
    return ("alone", path) if split.drafters == 1 else (queue, path, dispatch)


def _name_transports(
    base: TrainConfig, choices: Mapping[str, tuple[Any, ...]]
) -> tuple[TransportConfig, ...]:
    """All names that are searched, those that are liked first."""
    own = {knob: (getattr(base.transport, knob),) for knob in transport_knobs}
    searched = {knob: choices.get(f"transport.{knob}", own[knob]) for knob in transport_knobs}
    searched["preset"] = tuple(sorted(searched["preset"], key=preference.index))
    return tuple(
        dataclasses.replace(base.transport, **dict(zip(transport_knobs, names, strict=True)))
        for names in itertools.product(*searched.values())
    )
