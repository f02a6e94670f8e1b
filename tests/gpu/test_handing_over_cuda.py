"""States that stay on the device where they were made, moved whole when a drafter elsewhere takes them.

Works on one GPU and on two. Handing over itself is in `test_sharing_cuda.py`.
"""

from __future__ import annotations

import pytest
import torch

from dflash.contract.events import silent
from dflash.transport.carrier import Edge
from tests.stream_rig import (
    Rig,
    full,
    item_of,
    millisecond,
    open_apart,
    open_home_and_away,
    open_shared,
    overlapped,
    poison,
)

pytestmark = pytest.mark.gpu


def test_what_inference_mode_made_is_handed_over_whole() -> None:
    rig = Rig("peer", devices=open_shared())
    for tag in range(1, 51):
        with rig.on_target() as device, torch.inference_mode():
            taps = full(-tag, device)
            torch.cuda._sleep(millisecond)
            taps.fill_(tag)
            rig.transport.send(item_of(tag, taps), 0, silent)
            del taps
            poison(device)
        rig.check(tag)
    assert rig.mismatches() == 0


def test_what_was_handed_over_is_moved_when_it_has_been_made() -> None:
    rig = Rig("peer", devices=open_home_and_away(), queue="shared", depth=4)
    for tag in range(1, 41):
        home = (tag + 1) % 2  # round robin: handed over to drafter 0, copied to drafter 1
        with rig.on_target() as device:
            taps = full(-tag, device)
            torch.cuda._sleep(millisecond)
            taps.fill_(tag)
            rig.transport.send(item_of(tag, taps), 0, silent)
            del taps
        rig.check(tag, drafter=1 - home)
    assert rig.mismatches() == 0


@overlapped
@pytest.mark.parametrize("home", [0, 1])
def test_the_source_of_a_move_lasts_until_it_has_been_moved(path: str, home: int) -> None:
    """C041 for a move: its source goes when the drafter has the copy, and other work takes its memory."""
    devices = open_home_and_away() if path == "peer" else open_apart("1-2")
    rig = Rig(path, devices=devices, queue="shared", depth=4)
    taker, resident = 1 - home, devices.drafters[home]
    move = Edge(resident, devices.drafters[taker], "peer")
    for tag in range(1, 61):
        rig.send(tag)
        if (tag + 1) % 2 != home:  # round robin
            rig.check(tag, drafter=taker)
            continue
        rig.delay(move, millisecond)
        rig.check(tag, drafter=taker)
        if path == "peer" and home == 0:  # handed over: the block is the target's
            with rig.on_target() as device:
                poison(device)
        else:
            with rig.on_arrival(rig.edges(home)[-1]):
                poison(resident.torch_device)
    assert rig.mismatches() == 0
