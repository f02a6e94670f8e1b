"""What weighs on a drafter, from the sending of an item until it is done."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from dflash.batch import HiddenStates
from dflash.contract.events import silent
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.devices import DeviceSet, LogicalDevice
from dflash.transport import Transport, open_transport


def send(transport: Transport, batch_id: int, tokens: int) -> int:
    """Where it went."""
    batch = SimpleNamespace(id=batch_id, tokens=tokens, window=SimpleNamespace(step=0))
    item = HiddenStates(batch=batch, taps=torch.zeros(tokens, 2))  # type: ignore[arg-type]
    transport.send(item, 0, silent)
    return item.home


def test_what_a_drafter_has_taken_weighs_until_it_is_done() -> None:
    devices = DeviceSet((LogicalDevice(0),), (LogicalDevice(1), LogicalDevice(2)))
    choice = TransportChoice("per_drafter", "peer", "least_depth", 8)
    transport = open_transport(choice, devices, DevicesConfig(), silent)
    assert send(transport, 0, 100) == 0
    assert send(transport, 1, 60) == 1
    taken = transport.recv(0, silent)
    assert send(transport, 2, 10) == 1, "100 against 60"
    transport.done(taken)
    assert send(transport, 3, 10) == 0, "0 against 70"
    transport.close()
