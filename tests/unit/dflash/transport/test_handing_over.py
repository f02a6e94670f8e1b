"""Where target and drafter share a device nothing is copied; the drafter is ordered behind the forward."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.events import silent
from dflash.contract.sections import DevicesConfig
from dflash.devices import DeviceSet, LogicalDevice
from dflash.links import CopyMoment
from dflash.transport.carrier import LogicalCarrier
from dflash.transport.paths import PeerPath, Shipment

shared, other = LogicalDevice(0), LogicalDevice(1)
devices = DeviceSet((shared,), (shared, other))


class WatchedCarrier:
    """Tells what is asked of it. Copies at once."""

    def __init__(self) -> None:
        self.handed: list[tuple[torch.Tensor, object, object]] = []
        self.copied: list[tuple[str, str, object]] = []

    def hand_over(self, taps: torch.Tensor, ready: object, device: object) -> None:
        self.handed.append((taps, ready, device))

    def copy(self, source: torch.Tensor, edge: Any, *, after: object = None) -> torch.Tensor:
        self.copied.append((edge.src.name, edge.dst.name, after))
        return source.clone()


def make_item(home: int, ready: Any = None) -> HiddenStates:
    batch = SimpleNamespace(id=1, tokens=2, window=SimpleNamespace(step=0))
    item = HiddenStates(batch=batch, taps=torch.ones(2, 3), home=home, ready=ready)  # type: ignore[arg-type]
    item.slot = Shipment(2)
    return item


@pytest.mark.parametrize("given", [True, False])
def test_the_drafter_is_ordered_behind_the_moment_of_the_states(given: bool) -> None:
    carrier, ready = WatchedCarrier(), CopyMoment() if given else None
    path, item = PeerPath(carrier, devices), make_item(0, ready)  # type: ignore[arg-type]
    memory = item.taps.data_ptr()
    path.load(item, 0, silent)
    path.unload(item, 0, silent)
    [(taps, moment, device)] = carrier.handed
    assert moment is (ready if given else shared.record())
    assert device is shared
    assert taps is item.taps
    assert taps.data_ptr() == memory
    assert carrier.copied == []


def test_another_device_gets_a_copy_behind_the_same_moment() -> None:
    carrier, ready = WatchedCarrier(), CopyMoment()
    path, item = PeerPath(carrier, devices), make_item(0, ready)  # type: ignore[arg-type]
    path.load(item, 0, silent)
    path.unload(item, 1, silent)
    assert carrier.copied == [("logical:0", "logical:1", ready)]
    assert carrier.handed == []


def test_on_a_logical_device_the_thread_waits_for_the_states() -> None:
    carrier, ready = LogicalCarrier(DevicesConfig(), silent), CopyMoment()
    thread = threading.Thread(target=carrier.hand_over, args=(torch.ones(1), ready, shared), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    ready.finish()
    thread.join(30)
    assert not thread.is_alive()


def test_what_failed_to_be_made_is_raised_where_it_is_taken() -> None:
    carrier, ready = LogicalCarrier(DevicesConfig(), silent), CopyMoment()
    ready.finish(ValueError("no states"))
    with pytest.raises(ValueError, match="no states"):
        carrier.hand_over(torch.ones(1), ready, shared)
