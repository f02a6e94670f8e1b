"""What an answer of NVML's means: a value in the metric's unit, or why there is none, in words for people.

Live and replayed sensors judge by it alike. Knows nothing of how a driver is asked.
"""

from __future__ import annotations

import math
from typing import Any

from profiler.samplers.metrics import metric_table
from profiler.samplers.sensors import GpuDevice, Unreadable

unified_reason = "unified memory: the GPU uses the host's, see unified_mem_used_bytes"
other_namespace = Unreadable(
    "pid namespace: the driver counts processes of the host, which have other numbers here", permanent=True
)
nonsense = "an answer that makes no sense"
not_supported = "NVML_ERROR_NOT_SUPPORTED"

_start_reasons = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver library on this machine",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated under the running system; reload it",
    "NVML_ERROR_NO_PERMISSION": "no permission to talk to the NVIDIA driver",
}
_reading_reasons = {
    not_supported: "not supported by this GPU",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "not supported by this driver",
    "NVML_ERROR_INVALID_ARGUMENT": "not supported by this GPU",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": "not supported by this driver",
    "NVML_ERROR_NO_PERMISSION": "no permission",
    "NVML_ERROR_GPU_IS_LOST": "the GPU has fallen off the bus",
    **{k: v for k, v in _start_reasons.items() if "PERMISSION" not in k},
}
_permanent = {
    not_supported,
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_NO_PERMISSION",
}
_all_bits = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def explain_start(error: str) -> str:
    """Why there are no GPU metrics at all, from the name of an NVML error."""
    return f"{_start_reasons.get(error, 'the NVIDIA driver does not answer')} ({error})"


def explain_reading(error: str, device: GpuDevice, metric: str) -> Unreadable:
    """Why one metric of one device has no value, from the name of an NVML error."""
    if device.unified_memory and metric.startswith("mem_"):
        return Unreadable(unified_reason, permanent=True)
    reason = _reading_reasons.get(error, "the driver failed to answer")
    if device.mig and error in _permanent:
        reason = "no permission: ask the MIG slice" if "PERMISSION" in error else "not supported on MIG"
    return Unreadable(f"{reason} ({error})", permanent=error in _permanent)


def judge(answer: Any, device: GpuDevice, metric: str) -> float | Unreadable:
    """The value in the metric's unit from an answer in NVML's, unless it cannot be true.

    Some drivers answer "success" and mean "unknown": all bits set, or a zero where there can be none.
    """
    told = metric_table[metric]
    if device.unified_memory and metric.startswith("mem_"):
        return Unreadable(unified_reason, permanent=True)
    if not is_number(answer):
        return explain_reading(nonsense, device, metric)
    if answer in _all_bits:
        return explain_reading(not_supported, device, metric)
    if answer == 0 and told.zero_is_unknown:
        return Unreadable("the driver says 0, which cannot be", permanent=True)
    value = float(answer) / told.per_unit
    more_than_all = metric == "mem_used_bytes" and value > (device.memory_bytes or math.inf)
    if value > told.ceiling or more_than_all:
        return explain_reading(nonsense, device, metric)
    return value


def is_number(answer: Any) -> bool:
    """Whether a sensor can have meant it: finite and not negative."""
    return (
        isinstance(answer, int | float)
        and not isinstance(answer, bool)
        and math.isfinite(answer)
        and answer >= 0
    )


def has_unified_memory(name: str, total_bytes: object, *, mig: bool) -> bool:
    """Whether a GPU lives in the host's memory. `total_bytes`: NVML's answer, or the name of its error."""
    return not mig and ("GB10" in name or total_bytes == 0 or total_bytes == not_supported)
