"""GPU sensors through NVML (nvidia-ml-py), which is imported only when opened.

Asks nothing that blocks: `nvmlDeviceGetPcieThroughput` takes 20 ms a call, the byte counters far less.
Every NVML error, and every answer that makes no sense, becomes a reason here. Knows nothing of pace or logs.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dflash.contract.rundir import one_instant
from profiler.samplers import answers
from profiler.samplers.gpm import GpmPair
from profiler.samplers.metrics import gpm_metrics, memory_metrics, power_samples
from profiler.samplers.sensors import (
    Answer,
    GpuDevice,
    GpuProcess,
    GpuSensors,
    PowerSample,
    Unreadable,
)

# NVML's field numbers, by value: an older binding lacks some names, and their meaning is fixed. The fields of
# single thermal reasons are left out, since drivers have renumbered them.
all_links: Final = 0xFFFFFFFF  # as a field's scope: the sum over all NVLinks
field_ids: Final[dict[str, int | tuple[int, int]]] = {
    "power_avg_w": 185,
    "pcie_tx_bytes": 197,
    "pcie_rx_bytes": 198,
    "nvlink_tx_bytes": (138, all_links),
    "nvlink_rx_bytes": (139, all_links),
    "throttled_power_s": 74,
    "throttled_thermal_s": 75,
    "throttled_board_s": 77,
    "throttled_reliability_s": 79,
}
_instant_power: Final = 186
_lacking: Final = (
    answers.not_supported,
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
)  # the driver is too old for a call that has an older form
_value_names: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by NVML's value type
_peer_questions: Final = (0, 1)  # NVML_P2P_CAPS_INDEX_READ and _WRITE, of which a binding makes a tuple
_first_namespace: Final = 0xEFFFFFFC  # inode of the machine's first pid namespace (PROC_PID_INIT_INO)
_sample_age_limit_us: Final = 60_000_000  # an older stamp is none


@dataclass(frozen=True, slots=True)
class _Failure:
    """An NVML error in place of an answer."""

    error: str


@dataclass(slots=True)
class _Gpu:
    """One device while connected, and what was learnt of it."""

    handle: Any
    device: GpuDevice
    parent: Any = None  # of a MIG slice: the handle of its GPU
    has_instant_power: bool = True
    has_memory_v2: bool = True
    gpm: GpmPair | _Failure | None = None
    drained_us: int = 0  # wall-clock stamp of the newest power sample seen
    drained_ns: int = field(default_factory=time.monotonic_ns)


class NvmlSensors(GpuSensors):
    """All GPUs and MIG slices that the driver shows this process."""

    def __init__(self, pid_namespace: Path = Path("/proc/self/ns/pid")) -> None:
        self._nvml: Any = None  # the module, while connected
        self._found: list[_Gpu] = []
        self._errors: dict[int, str] = {}  # NVML's error number to its name
        self._pid_namespace = pid_namespace
        self._sees_pids = False

    def open(self) -> str | None:
        self.close()
        try:
            import pynvml
        except ImportError:
            return "the Python package nvidia-ml-py is not installed"
        self._errors = {getattr(pynvml, n): n for n in dir(pynvml) if n.startswith("NVML_ERROR_")}
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return answers.explain_start(self._name(error))
        self._nvml = pynvml
        self._sees_pids = self._sees_the_machines_pids()
        self._found = list({gpu.device.key: gpu for gpu in self._find()}.values())  # a name is one device's
        if self._found:
            return None
        self.close()
        return "the NVIDIA driver shows no GPU to this process"

    def devices(self) -> tuple[GpuDevice, ...]:
        return tuple(gpu.device for gpu in self._found)

    def read(self, index: int, metrics: Sequence[str]) -> list[Answer]:
        gpu = self._found[index]
        wanted = set(metrics)
        raw: dict[str, Any] = {}
        if fields := [metric for metric in field_ids if metric in wanted]:
            raw |= self._read_fields(gpu.handle, fields)
        if wanted.intersection(memory_metrics):
            raw |= self._read_memory(gpu)
        if wanted.intersection(gpm_metrics):
            raw |= self._read_gpm(gpu)
        single = self._single_readers()
        return [self._judge(raw[m] if m in raw else single[m](gpu), gpu.device, m) for m in metrics]

    def drain(self, index: int) -> list[PowerSample] | Unreadable:
        """To a quarter of a watt, which packs well: the driver vouches for 5 W."""
        gpu = self._found[index]
        utc_ns, now_ns = one_instant()
        wall_us = utc_ns // 1000
        if gpu.drained_us > wall_us:  # the wall clock was set back
            gpu.drained_us = 0
        found = self._ask(
            "nvmlDeviceGetSamples",
            gpu.handle,
            0,  # NVML_TOTAL_POWER_SAMPLES
            gpu.drained_us,
            pick=lambda told: [(s.timeStamp, _value_of(told[0], s.sampleValue)) for s in told[1]],
        )
        if isinstance(found, _Failure):
            if found.error == "NVML_ERROR_NOT_FOUND":  # nothing new
                return []
            return answers.explain_reading(found.error, gpu.device, power_samples)
        sound = [
            (stamp_us, watts)
            for stamp_us, milliwatts in found
            if answers.is_number(stamp_us) and 0 <= wall_us - stamp_us < _sample_age_limit_us
            if not isinstance(watts := answers.judge(milliwatts, gpu.device, "power_w"), Unreadable)
        ]
        if found and not sound:
            return answers.explain_reading(answers.nonsense, gpu.device, power_samples)
        samples = []
        for stamp_us, watts in sorted(sound):
            t_ns = now_ns - (wall_us - stamp_us) * 1000
            if t_ns > gpu.drained_ns:
                samples.append(PowerSample(t_ns, round(watts * 4) / 4))
                gpu.drained_us, gpu.drained_ns = stamp_us, t_ns
        return samples

    def processes(self, index: int) -> list[GpuProcess] | Unreadable:
        if not self._sees_pids:
            return answers.other_namespace
        gpu = self._found[index]
        found: dict[int, GpuProcess] = {}
        for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            listed = self._ask(
                question, gpu.handle, pick=lambda told: [(p.pid, p.usedGpuMemory) for p in told]
            )
            if isinstance(listed, _Failure):
                return answers.explain_reading(listed.error, gpu.device, "processes")
            for pid, used in listed:
                found[pid] = GpuProcess(pid, int(used) if answers.is_number(used) else None)
        return list(found.values())

    def reaches(self, first: int, second: int) -> bool | None:
        """Whether two devices read and write each other's memory, as the driver says; None: it does not.

        Its word proves nothing: copies are proven by `dflash-profile links`.
        """
        pair = (self._found[first], self._found[second])
        if any(gpu.parent is not None for gpu in pair):
            return False  # slices never do
        told = [
            self._ask("nvmlDeviceGetP2PStatus", pair[0].handle, pair[1].handle, kind)
            for kind in _peer_questions
        ]
        return None if any(not isinstance(status, int) for status in told) else not any(told)

    def system_memory(self) -> tuple[int, int] | None:
        import psutil

        memory = psutil.virtual_memory()
        return memory.total, memory.available

    def close(self) -> None:
        nvml, self._nvml = self._nvml, None
        found, self._found = self._found, []
        if nvml is not None:
            for gpu in found:
                if isinstance(gpu.gpm, GpmPair):
                    with contextlib.suppress(nvml.NVMLError):
                        gpu.gpm.close()
            with contextlib.suppress(nvml.NVMLError):  # the driver may be gone already
                nvml.nvmlShutdown()

    def _judge(self, raw: Any, device: GpuDevice, metric: str) -> Answer:
        if raw is None:
            return None
        if isinstance(raw, _Failure):
            return answers.explain_reading(raw.error, device, metric)
        return answers.judge(raw, device, metric)

    def _single_readers(self) -> dict[str, Callable[[_Gpu], Any]]:
        """How each metric that comes alone is asked for, in NVML's own units."""
        ask = self._ask
        return {
            "power_w": self._power_mw,
            "sm_clock_mhz": lambda g: ask("nvmlDeviceGetClockInfo", g.handle, 1),
            "mem_clock_mhz": lambda g: ask("nvmlDeviceGetClockInfo", g.handle, 2),
            "util_pct": lambda g: ask(
                "nvmlDeviceGetUtilizationRates", g.handle, pick=operator.attrgetter("gpu")
            ),
            "throttle_reasons": lambda g: ask("nvmlDeviceGetCurrentClocksThrottleReasons", g.handle),
            "temp_c": lambda g: ask("nvmlDeviceGetTemperature", g.handle, 0),
            "power_limit_w": lambda g: ask("nvmlDeviceGetEnforcedPowerLimit", g.handle),
            "energy_j": lambda g: ask("nvmlDeviceGetTotalEnergyConsumption", g.handle),
        }

    def _power_mw(self, gpu: _Gpu) -> Any:
        """Instant power where there is such a field: the plain reading is a mean over 1 s on recent cards."""
        if gpu.has_instant_power:
            told = self._ask_fields(gpu.handle, [_instant_power])[0]
            if not isinstance(told, _Failure):
                return told
            gpu.has_instant_power = told.error not in _lacking
        return self._ask("nvmlDeviceGetPowerUsage", gpu.handle)

    def _read_fields(self, handle: Any, metrics: Sequence[str]) -> dict[str, Any]:
        """Several fields in one call."""
        return dict(zip(metrics, self._ask_fields(handle, [field_ids[m] for m in metrics]), strict=True))

    def _ask_fields(self, handle: Any, fields: Sequence[int | tuple[int, int]]) -> list[Any]:
        told = self._ask("nvmlDeviceGetFieldValues", handle, list(fields), pick=self._values_of)
        if isinstance(told, _Failure):
            return [told] * len(fields)
        return told if len(told) == len(fields) else [_Failure(answers.nonsense)] * len(fields)

    def _values_of(self, fields: Any) -> list[Any]:
        return [
            _value_of(f.valueType, f.value) if f.nvmlReturn == 0 else _Failure(self._name_of(f.nvmlReturn))
            for f in fields
        ]

    def _read_memory(self, gpu: _Gpu) -> dict[str, Any]:
        if gpu.has_memory_v2:
            told = self._ask(
                "nvmlDeviceGetMemoryInfo",
                gpu.handle,
                0x02000028,  # nvmlMemory_v2, whose `used` leaves out what the driver keeps for itself
                pick=operator.attrgetter("used", "reserved", "total"),
            )
            if not isinstance(told, _Failure):
                return dict(zip(memory_metrics, told, strict=True))
            if told.error not in _lacking:
                return dict.fromkeys(memory_metrics, told)
            gpu.has_memory_v2 = False
        told = self._ask("nvmlDeviceGetMemoryInfo", gpu.handle, pick=operator.attrgetter("used", "total"))
        if isinstance(told, _Failure):
            return dict.fromkeys(memory_metrics, told)
        return {
            "mem_used_bytes": told[0],
            "mem_reserved_bytes": _Failure(answers.not_supported),
            "mem_total_bytes": told[1],
        }

    def _read_gpm(self, gpu: _Gpu) -> dict[str, Any]:
        if gpu.gpm is None:
            handle, instance = gpu.handle, None
            if gpu.parent is not None:
                handle, instance = gpu.parent, gpu.device.gpu_instance
            nvml = self._nvml
            gpu.gpm = self._try(lambda: GpmPair(nvml, handle, gpu_instance=instance))
        if isinstance(gpu.gpm, _Failure):
            failure, gpu.gpm = gpu.gpm, None
            return dict.fromkeys(gpm_metrics, failure)
        told = self._try(gpu.gpm.look)
        if told is None or isinstance(told, _Failure):
            return dict.fromkeys(gpm_metrics, told)
        return {
            name: _Failure(self._name_of(value[0])) if isinstance(value, tuple) else value
            for name, value in told.items()
        }

    def _find(self) -> Iterator[_Gpu]:
        count = self._ask("nvmlDeviceGetCount")
        for index in range(count if isinstance(count, int) and 0 < count < 4096 else 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            device = None if isinstance(handle, _Failure) else self._describe(handle, index)
            if device is None:
                continue  # one lost or forbidden GPU must not hide the others
            yield _Gpu(handle, device)
            if device.mig:
                yield from self._find_slices(handle, device)

    def _find_slices(self, parent_handle: Any, parent: GpuDevice) -> Iterator[_Gpu]:
        count = self._ask("nvmlDeviceGetMaxMigDeviceCount", parent_handle)
        for place in range(count if isinstance(count, int) and 0 < count < 64 else 0):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", parent_handle, place)
            if not isinstance(handle, _Failure):
                device = self._describe(handle, parent.index, slice_of=parent.key)
                if device is not None:
                    yield _Gpu(handle, device, parent_handle)

    def _describe(self, handle: Any, index: int | None, slice_of: str | None = None) -> GpuDevice | None:
        """The facts; None for a device that does not say who it is."""
        uuid, name = (
            _text(self._ask("nvmlDeviceGetUUID", handle)),
            _text(self._ask("nvmlDeviceGetName", handle)),
        )
        if uuid is None or not uuid.startswith(("GPU-", "MIG-")):
            return None
        mode = self._ask("nvmlDeviceGetMigMode", handle, pick=operator.itemgetter(0))
        mig = slice_of is not None or mode == 1
        total = self._ask("nvmlDeviceGetMemoryInfo", handle, pick=operator.attrgetter("total"))
        told = total.error if isinstance(total, _Failure) else total
        limit_mw = _whole(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle))
        instances = [
            _whole(self._ask(f"nvmlDeviceGet{kind}InstanceId", handle)) if slice_of else None
            for kind in ("Gpu", "Compute")
        ]
        return GpuDevice(
            key=uuid,
            name=name or "GPU of unknown name",
            index=index,
            slice_of=slice_of,
            gpu_instance=instances[0],
            compute_instance=instances[1],
            mig=mig,
            unified_memory=answers.has_unified_memory(name or "", told, mig=mig),
            pci_bus_id=_text(self._ask("nvmlDeviceGetPciInfo", handle, pick=operator.attrgetter("busId"))),
            memory_bytes=_whole(total) or None,
            power_limit_w=limit_mw / 1000 if limit_mw else None,
            max_sm_clock_mhz=_whole(self._ask("nvmlDeviceGetMaxClockInfo", handle, 1)) or None,
        )

    def _ask(self, question: str, *arguments: Any, pick: Callable[[Any], Any] = lambda told: told) -> Any:
        """What `pick` takes from NVML's answer, or the failure in its place."""
        asked = getattr(self._nvml, question, None)
        if asked is None:  # an older binding
            return _Failure("NVML_ERROR_FUNCTION_NOT_FOUND")
        return self._try(lambda: pick(asked(*arguments)))

    def _try(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError as error:
            return _Failure(self._name(error))
        except (AttributeError, TypeError, ValueError, LookupError):
            return _Failure(answers.nonsense)

    def _name(self, error: Any) -> str:
        return self._name_of(error.value)

    def _name_of(self, number: Any) -> str:
        return self._errors.get(number, f"NVML error {number}")

    def _sees_the_machines_pids(self) -> bool:
        """NVML numbers processes as the machine's first pid namespace does."""
        try:
            return self._pid_namespace.stat().st_ino == _first_namespace
        except OSError:
            return False


def _value_of(kind: Any, value: Any) -> Any:
    """The member of NVML's value union that its type names."""
    return getattr(value, _value_names[kind])


def _text(told: Any) -> str | None:
    text = told.decode(errors="replace") if isinstance(told, bytes) else told
    return text if isinstance(text, str) and text else None


def _whole(told: Any) -> int | None:
    return int(told) if answers.is_number(told) and told < 2**63 and told != 0xFFFFFFFF else None
