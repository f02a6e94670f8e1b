"""How bytes get from one place to another, whatever the path wants them for: the two kinds of Carrier.

Paths speak of edges and moments only; a carrier does the copying. This one serves logical devices through
paced links, `dflash/transport/cuda_carrier.py` serves GPUs. Knows nothing of queues or dispatch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dflash.contract.events import Probe
from dflash.contract.sections import DevicesConfig
from dflash.devices import Device, Moment
from dflash.links import Link

Fields = dict[str, Any]  # columns of an event


@dataclass(frozen=True, slots=True)
class Edge:
    """One direction of a copy. None is host memory; at least one end is a device."""

    src: Device | None
    dst: Device | None
    path: str

    @property
    def device(self) -> Device:
        """The one whose streams carry the copy: the source where both ends are devices."""
        device = self.src or self.dst
        assert device is not None
        return device

    def fields(self) -> Fields:
        """The edge as event columns."""
        src, dst = (end.name if end else "host" for end in (self.src, self.dst))
        return {"src": src, "dst": dst, "path": self.path}


class Carrier(Protocol):
    """Copies between devices and host memory. Results are plain tensors, whatever mode the caller is in."""

    def copy(self, source: Tensor, edge: Edge, *, after: Moment | None = None) -> Tensor:
        """A copy at `edge.dst`, made while the caller waits, behind the caller's own work and `after`."""

    def start(
        self, source: Tensor, edge: Edge, *, into: Tensor | None, after: Moment | None, fields: Fields
    ) -> tuple[Tensor, Moment]:
        """Begin a copy (into `into`, or fresh memory at `edge.dst`); the moment is its end.

        It starts after `after`, or behind what the caller has enqueued on `edge.src`. The source stays intact
        until the end. Emits a `copy` span of stage `link`, with `fields`.
        """

    def receive(self, taps: Tensor, ready: Moment, device: Device, probe: Probe, fields: Fields) -> None:
        """Let the caller, a thread of `device`, use what `start` made; waiting is a `copy_wait` span."""

    def hand_over(self, taps: Tensor, ready: Moment, device: Device) -> None:
        """Let the caller, a thread of `device`, use what another thread of that device made: no copy."""

    def new_slab(self, slab_bytes: int, near: Device | None = None) -> Tensor:
        """A flat uint8 buffer in host memory for asynchronous copies, of exactly that size; near a device."""

    def settle(self, *, wait: bool = False) -> None:
        """Emit spans of device work that has ended; `wait`: of all that was started."""

    def close(self) -> None:
        """Finish what was started and end the threads."""

    def abort(self, error: BaseException) -> None:
        """Wake everybody who waits for a copy, with the first cause."""


def wait_measured(moment: Moment, span: str, probe: Probe, fields: Fields) -> None:
    """Wait for `moment`, as a span if it is not there yet. Raises what made its work fail."""
    if moment.done():
        moment.wait()
        return
    with probe.span(span, **fields):
        moment.wait()


def allocate_like(source: Tensor, device: torch.device) -> Tensor:
    """Uninitialised memory for a copy of `source`.

    Never an inference tensor: autograd would refuse it in the drafter.
    """
    with torch.inference_mode(False):
        return torch.empty(source.shape, dtype=source.dtype, device=device)


class LogicalCarrier:
    """Copies on paced links, one for each edge; the asynchronous ones run on the links' own threads."""

    def __init__(self, config: DevicesConfig, probe: Probe) -> None:
        self._config, self._probe = config, probe
        self._lock = threading.Lock()
        self._links: dict[Edge, Link] = {}
        self._error: BaseException | None = None

    def copy(self, source: Tensor, edge: Edge, *, after: Moment | None = None) -> Tensor:
        """See Carrier."""
        if after is not None:
            after.wait()
        out = allocate_like(source, source.device)
        self._link(edge).copy(lambda: out.copy_(source), source.nbytes)
        return out

    def start(
        self, source: Tensor, edge: Edge, *, into: Tensor | None, after: Moment | None, fields: Fields
    ) -> tuple[Tensor, Moment]:
        """See Carrier."""
        out = allocate_like(source, source.device) if into is None else into
        probe = self._probe.bind("link", edge.device.index, edge.device.name)
        columns = {**edge.fields(), **fields}
        moment = self._link(edge).submit(
            lambda: out.copy_(source),
            source.nbytes,
            ended=lambda start_ns, end_ns: probe.emit_span("copy", start_ns, end_ns, **columns),
            after=after,
        )
        return out, moment

    def receive(self, taps: Tensor, ready: Moment, device: Device, probe: Probe, fields: Fields) -> None:  # noqa: ARG002
        """See Carrier. The calling thread is the device, so it waits."""
        wait_measured(ready, "copy_wait", probe, fields)

    def hand_over(self, taps: Tensor, ready: Moment, device: Device) -> None:  # noqa: ARG002
        """See Carrier."""
        ready.wait()

    def new_slab(self, slab_bytes: int, near: Device | None = None) -> Tensor:  # noqa: ARG002 - all alike
        """See Carrier."""
        with torch.inference_mode(False):
            return torch.empty(slab_bytes, dtype=torch.uint8)

    def settle(self, *, wait: bool = False) -> None:
        """Nothing to do: links emit when a copy ends."""

    def close(self) -> None:
        """See Carrier."""
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close()

    def abort(self, error: BaseException) -> None:
        """See Carrier."""
        with self._lock:
            self._error = self._error or error
            links = list(self._links.values())
        for link in links:
            link.abort(error)

    def _link(self, edge: Edge) -> Link:
        with self._lock:
            if self._error is not None:
                raise self._error
            if edge not in self._links:
                config, name = self._config, "{src}>{dst}:{path}".format(**edge.fields())
                speed = config.declared_speeds[edge.path]
                self._links[edge] = Link(name, gigabytes_per_s=speed, latency_us=config.link_latency_us)
            return self._links[edge]
