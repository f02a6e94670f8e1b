"""Copies between the GPUs of a run are checked before any thread starts.

Some machines claim peer access and corrupt what crosses it (an IOMMU in the way, allocator modes). The first
copy of a pair also switches peer access on, which races with other threads' allocations when left to the
pipeline (seen on two H200: "resource already mapped"). Knows nothing of transports.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dflash.contract.errors import DeviceError
from dflash.contract.sections import TransportChoice
from dflash.devices import DeviceSet
from dflash.routes import pairs_in_use

pattern_words = 1 << 20  # 8 MB, more than a driver passes through its small staging buffers

Crossing = Callable[[Tensor, torch.device, torch.device], Tensor]


def cross(pattern: Tensor, source: torch.device, destination: torch.device) -> Tensor:
    """What is left on the CPU of a CPU tensor sent to `source` and from there to `destination`."""
    return pattern.to(source).to(destination).cpu()


def check_edges(devices: DeviceSet, choice: TransportChoice, crossing: Crossing = cross) -> None:
    """Copy a pattern both ways over each pair of GPUs that a run copies between.

    With path `auto` that is left to `find_routes`, which goes round bad pairs. Raises DeviceError naming the
    first bad one.
    """
    if choice.path == "auto":
        return
    pattern = torch.arange(pattern_words, dtype=torch.int64) * 2654435761
    for source, destination in _edges_in_use(devices, choice):
        wrong = int((crossing(pattern, source, destination) != pattern).sum())
        if wrong:
            raise DeviceError(
                "copies between two GPUs arrive corrupted",
                where=f"{source} to {destination}",
                found=f"{wrong} of {pattern_words} words wrong",
                remedy="set transport.preset=auto, which goes round such pairs; IOMMU or ACS settings are "
                "the usual cause",
            )


def _edges_in_use(devices: DeviceSet, choice: TransportChoice) -> list[tuple[torch.device, torch.device]]:
    """Both directions of every pair, each once."""
    places = {device.name: device.torch_device for device in devices.all if not device.emulated}
    pairs = [(a, b) for a, b in pairs_in_use(devices, choice) if a != b and a in places]
    both_ways = {(places[a], places[b]) for pair in pairs for a, b in (pair, pair[::-1])}
    return sorted(both_ways, key=str)
