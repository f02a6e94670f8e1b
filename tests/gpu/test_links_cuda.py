"""The links of real GPUs: all measured, all right. On one GPU only those to the host."""

from __future__ import annotations

import itertools

import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.link_facts import host
from dflash.crossings import CudaCrossing
from dflash.link_probe import measure_links

pytestmark = pytest.mark.gpu


def test_every_link_is_measured_and_right() -> None:
    facts = measure_links(load_config(None, ["devices.kind=cuda"]), 64_000_000)
    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    assert [device.name for device in facts.devices] == names
    assert [edge.reason for edge in facts.edges if edge.reason] == []
    assert facts.corrupt == ()
    for src, dst in itertools.permutations(names, 2):
        edge = facts.edge(src, dst, "peer")
        assert edge is not None
        assert edge.peer_access is torch.cuda.can_device_access_peer(src, dst)
        assert edge.gb_per_s
        assert edge.both_ways_gb_per_s
    for name, path in itertools.product(names, ("pinned", "pageable")):
        for way in ((name, host, path), (host, name, path)):
            edge = facts.edge(*way)
            assert edge is not None
            assert edge.gb_per_s
            assert edge.latency_us


def test_a_crossing_waits_for_its_copies_before_it_looks() -> None:
    gpu = torch.device("cuda", 0)
    source = torch.empty(8_000_000, dtype=torch.int64, pin_memory=True)
    crossing = CudaCrossing(source, torch.empty_like(source, device=gpu), seed=1)
    assert crossing.wrong_words() == len(source)
    crossing.begin(4)
    assert crossing.wrong_words() == 0
    assert crossing.end() > 0
