"""Measures what every visible GPU can do at best: matrix products, memory, copies. A few seconds in all.

The fastest of many short rounds counts, since a ceiling is meant: under a power cap long work runs slower.
What cannot be measured gets the reason, the rest is measured all the same. Knows nothing of runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from dflash.contract.ceilings import Ceilings, DeviceCeilings
from dflash.contract.errors import DeviceError
from dflash.contract.link_facts import LinkFacts, host
from dflash.contract.rundir import utc_now
from dflash.cuda import CudaDevice
from dflash.devices import Device
from dflash.link_ends import CudaEnds
from dflash.link_probe import LinkProbe, Way

matrix_width: Final = 8192
traffic_bytes: Final = 1 << 30  # of a copy within a GPU: read, and written
link_bytes: Final = 64_000_000
each_s: Final = 0.4  # for products and for memory, on each GPU
round_s: Final = 0.01

Stopwatch = Callable[[Callable[[], object], int], float]  # seconds that so many calls take on a device


def measure_ceilings() -> Ceilings:
    """Of all visible GPUs, one after the other. Raises DeviceError where there is none."""
    devices = [CudaDevice(index) for index in range(torch.cuda.device_count())]
    if not devices:
        raise DeviceError(
            "there is no GPU to measure", where="dflash-profile ceilings", found="torch sees no GPU"
        )
    found = [_measure_device(device) for device in devices]
    links = LinkProbe(CudaEnds(devices, link_bytes), link_bytes).measure_only(_ways(devices))
    return Ceilings(
        measured_utc=utc_now(),
        torch=str(torch.__version__),
        devices=tuple(_describe(device, *rates, links) for device, rates in zip(devices, found, strict=True)),
    )


def _ways(devices: Sequence[Device]) -> Iterator[Way]:
    """To and from the host for each GPU, and to its neighbour."""
    for number, device in enumerate(devices):
        yield device.name, host, "pinned"
        yield host, device.name, "pinned"
        other = devices[(number + 1) % len(devices)]
        if other is not device:
            yield device.name, other.name, "peer"


def _measure_device(device: CudaDevice) -> tuple[float | None, float | None, str | None]:
    """Operations and bytes a second, and why one is unknown."""
    stopwatch = _event_stopwatch(device)
    rates: list[float | None] = []
    reason = None
    for measure in (multiply_rate, memory_rate):
        try:
            rates.append(measure(device.torch_device, stopwatch))
        except RuntimeError as error:
            rates.append(None)
            reason = str(error).strip().partition("\n")[0]
        torch.cuda.empty_cache()
    return rates[0], rates[1], reason


def multiply_rate(place: torch.device, stopwatch: Stopwatch, width: int = matrix_width) -> float:
    """Operations a second of bfloat16 products, `width` × `width` both."""
    left, right, out = (torch.empty(width, width, dtype=torch.bfloat16, device=place) for _ in range(3))
    left.normal_()
    right.normal_()
    return 2.0 * width**3 / fastest(lambda: torch.mm(left, right, out=out), stopwatch)


def memory_rate(place: torch.device, stopwatch: Stopwatch, copy_bytes: int = traffic_bytes) -> float:
    """Bytes a second that a copy within the device reads and writes."""
    source, destination = (torch.zeros(copy_bytes, dtype=torch.uint8, device=place) for _ in range(2))
    return 2.0 * copy_bytes / fastest(lambda: destination.copy_(source), stopwatch)


def fastest(
    work: Callable[[], object], stopwatch: Stopwatch, clock_s: Callable[[], float] = time.monotonic
) -> float:
    """Seconds of one call in the fastest round, for `each_s`; the first calls do not count."""
    stopwatch(work, 1)
    once_s = stopwatch(work, 1)
    calls = max(round(round_s / once_s), 1) if once_s > 0 else 100
    began_s, best_s = clock_s(), stopwatch(work, calls)
    while clock_s() - began_s < each_s:
        best_s = min(best_s, stopwatch(work, calls))
    return best_s / calls


def _event_stopwatch(device: CudaDevice) -> Stopwatch:
    def seconds(work: Callable[[], object], calls: int) -> float:
        with device.active():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(calls):
                work()
            stop.record()
            stop.synchronize()
            return float(start.elapsed_time(stop)) / 1e3

    return seconds


def _describe(
    device: Device, multiply: float | None, memory: float | None, reason: str | None, links: LinkFacts
) -> DeviceCeilings:
    facts = device.facts()
    down, up = links.edge(device.name, host, "pinned"), links.edge(host, device.name, "pinned")
    peers = [edge.gb_per_s for edge in links.edges if edge.path == "peer" and edge.src == device.name]
    reasons = [reason, *(edge.reason for edge in (down, up) if edge is not None)]
    return DeviceCeilings(
        model=facts["model"],
        uuid=facts["uuid"],
        matmul_tflops=None if multiply is None else multiply / 1e12,
        memory_gb_per_s=None if memory is None else memory / 1e9,
        down_gb_per_s=None if down is None else down.gb_per_s,
        up_gb_per_s=None if up is None else up.gb_per_s,
        peer_gb_per_s=max((speed for speed in peers if speed), default=None),
        source=f"measured {utc_now()}",
        reason="; ".join(dict.fromkeys(text for text in reasons if text)) or None,
    )
