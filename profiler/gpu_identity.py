"""Which sampled GPU is which device of the run: joined by uuid, else by PCI address, never by number.

So a permuted CUDA_VISIBLE_DEVICES, a MIG slice or a lost GPU cannot lend its readings to another. Pure; knows
nothing of readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_pci_address = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a run uses a GPU for."""

    device: str  # cuda:0
    roles: tuple[tuple[str, int], ...] = ()  # (target, 0); empty: a command that is not our trainer

    @property
    def label(self) -> str:
        """For people: `cuda:0 target 0`."""
        return " ".join([self.device, " + ".join(f"{role} {index}" for role, index in self.roles)]).strip()


def gpu_uses(manifest: Mapping[str, Any]) -> dict[str, GpuUse] | None:
    """NVML uuid of every GPU or slice that the run is known to use -> its use, in stage order.

    Without devices in the manifest: those that CUDA showed the command. None: nothing is known; empty: the
    run uses none of them, or none that can be told apart.
    """
    hardware = manifest.get("hardware")
    hardware = hardware if isinstance(hardware, Mapping) else {}
    listed = list(_tables(hardware.get("gpus")))
    uses: dict[str, GpuUse] = {}
    for device in _tables(manifest.get("devices")):
        uuid = _find(device, listed)
        role, index, name = device.get("role"), device.get("index"), device.get("name")
        if uuid is not None and isinstance(role, str) and isinstance(index, int):
            before = uses.get(uuid, GpuUse(str(name)))
            uses[uuid] = GpuUse(before.device, (*before.roles, (role, index)))
    shown = hardware.get("visible_gpus")
    if manifest.get("devices"):
        return uses
    return (
        {str(uuid): GpuUse(f"cuda:{place}") for place, uuid in enumerate(shown)}
        if isinstance(shown, list)
        else None
    )


def nodes_of_devices(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Device name -> the NUMA node that its GPU hangs on, of those of which the system said it."""
    hardware = manifest.get("hardware")
    listed = list(_tables(hardware.get("gpus"))) if isinstance(hardware, Mapping) else []
    nodes = {str(gpu.get("uuid")): gpu.get("numa_node") for gpu in listed}
    found: dict[str, int] = {}
    for device in _tables(manifest.get("devices")):
        uuid = _find(device, listed)
        node = None if uuid is None else nodes.get(uuid)
        if isinstance(node, int):
            found[str(device.get("name"))] = node
    return found


def _find(device: Mapping[str, Any], listed: list[Mapping[str, Any]]) -> str | None:
    """The uuid, as NVML spells it, of the listed GPU that `device` is; its own when nothing is listed."""
    uuid, address = device.get("uuid"), _address(device.get("pci"))
    if isinstance(uuid, str) and uuid:
        same = [str(gpu["uuid"]) for gpu in listed if _bare(gpu.get("uuid")) == _bare(uuid)]
        return same[0] if len(same) == 1 else None if listed else uuid
    whole = [gpu for gpu in listed if gpu.get("slice_of") is None]
    same = [str(gpu.get("uuid")) for gpu in whole if address and _address(gpu.get("pci_bus_id")) == address]
    return same[0] if len(same) == 1 else None


def _bare(uuid: object) -> str:
    """CUDA gives a MIG slice's uuid without saying that it is one."""
    return str(uuid).removeprefix("GPU-").removeprefix("MIG-").lower()


def _address(text: object) -> tuple[int, ...] | None:
    """Domain, bus, device: the domain is written with four digits or eight."""
    found = _pci_address.match(text) if isinstance(text, str) else None
    return None if found is None else tuple(int(part, 16) for part in found.groups())


def _tables(entries: object) -> Iterator[Mapping[str, Any]]:
    """The tables of a list from a manifest, which may be a stranger's."""
    yield from (
        entry for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, Mapping)
    )
