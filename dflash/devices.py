"""Where stages run: a GPU, or a logical device that stands for one on machines without.

A Device binds threads and records Moments; a Moment is a point in a device's work that can be waited for.
On a logical device (CPU threads) work is finished when the call returns, so its moments are reached at
once. The CUDA kind is in `dflash/cuda.py`. Knows nothing of what runs on a device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DeviceError, DFlashError, ran_out_of_memory
from dflash.contract.events import Probe
from dflash.cuda import CudaDevice


class Moment(Protocol):
    """A point in a device's work."""

    def done(self) -> bool:
        """Whether it has been reached. Never blocks."""

    def wait(self) -> None:
        """Block the calling thread until it is reached, with the GIL released. Raises what prevented it."""

    def order_stream(self) -> None:
        """Let nothing that the calling thread enqueues from now on start before it is reached."""


class Timing(Protocol):
    """Device time of what one thread enqueues between `Device.start_timing` and `stop`.

    A stage keeps it and asks later, so that measuring never waits for the device:

        timing = device.start_timing()
        ...                                    # enqueue the work
        if timing is not None:
            timing.stop()
        ...                                    # another batch later
        if timing is not None and timing.done():
            probe.emit_span("forward", *timing.ends_ns(), clock="gpu")
    """

    def stop(self) -> None:
        """The work to be timed has been enqueued, by the thread that started the timing."""

    def done(self) -> bool:
        """Whether the device has passed both ends. Never blocks. Only after `stop`."""

    def ends_ns(self) -> tuple[int, int]:
        """Start and end on CLOCK_MONOTONIC. Blocks until `done`."""


class Device(Protocol):
    """One place where a stage runs. `name` is `cuda:0` or `logical:0`; stages may share one."""

    index: int
    name: str
    torch_device: torch.device
    emulated: bool

    def bind_thread(self) -> None:
        """Make this the calling thread's device, with a stream of its own. Once, when the thread starts."""

    def record(self) -> Moment:
        """The moment when everything the calling thread has enqueued on this device so far is finished."""

    def start_timing(self) -> Timing | None:
        """Begin a device-time measurement; None where host time already is device time."""

    def active(self) -> AbstractContextManager[None]:
        """Make this the calling thread's device for a while, on whatever stream the thread has there."""

    def computing(self, probe: Probe, **fields: object) -> AbstractContextManager[None]:
        """Compute inside. Where roles that share it must take turns, waiting is a span `device_wait`."""

    def memory_figures(self) -> dict[str, float]:
        """allocated_bytes, reserved_bytes, alloc_retries of torch's allocator; empty where there is none.

        peak_allocated_bytes, peak_reserved_bytes: the most since `forget_peaks`, or ever.
        """

    def forget_peaks(self) -> None:
        """From now on peaks count anew."""

    def facts(self) -> dict[str, Any]:
        """model, uuid, pci, memory_bytes: None where unknown."""


class ReachedMoment:
    """A moment in the past."""

    def done(self) -> bool:
        """True."""
        return True

    def wait(self) -> None:
        """Return at once."""

    def order_stream(self) -> None:
        """Nothing to order."""


reached = ReachedMoment()


class LogicalDevice:
    """CPU threads that play a device. Work is done when the call that did it returns.

    It computes one thing at a time, as roles that share a device have its compute only once. Copies are made
    beside it.
    """

    def __init__(self, index: int) -> None:
        self._turn = threading.Lock()
        self.index, self.name = index, f"logical:{index}"
        self.torch_device = torch.device("cpu")
        self.emulated = True

    def bind_thread(self) -> None:
        """Nothing to bind: threads of one process share the CPU."""

    def record(self) -> Moment:
        """Already reached."""
        return reached

    def start_timing(self) -> Timing | None:
        """None: the host span is the true duration."""
        return None

    def active(self) -> AbstractContextManager[None]:
        """Nothing to switch."""
        return nullcontext()

    @contextmanager
    def computing(self, probe: Probe, **fields: object) -> Iterator[None]:
        """Hold the device's turn."""
        if not self._turn.acquire(blocking=False):
            start_ns = time.monotonic_ns()
            self._turn.acquire()
            probe.emit_span("device_wait", start_ns, time.monotonic_ns(), **fields)
        try:
            yield
        finally:
            self._turn.release()

    def memory_figures(self) -> dict[str, float]:
        """The CPU has no caching allocator."""
        return {}

    def forget_peaks(self) -> None:
        """Nothing to forget."""

    def facts(self) -> dict[str, Any]:
        """A logical device has no hardware facts."""
        return {"model": None, "uuid": None, "pci": None, "memory_bytes": None}


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """The devices of a run, by role and in stage order."""

    targets: tuple[Device, ...]
    drafters: tuple[Device, ...]

    @property
    def all(self) -> tuple[Device, ...]:
        return (*self.targets, *self.drafters)

    @property
    def emulated(self) -> bool:
        return self.targets[0].emulated

    def describe(self) -> list[dict[str, Any]]:
        """For run.json: one entry a stage, targets first; `index` counts stages of one role."""
        roles = (("target", self.targets), ("drafter", self.drafters))
        return [
            {"name": device.name, "role": role, "index": index, **device.facts()}
            for role, devices in roles
            for index, device in enumerate(devices)
        ]


def open_devices(config: TrainConfig) -> DeviceSet:
    """Targets on devices 0…T-1, drafters on T…T+D-1 (colocated: 0…D-1), wrapping round where they must share.

    Roles on one device get the same object: between them nothing needs to be copied. Raises DeviceError when
    there are too few GPUs.
    """
    devices: Sequence[Device]
    if wants_cuda(config):
        devices = _cuda_devices(config)
    else:
        devices = [LogicalDevice(i) for i in range(config.device_count)]
    targets, drafters = (tuple(devices[place] for place in places) for places in config.role_places)
    return DeviceSet(targets, drafters)


def resolve_dtype(choice: str, device_type: str) -> torch.dtype:
    """The dtype of a `dtype` knob on such devices."""
    if choice == "auto":
        choice = "bfloat16" if device_type == "cuda" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[choice]


def avoid_attention_plans(device: torch.device) -> None:
    """Let no attention of torch's choice be cuDNN's in this process; on a CPU there is none.

    It builds a plan for every new shape, for a tenth of a second to three seconds, and where lengths vary or
    grow nearly every shape is new.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def fitting(device: torch.device, what: str = "the target") -> Iterator[None]:
    """Whether `what`, which is loaded inside, fits there: raises DFlashError when memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(f"{type(error).__name__}: {error}"):
            raise
        raise DFlashError(
            f"{what} does not fit into this device's memory",
            where=str(device),
            found=next(iter(str(error).splitlines()), type(error).__name__),
            remedy="end what else uses its memory (`nvidia-smi` shows it), choose a larger GPU with "
            "CUDA_VISIBLE_DEVICES, or set devices.kind=logical to use the CPU"
            if device.type == "cuda"
            else "end what else uses the machine's memory, or use a machine with more",
        ) from None


def wants_cuda(config: TrainConfig) -> bool:
    """Whether stages run on GPUs. Raises DeviceError when they must and there are none."""
    present = torch.cuda.is_available()
    if config.devices.kind == "cuda" and not present:
        built = torch.version.cuda
        raise DeviceError(
            "no GPU: this machine shows no CUDA device to torch",
            where="devices.kind",
            found="torch built without CUDA" if built is None else f"torch built for CUDA {built}, 0 GPUs",
            expected=f"{config.device_count} GPUs for split {config.split}",
            remedy="check `nvidia-smi`, the driver and CUDA_VISIBLE_DEVICES, or set devices.kind=logical",
        )
    return present and config.devices.kind != "logical"


def _cuda_devices(config: TrainConfig) -> list[CudaDevice]:
    visible, needed = torch.cuda.device_count(), config.device_count
    if needed > visible:
        raise DeviceError(
            f"split {config.split} needs {needed} GPUs and {visible} are visible",
            where="pipeline.split",
            found=f"{visible} visible GPUs",
            expected=f"{needed} GPUs" + ", one for each target and each drafter" * (not config.devices.gpus),
            remedy=f"choose a smaller split, let roles share GPUs (devices.gpus={max(visible, 1)}), check "
            "CUDA_VISIBLE_DEVICES, or set devices.kind=logical",
        )
    avoid_attention_plans(torch.device("cuda"))
    return [CudaDevice(index) for index in range(needed)]
