"""NVML's GPM counters (Hopper and later): how much of a GPU really worked between two looks.

Two sample buffers of one device take turns. Errors leave as NVML's exceptions; knows nothing of pace.
"""

from __future__ import annotations

from typing import Any, Final

metric_ids: Final = {  # nvmlGpmMetricId_t
    "sm_active_pct": 2,  # mean share of SMs that were busy
    "sm_occupancy_pct": 3,  # mean share of warps in use
    "tensor_active_pct": 5,  # share of time that tensor cores were busy
    "dram_active_pct": 10,  # share of memory bandwidth in use
}
_untouched: Final = 999  # NVML_ERROR_UNKNOWN: stays where the driver fills nothing in


class GpmPair:
    """The last look at one device. Raises NVML's errors; the buffers are freed by `close`."""

    def __init__(self, nvml: Any, handle: Any, *, gpu_instance: int | None = None) -> None:
        """`gpu_instance`: look at that MIG instance of the GPU behind `handle`."""
        self._nvml, self._handle, self._gpu_instance = nvml, handle, gpu_instance
        self._buffers: list[Any] = []
        self._has_looked = False
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        for _ in range(2):
            self._buffers.append(nvml.nvmlGpmSampleAlloc())

    def look(self) -> dict[str, Any] | None:
        """Each metric over the time since the last look: a value, or (error number,). None at the first."""
        before, now = self._buffers
        if self._gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, now)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, now)
        self._buffers.reverse()
        if not self._has_looked:
            self._has_looked = True
            return None
        return self._compare(before, now)

    def close(self) -> None:
        """Free the buffers. Raises NVML's errors."""
        while self._buffers:
            self._nvml.nvmlGpmSampleFree(self._buffers.pop())

    def _compare(self, before: Any, now: Any) -> dict[str, Any]:
        question = self._nvml.c_nvmlGpmMetricsGet_t()
        question.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(metric_ids)
        question.sample1, question.sample2 = before, now
        for place, number in enumerate(metric_ids.values()):
            question.metrics[place].metricId = number
            question.metrics[place].nvmlReturn = _untouched
        self._nvml.nvmlGpmMetricsGet(question)
        found = [question.metrics[place] for place in range(len(metric_ids))]
        return {
            name: metric.value if metric.nvmlReturn == 0 else (metric.nvmlReturn,)
            for name, metric in zip(metric_ids, found, strict=True)
        }
