"""Copies between the GPUs of a run are checked before any thread starts.

Some machines claim peer access and corrupt what crosses it (an IOMMU in the way, allocator modes). The first
copy of a pair also switches peer access on, which races with other threads' allocations when left to the
pipeline (seen on two H200: "resource already mapped"). Knows nothing of transports.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

from dflash.contract.errors import DeviceError
from dflash.devices import DeviceSet

pattern_words = 1 << 20  # 8 MB, more than a driver passes through its small staging buffers

Crossing = Callable[[Tensor, torch.device, torch.device], Tensor]


def cross(pattern: Tensor, source: torch.device, destination: torch.device) -> Tensor:
    """What is left on the CPU of a CPU tensor sent to `source` and from there to `destination`."""
    return pattern.to(source).to(destination).cpu()


def check_edges(devices: DeviceSet, crossing: Crossing = cross) -> None:
    """Copy a pattern both ways over each pair of GPUs. Raises DeviceError naming the first bad one."""
    stages = (*devices.targets, *devices.drafters)
    places = {device.torch_device for device in stages if not device.emulated}
    pattern = torch.arange(pattern_words, dtype=torch.int64) * 2654435761
    for source, destination in permutations(sorted(places, key=str), 2):
        wrong = int((crossing(pattern, source, destination) != pattern).sum())
        if wrong:
            raise DeviceError(
                "copies between two GPUs arrive corrupted",
                where=f"{source} to {destination}",
                found=f"{wrong} of {pattern_words} words wrong",
                remedy="try transport=pinned with one drafter; IOMMU or ACS settings are the usual cause",
            )
