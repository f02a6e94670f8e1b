"""How long the copies of a batch's states take, made as transports make them, with nothing else going on.

Into fresh host memory where a transport takes fresh memory: its page faults are most of that time, which
`dflash-profile links`, whose buffers are touched before, does not see. Knows nothing of who reads this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dflash.contract.events import silent
from dflash.contract.link_facts import LinkEdge, LinkFacts, host
from dflash.contract.rundir import utc_now
from dflash.contract.sections import DevicesConfig
from dflash.devices import Device, DeviceSet
from dflash.transport.carrier import Carrier, Edge, LogicalCarrier
from dflash.transport.cuda_carrier import CudaCarrier

rounds = 3  # after one that does not count


def measure_hops(devices: DeviceSet, config: DevicesConfig, copy_bytes: int) -> LinkFacts:
    """Between the first target and the first drafter, and between either and the host."""
    carrier: Carrier = LogicalCarrier(config, silent) if devices.emulated else CudaCarrier(silent)
    target, drafter = devices.targets[0], devices.drafters[0]
    slab = carrier.new_slab(copy_bytes, target)
    edges = []
    for path, slabs in (("pageable", False), ("pinned", True)):
        down, up = Edge(target, None, path), Edge(None, drafter, path)
        source = _bytes_on(target, copy_bytes)
        edges.append(_measure(carrier, down, source, into=slab if slabs else None))
        in_host = slab if slabs else torch.zeros(copy_bytes, dtype=torch.uint8)
        edges.append(_measure(carrier, up, in_host))
    if target is not drafter:
        edges.append(_measure(carrier, Edge(target, drafter, "peer"), _bytes_on(target, copy_bytes)))
    carrier.close()
    return LinkFacts(
        measured_utc=utc_now(),
        emulated=devices.emulated,
        torch=str(torch.__version__),
        numa_nodes=None,
        iommu=None,
        numactl=False,
        devices=(),
        edges=tuple(edges),
    )


def _bytes_on(device: Device, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8, device=device.torch_device)


def _measure(carrier: Carrier, edge: Edge, source: Tensor, into: Tensor | None = None) -> LinkEdge:
    """Copies while the caller waits, one after the other."""

    def copy() -> Any:
        if edge.path == "pageable":
            return carrier.copy(source, edge)
        made, moment = carrier.start(source, edge, into=into, after=None, fields={})
        moment.wait()
        return made

    with edge.device.active():
        edge.device.record().wait()
        _, *seconds = [_timed(copy) for _ in range(1 + rounds)]
    fields = edge.fields()
    return LinkEdge(
        src=fields["src"] or host,
        dst=fields["dst"] or host,
        path=edge.path,
        copy_bytes=source.nbytes,
        gb_per_s=source.nbytes / 1e9 / median(seconds),
    )


def _timed(call: Callable[[], object]) -> float:
    start_s = time.monotonic()
    call()
    return time.monotonic() - start_s
