"""What the edge check does with pairs that copy well, badly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dflash.contract.config import load_config
from dflash.contract.errors import DeviceError
from dflash.contract.sections import TransportChoice, presets
from dflash.devices import DeviceSet, open_devices
from dflash.edge_check import check_edges

peer, pinned, host = (TransportChoice(*presets[name], depth=2) for name in ("peer", "pinned", "host"))
colocated = replace(peer, dispatch="local")


def make_gpus(targets: str, drafters: str) -> DeviceSet:
    """GPUs by number, for example "01" and "2"."""
    gpus = [
        SimpleNamespace(name=f"cuda:{i}", torch_device=torch.device("cuda", i), emulated=False)
        for i in range(8)
    ]
    roles = (tuple(gpus[int(number)] for number in numbers) for numbers in (targets, drafters))
    return DeviceSet(*roles)  # type: ignore[arg-type]


def crossed(devices: DeviceSet, choice: TransportChoice) -> list[str]:
    """The edges that are tried, each way by itself."""
    seen: list[str] = []

    def crossing(pattern: Tensor, source: torch.device, destination: torch.device) -> Tensor:
        seen.append(f"{source.index}{destination.index}")
        return pattern.clone()

    check_edges(devices, choice, crossing)
    return sorted(seen)


@pytest.mark.parametrize(
    ("targets", "drafters", "choice", "edges"),
    [
        ("01", "2", peer, ["02", "12", "20", "21"]),
        ("0", "123", peer, ["01", "02", "03", "10", "12", "13", "20", "21", "30", "31"]),
        ("01", "2", pinned, []),  # the way out where copies between GPUs are corrupted
        ("01", "2", host, []),
        ("01", "23", pinned, ["23", "32"]),  # gradients and weights
        ("0", "123", host, ["12", "13", "21", "31"]),
        ("0", "123", replace(pinned, queue="shared"), ["12", "13", "21", "23", "31", "32"]),  # moves
        ("0", "0", peer, []),
        ("01", "01", peer, ["01", "10"]),
        ("012", "012", colocated, ["01", "02", "10", "20"]),  # nothing but gradients and weights
    ],
)
def test_pairs_that_the_run_copies_between_are_tried_both_ways(
    targets: str, drafters: str, choice: TransportChoice, edges: list[str]
) -> None:
    assert crossed(make_gpus(targets, drafters), choice) == edges


def test_a_corrupting_pair_is_named_with_the_damage() -> None:
    """C032."""

    def crossing(pattern: Tensor, source: torch.device, destination: torch.device) -> Tensor:
        arrived = pattern.clone()
        if (source.index, destination.index) == (2, 0):
            arrived[7:10] = -1
        return arrived

    with pytest.raises(DeviceError, match="corrupted") as caught:
        check_edges(make_gpus("01", "2"), peer, crossing)
    assert caught.value.where == "cuda:2 to cuda:0"
    assert caught.value.found == "3 of 1048576 words wrong"


def test_logical_devices_have_no_edges_to_check() -> None:
    def crossing(*_: object) -> Tensor:
        raise AssertionError("nothing to cross")

    check_edges(open_devices(load_config(None)), peer, crossing)
