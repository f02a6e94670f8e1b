"""What the edge check does with pairs that copy well, badly, or not at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dflash.contract.config import load_config
from dflash.contract.errors import DeviceError
from dflash.devices import DeviceSet, open_devices
from dflash.edge_check import check_edges

gpus = [SimpleNamespace(torch_device=torch.device("cuda", i), emulated=False) for i in range(3)]
three_gpus = DeviceSet(tuple(gpus[:2]), tuple(gpus[2:]))  # type: ignore[arg-type]


def test_every_pair_is_copied_both_ways() -> None:
    seen: list[tuple[int, int]] = []

    def crossing(pattern: Tensor, source: torch.device, destination: torch.device) -> Tensor:
        seen.append((source.index, destination.index))
        return pattern.clone()

    check_edges(three_gpus, crossing)
    assert sorted(seen) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_a_corrupting_pair_is_named_with_the_damage() -> None:
    def crossing(pattern: Tensor, source: torch.device, destination: torch.device) -> Tensor:
        arrived = pattern.clone()
        if (source.index, destination.index) == (2, 0):
            arrived[7:10] = -1
        return arrived

    with pytest.raises(DeviceError, match="corrupted") as caught:
        check_edges(three_gpus, crossing)
    assert caught.value.where == "cuda:2 to cuda:0"
    assert caught.value.found == "3 of 1048576 words wrong"


def test_logical_devices_have_no_edges_to_check() -> None:
    def crossing(*_: object) -> Tensor:
        raise AssertionError("nothing to cross")

    check_edges(open_devices(load_config(None)), crossing)
