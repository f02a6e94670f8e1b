"""Several roles on one GPU: states are handed over, not copied, and a run gives the update of any other."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.events import Probe, event_schema, silent
from dflash.contract.sections import DevicesConfig, PipelineConfig
from dflash.devices import open_devices
from dflash.trainer import TrainResult, prepare
from dflash.transport import open_transport
from tests.small_training import on_gpus

pytestmark = pytest.mark.gpu
words = 1 << 21
millisecond = 2_000_000  # cycles, about
small = ("devices.gpus=1", *on_gpus)


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


def item_of(batch_id: int, taps: torch.Tensor) -> HiddenStates:
    """An item whose batch knows no more than a transport asks for."""
    batch = SimpleNamespace(id=batch_id, tokens=taps.shape[0], window=SimpleNamespace(step=0))
    return HiddenStates(batch=batch, taps=taps)


def test_a_state_handed_over_is_read_only_when_its_forward_has_ended() -> None:
    config = TrainConfig(devices=DevicesConfig(kind="cuda", gpus=1), pipeline=PipelineConfig(split="1-1"))
    devices, log = open_devices(config), ListLog()
    transport = open_transport(config.transport_choice, devices, config.devices, Probe(log, "trainer"))
    place = devices.targets[0].torch_device
    forward, backward = torch.cuda.Stream(place), torch.cuda.Stream(place)
    wrong = []
    for tag in range(1, 31):
        with torch.cuda.stream(forward):
            taps = torch.full((words // 64, 64), -1, dtype=torch.int32, device=place)
            torch.cuda._sleep(millisecond)
            taps.fill_(tag)
            transport.send(item_of(tag, taps), 0, Probe(log, "target"))
            address = taps.data_ptr()
            del taps
        with torch.cuda.stream(backward):
            item = transport.recv(0, Probe(log, "drafter"))
            assert item.taps.data_ptr() == address
            wrong.append((item.taps != tag).sum())
            transport.done(item)
            del item
    torch.cuda.synchronize(place)
    assert sum(int(count) for count in wrong) == 0
    assert [row for row in log.rows if row["name"] in ("copy", "copy_wait")] == []
    transport.close()


def test_memory_handed_over_is_not_reused_while_the_drafter_still_reads() -> None:
    config = TrainConfig(devices=DevicesConfig(kind="cuda", gpus=1), pipeline=PipelineConfig(split="1-1"))
    devices = open_devices(config)
    transport = open_transport(config.transport_choice, devices, config.devices, silent)
    place = devices.targets[0].torch_device
    forward, backward = torch.cuda.Stream(place), torch.cuda.Stream(place)
    wrong = []
    for tag in range(1, 31):
        with torch.cuda.stream(forward):
            taps = torch.full((words // 64, 64), tag, dtype=torch.int32, device=place)
            transport.send(item_of(tag, taps), 0, silent)
            del taps
        with torch.cuda.stream(backward):
            item = transport.recv(0, silent)
            torch.cuda._sleep(millisecond)
            wrong.append((item.taps != tag).sum())
            transport.done(item)
            del item  # the last one that holds the memory, while the device has not read it yet
        with torch.cuda.stream(forward):  # takes the same block, if it is free
            poison = [torch.full((words // 64, 64), -tag, dtype=torch.int32, device=place) for _ in range(3)]
            del poison
    torch.cuda.synchronize(place)
    assert sum(int(count) for count in wrong) == 0
    transport.close()


def train(*changes: str) -> TrainResult:
    return prepare(load_config(None, (*small, *changes))).run()


@pytest.mark.parametrize(
    "changes",
    [
        ("split=2-1",),
        ("split=1-2",),
        ("split=2-2",),
        ("split=colocated-1",),
        ("pipeline.schedule=lockstep",),
        ("split=colocated-1", "pipeline.schedule=lockstep"),
        ("transport=auto",),
        ("transport=pinned",),
        ("transport.trim=true",),
    ],
    ids=" ".join,
)
def test_roles_on_one_gpu_give_the_update_of_a_pair(changes: tuple[str, ...]) -> None:
    reference, result = train(), train(*changes)
    np.testing.assert_allclose(result.losses, reference.losses, rtol=1e-4)
    assert result.documents_trained == reference.documents_trained
    ours = result.weights()
    for name, tensor in reference.weights().items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-2, atol=1e-4, msg=name)
