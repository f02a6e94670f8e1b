"""Transport = queue × path × dispatch: each item reaches exactly one drafter, resident and ordered.

Dispatch chooses the home when an item is sent, the path brings its bytes there, the queue holds its handle.
What is queued in each channel is bounded by `depth`; beyond that each sender and each receiver has at most
the items in hand. Knows nothing of what targets and drafters compute.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from dflash.batch import HiddenStates
from dflash.channel import ChannelClosed
from dflash.contract.events import Probe
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.devices import DeviceSet
from dflash.transport.carrier import Carrier, LogicalCarrier
from dflash.transport.cuda_carrier import CudaCarrier
from dflash.transport.dispatch import Dispatch, dispatches
from dflash.transport.paths import Path, Shipment, facts, open_path, shipment_of
from dflash.transport.queues import Queues


class Transport:
    """The way from every target to every drafter. Made by `open_transport`."""

    def __init__(
        self, dispatch: Dispatch, path: Path, queues: Queues, carrier: Carrier, devices: DeviceSet
    ) -> None:
        self._places = devices.drafters
        self._dispatch, self._path, self._queues, self._carrier = dispatch, path, queues, carrier
        self._lock = threading.Lock()
        self._senders = len(devices.targets)

    def send(self, item: HiddenStates, target: int, probe: Probe) -> None:
        """Send `item` from the thread of `target`; waits for a send buffer and for room in the queue.

        Takes over `item.taps`: the sender does not write to that memory again. The copy starts after
        `item.ready` if that is set, else behind all that the calling thread has enqueued on its device.
        Raises the abort cause.
        """
        tokens = item.batch.tokens
        item.home = self._dispatch.reserve(tokens, target)
        item.slot = Shipment(tokens)
        channel = self._queues.of(item.home)
        probe.mark("dispatch", **facts(item), channel=channel.name, value=float(item.home))
        self._path.load(item, target, probe)
        channel.put(item, probe)

    def recv(self, drafter: int, probe: Probe) -> HiddenStates:
        """The next item for `drafter`, on its thread: resident on its device, ordered on its current stream.

        Raises ChannelClosed when every target has closed and nothing is left, or the abort cause.
        """
        channel = self._queues.of(drafter)
        try:
            item = channel.get(probe)
        except ChannelClosed:
            self._carrier.settle(wait=True)
            raise
        away = shipment_of(item).resident not in (None, self._places[drafter])
        probe.mark("take", **facts(item), channel=channel.name, note="away" if away else "home")
        self._path.unload(item, drafter, probe)
        self._carrier.settle()
        return item

    def done(self, item: HiddenStates) -> None:
        """The drafter's device has finished with `item`: its tokens stop weighing. Once for each item."""
        shipment = shipment_of(item)
        if shipment.finished:
            raise RuntimeError(f"batch {item.batch.id} was already done")
        shipment.finished = True
        self._dispatch.release(item.home, shipment.tokens)

    def close(self) -> None:
        """One target is done. The last one lets readers drain, and waits for the copies under way."""
        with self._lock:
            self._senders -= 1
            last = self._senders == 0
        self._queues.close()
        if last:
            self._carrier.close()

    def abort(self, error: BaseException) -> None:
        """Wake everybody; from now on `send` and `recv` raise the first error given here."""
        self._queues.abort(error)
        self._carrier.abort(error)

    def finish(self) -> None:
        """The stages have ended, however: end the copies under way and join what copies them."""
        self._carrier.close()

    def depths(self) -> list[tuple[str, int, int]]:
        """(name, depth, capacity) of every queue now."""
        return [(c.name, c.depth(), c.capacity) for c in self._queues.channels]


def open_transport(
    choice: TransportChoice,
    devices: DeviceSet,
    config: DevicesConfig,
    probe: Probe,
    *,
    ways: Mapping[tuple[str, str], str] | None = None,
    item_bytes: int = 0,
) -> Transport:
    """The transport that `choice` describes. Threads come with the first items.

    `ways`: for path `auto`, `peer` or `pinned` by names of source and destination; a pair that is not among
    them goes through pinned host memory. `item_bytes`: the most that an item can have; host memory for it is
    pinned at once, else with the first items.
    """
    targets, drafters = len(devices.targets), len(devices.drafters)
    carrier: Carrier = LogicalCarrier(config, probe) if devices.emulated else CudaCarrier(probe)
    path = open_path(choice.path, carrier, devices, ways or {})
    if item_bytes:
        path.reserve(item_bytes)
    return Transport(
        dispatches[choice.dispatch](drafters),
        path,
        Queues(choice.queue, depth=choice.depth, targets=targets, drafters=drafters),
        carrier,
        devices,
    )
