"""Which ceilings hold for a run's GPUs: measured beside it or on this machine, else known of the model.

Files come from strangers: what cannot be read is as good as missing. Knows nothing of what a run needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dflash.contract.ceilings import Ceilings, DeviceCeilings
from dflash.contract.errors import RunError
from dflash.contract.rundir import RunDir, write_json
from profiler.records import RecordError, decode
from profiler.run import Run

_measured_h200: Final = (
    "known of the model: products and copies measured on two of them (torch 2.11, driver 580), memory by "
    "NVIDIA's data sheet"
)
_sheet: Final = "known of the model: NVIDIA's data sheet, dense bfloat16, one direction of NVLink or PCIe"
known_gpus: Final = {
    "NVIDIA H200": DeviceCeilings(
        model="NVIDIA H200", uuid=None, matmul_tflops=790.0, memory_gb_per_s=4800.0, down_gb_per_s=55.2,
        up_gb_per_s=55.3, peer_gb_per_s=392.0, source=_measured_h200,
    ),
    "NVIDIA H100 80GB HBM3": DeviceCeilings(
        model="NVIDIA H100 80GB HBM3", uuid=None, matmul_tflops=989.0, memory_gb_per_s=3350.0,
        down_gb_per_s=63.0, up_gb_per_s=63.0, peer_gb_per_s=450.0, source=_sheet,
    ),
    "NVIDIA H100 PCIe": DeviceCeilings(
        model="NVIDIA H100 PCIe", uuid=None, matmul_tflops=756.0, memory_gb_per_s=2000.0, down_gb_per_s=63.0,
        up_gb_per_s=63.0, peer_gb_per_s=63.0, source=_sheet,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuCeilings:
    """What one GPU of a run can do at best, all of them alike; None with the reason where it is not known."""

    each: DeviceCeilings | None
    reason: str | None = None


def machine_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this machine's measured ceilings are kept."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dflash-tune" / "ceilings.json"


def keep_ceilings(found: Ceilings, path: Path) -> None:
    """Write them to a machine's file, beside those of GPUs that were not looked at. Raises RunError."""
    before = read_ceilings(path)
    seen = {device.uuid for device in found.devices}
    others = tuple(d for d in before.devices if d.uuid not in seen) if before is not None else ()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"the ceilings cannot be kept: {error.strerror}", where=str(path)) from None
    write_json(path, replace(found, devices=(*found.devices, *others)).to_json())


def read_ceilings(path: Path) -> Ceilings | None:
    """What a file of ceilings says; None where there is none that can be read."""
    try:
        return decode(Ceilings, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, RecordError):
        return None


def find_ceilings(run: Run, machine: Path | None = None) -> GpuCeilings:
    """Of the GPUs that the run used; `machine`: the file of this machine's."""
    if run.emulated:
        return GpuCeilings(None, "logical devices have no ceilings")
    models = sorted({str(gpu.get("model") or "a GPU without a name") for gpu in used_gpus(run.manifest)})
    if not models:
        return GpuCeilings(None, "the run does not say which GPUs it used")
    if len(models) > 1:
        return GpuCeilings(None, f"the GPUs differ: {', '.join(models)}")
    uuids = {gpu.get("uuid") for gpu in used_gpus(run.manifest)} - {None}
    for path in (RunDir(run.path).ceilings_path, *([machine] if machine is not None else [])):
        measured = read_ceilings(path)
        mine = [d for d in measured.devices if d.uuid in uuids] if measured is not None else []
        if mine and all((device.matmul_tflops or 0.0) > 0 for device in mine):
            return GpuCeilings(_mean(mine))
    known = known_gpus.get(models[0])
    if known is not None:
        return GpuCeilings(known)
    remedy = "measure them with `dflash-profile ceilings --run RUN` on its machine"
    return GpuCeilings(None, f"the ceilings of {models[0]} are not known; {remedy}")


def visible_alike(run: Run, model: str) -> int:
    """GPUs of a model that the run's command could see; 0 where that is not told."""
    hardware = run.manifest.get("hardware")
    hardware = hardware if isinstance(hardware, Mapping) else {}
    named = {gpu.get("uuid"): gpu.get("name") for gpu in _tables(hardware.get("gpus"))}
    shown = hardware.get("visible_gpus")
    return sum(named.get(uuid) == model for uuid in (shown if isinstance(shown, list) else []))


def used_gpus(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The run's devices, each once, in stage order: `name`, `model`, `uuid`, `memory_bytes`."""
    return list({str(device.get("name")): device for device in _tables(manifest.get("devices"))}.values())


def _tables(entries: object) -> list[Mapping[str, Any]]:
    """The tables of a list from a manifest, which may be a stranger's."""
    return [entry for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, Mapping)]


def _mean(devices: Sequence[DeviceCeilings]) -> DeviceCeilings:
    """Figure by figure, of those that have it."""

    def mean(name: str) -> float | None:
        values = [value for device in devices if (value := getattr(device, name)) is not None]
        return sum(values) / len(values) if values else None

    return replace(
        devices[0],
        matmul_tflops=mean("matmul_tflops"),
        memory_gb_per_s=mean("memory_gb_per_s"),
        down_gb_per_s=mean("down_gb_per_s"),
        up_gb_per_s=mean("up_gb_per_s"),
        peer_gb_per_s=mean("peer_gb_per_s"),
    )
