"""Host memory on the way of the bytes: read when it was written, pinned as planned, with every allocator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from dflash.contract.events import silent
from dflash.transport.cuda_carrier import CudaCarrier
from tests.stream_rig import Rig, item_of, synchronize

pytestmark = pytest.mark.gpu
gib = 1 << 30


def random_words(item_bytes: int, place: torch.device) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, (item_bytes >> 12, 1 << 10), device=place, dtype=torch.int32)


def send_under_load(rig: Rig, batch_id: int, item_bytes: int, load: torch.Tensor) -> torch.Tensor:
    """Send random words behind matrix products; their sum, still on the device."""
    with rig.on_target() as place:
        torch.mm(load, load)
        words = random_words(item_bytes, place)
        total = words.sum(dtype=torch.int64)
        rig.transport.send(item_of(batch_id, words), 0, silent)
    return total


def receive_sum(rig: Rig) -> torch.Tensor:
    with rig.on_drafter():
        item = rig.transport.recv(0, silent)
        total = item.taps.sum(dtype=torch.int64)
        rig.transport.done(item)
    return total


def test_two_hundred_gigabytes_pass_through_slabs_unchanged() -> None:
    """C039: 200 batches of 1 GiB, the GPU busy; checksums before, after, and now and then in the slab."""
    rig = Rig("pinned")
    load = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    sums = []
    for batch_id in range(200):
        sent = send_under_load(rig, batch_id, gib, load)
        if batch_id % 40 == 0:
            [item] = rig.transport._queues.of(0)._items
            item.ready.wait()
            [slab] = [b.slab for b in rig.transport._path._rings[0] if b.copied is item.ready]
            assert int(slab.view(torch.int32).sum(dtype=torch.int64)) == int(sent)
        sums.append((sent, receive_sum(rig)))
    synchronize(rig.devices)  # the sums are on the stages' streams
    assert [n for n, (sent, received) in enumerate(sums) if int(sent) != int(received)] == []
    assert rig.mismatches() == 0


def test_pageable_states_are_whole_when_they_can_be_taken() -> None:
    """C039 on the blocking path: what stands in the queue needs no further wait."""
    rig = Rig("pageable")
    load = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for batch_id in range(12):
        sent = send_under_load(rig, batch_id, gib // 8, load)
        [item] = rig.transport._queues.of(0)._items
        assert item.taps.device.type == "cpu"
        assert int(item.taps.sum(dtype=torch.int64)) == int(sent)
        received = receive_sum(rig)
        synchronize(rig.devices)
        assert int(received) == int(sent)
    assert rig.mismatches() == 0


@pytest.mark.parametrize("wanted_gib", [0.61, 2.5, 3.1])
def test_a_slab_takes_the_memory_that_was_planned_and_gives_it_back(wanted_gib: float) -> None:
    """C045: 2.25 GiB asked are not 4 GiB taken."""
    wanted_bytes, process = int(wanted_gib * gib), psutil.Process()
    CudaCarrier(silent).new_slab(1 << 20)  # whatever the first one costs
    before = process.memory_info().rss
    slab = CudaCarrier(silent).new_slab(wanted_bytes)
    taken = process.memory_info().rss - before
    assert slab.nbytes == wanted_bytes
    assert taken == pytest.approx(wanted_bytes, rel=0.05)
    del slab
    assert process.memory_info().rss - before < 0.05 * wanted_bytes


program = """
from dflash.contract.config import load_config
from dflash.link_probe import measure_links
from tests.stream_rig import Rig, millisecond, poison
facts = measure_links(load_config(None, ["devices.kind=cuda"]), 32_000_000)
assert facts.corrupt == (), facts.findings
for path in ("peer", "pinned"):
    rig = Rig(path)
    for tag in range(1, 101):
        rig.delay_all(millisecond // 4)
        rig.send(tag)
        with rig.on_target() as device:
            poison(device)
        rig.check(tag)
    assert rig.mismatches() == 0, path
print("right")
"""


def test_copies_are_right_under_every_allocator() -> None:
    """C038: links are measured, and states carried, with the allocator that a run would have."""
    root = Path(__file__).parents[2]
    settings = ("expandable_segments:True", "backend:cudaMallocAsync", "max_split_size_mb:64")
    runs = {}
    for setting in settings:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        runs[setting] = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    for setting, run in runs.items():
        out, err = run.communicate(timeout=120)
        assert (run.returncode, out.strip()) == (0, "right"), f"{setting}: {err[-2000:]}"
