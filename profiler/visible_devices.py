"""Which GPUs CUDA shows under a CUDA_VISIBLE_DEVICES, told from NVML's list without starting CUDA.

CUDA reads a list of one form, numbers or uuids, up to the first entry that names no GPU; a list that names
one twice shows none. Numbers follow CUDA_DEVICE_ORDER, and only PCI_BUS_ID is NVML's own order. What depends
on CUDA's ranking of different models is never guessed. Pure; knows nothing of torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from profiler.samplers.sensors import GpuDevice

_pci_order: Final = "PCI_BUS_ID"
_number = re.compile(r"\s*([+-]?[0-9]+)")
_old_mig_name = re.compile(r"MIG-(GPU-[^/]+)/([0-9]+)/([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevice:
    """A GPU or MIG slice that CUDA shows."""

    uuid: str  # NVML's; of a slice that NVML does not list, the name in the variable
    gpu: int | None  # NVML's number of the GPU, for a slice that of its GPU; None: of no listed GPU
    slice_index: int | None = None  # of a MIG slice: its place among those of its GPU
    gpu_instance: int | None = None  # of a MIG slice in the old spelling
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class NoneVisible:
    """Why no GPU can be named. `ask_cuda`: there may be some, but only CUDA knows which."""

    reason: str
    ask_cuda: bool = False

    def __str__(self) -> str:
        return self.reason if self.ask_cuda else f"no visible GPU because {self.reason}"


def visible_devices(
    cvd: str | None, inventory: Sequence[GpuDevice], order: str | None = None
) -> tuple[VisibleDevice, ...] | NoneVisible:
    """The devices in CUDA's order, at least one, or why there is none.

    `cvd` and `order` are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None where unset. `inventory` is what
    NVML lists: GPUs in its order, each followed by its MIG slices.
    """
    gpus = [device for device in inventory if device.slice_of is None]
    if not gpus:
        return NoneVisible("the driver lists none")
    if cvd is not None and cvd.startswith("GPU-"):
        return _by_uuid(cvd, gpus)
    if cvd is not None and cvd.startswith("MIG-"):
        return _by_slice(cvd, inventory, gpus)
    numbers = None if cvd is None else _read_numbers(cvd)
    if isinstance(numbers, NoneVisible):
        return numbers
    if not _numbers_follow_nvml(gpus, order):
        return NoneVisible(
            "CUDA numbers the GPUs fastest first: which is which, only CUDA can tell "
            "(CUDA_DEVICE_ORDER=PCI_BUS_ID makes their order known)",
            ask_cuda=True,
        )
    by_number = {place if gpu.index is None else gpu.index: gpu for place, gpu in enumerate(gpus)}
    shown = []
    for number in sorted(by_number) if numbers is None else numbers:
        if number not in by_number:
            break
        shown.append(VisibleDevice(uuid=by_number[number].key, gpu=number))
    return tuple(shown) or NoneVisible(
        f"CUDA_VISIBLE_DEVICES={cvd!r} begins with a GPU that is not there: the driver lists {len(gpus)}"
    )


def _read_numbers(cvd: str) -> list[int] | NoneVisible:
    if not cvd.strip():
        return NoneVisible("CUDA_VISIBLE_DEVICES is empty")
    numbers: list[int] = []
    for entry in cvd.split(","):
        found = _number.match(entry)
        number = -1 if found is None else int(found[1])
        if number in numbers:
            return NoneVisible(f"CUDA_VISIBLE_DEVICES={cvd!r} names GPU {number} twice")
        if number < 0:
            break
        numbers.append(number)
    return numbers or NoneVisible(f"CUDA_VISIBLE_DEVICES={cvd!r} begins with no number of a GPU")


def _numbers_follow_nvml(gpus: Sequence[GpuDevice], order: str | None) -> bool:
    """Whether CUDA's numbers are NVML's: by PCI address, or one model, where none is faster than another."""
    if order == _pci_order or len(gpus) == 1:
        return True
    return order is None and len({gpu.name for gpu in gpus}) == 1


def _by_uuid(cvd: str, gpus: Sequence[GpuDevice]) -> tuple[VisibleDevice, ...] | NoneVisible:
    shown: list[VisibleDevice] = []
    why = ""
    for entry in _same_form(cvd, "GPU-"):
        matches = [place for place, gpu in enumerate(gpus) if gpu.key.startswith(entry)]
        if len(matches) != 1:
            fits = f"fits {len(matches)} GPUs" if matches else "fits no uuid of a GPU"
            why = f"{entry!r} in CUDA_VISIBLE_DEVICES {fits}"
            break
        place = matches[0]
        gpu = gpus[place]
        if any(device.uuid == gpu.key for device in shown):
            return NoneVisible(f"CUDA_VISIBLE_DEVICES={cvd!r} names one GPU twice")
        shown.append(VisibleDevice(uuid=gpu.key, gpu=place if gpu.index is None else gpu.index))
    return tuple(shown) or NoneVisible(why)


def _by_slice(
    cvd: str, inventory: Sequence[GpuDevice], gpus: Sequence[GpuDevice]
) -> tuple[VisibleDevice, ...] | NoneVisible:
    """MIG names are passed through: that CUDA knows them cannot be checked against every driver's list."""
    shown: list[VisibleDevice] = []
    for entry in _same_form(cvd, "MIG-"):
        device = _find_slice(entry, inventory, gpus)
        if any(other.uuid == device.uuid for other in shown):
            return NoneVisible(f"CUDA_VISIBLE_DEVICES={cvd!r} names one MIG slice twice")
        shown.append(device)
    return tuple(shown)


def _find_slice(entry: str, inventory: Sequence[GpuDevice], gpus: Sequence[GpuDevice]) -> VisibleDevice:
    places = {gpu.key: place if gpu.index is None else gpu.index for place, gpu in enumerate(gpus)}
    slices = [device for device in inventory if device.slice_of is not None]
    if old := _old_mig_name.fullmatch(entry):
        parent, instances = old[1], (int(old[2]), int(old[3]))
        matches = [
            s for s in slices if s.slice_of == parent and (s.gpu_instance, s.compute_instance) == instances
        ]
        return VisibleDevice(
            uuid=matches[0].key if len(matches) == 1 else entry,
            gpu=places.get(parent),
            gpu_instance=instances[0],
            compute_instance=instances[1],
        )
    matches = [s for s in slices if s.key.startswith(entry)]
    if len(matches) != 1:
        return VisibleDevice(uuid=entry, gpu=None)
    found = matches[0]
    siblings = [s.key for s in slices if s.slice_of == found.slice_of]
    return VisibleDevice(
        uuid=found.key, gpu=places.get(found.slice_of or ""), slice_index=siblings.index(found.key)
    )


def _same_form(cvd: str, prefix: str) -> list[str]:
    """The entries up to the first of another form."""
    entries = cvd.split(",")
    other = next((place for place, entry in enumerate(entries) if not entry.startswith(prefix)), None)
    return entries[:other]
