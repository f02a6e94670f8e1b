"""open_devices: which stage gets which device, and what is said when there are too few."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import dflash.devices
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DeviceError, DFlashError
from dflash.contract.events import Probe, event_schema, silent
from dflash.contract.sections import DevicesConfig, PipelineConfig
from dflash.devices import avoid_attention_plans, fitting, open_devices


def config(kind: str, split: str, gpus: int = 0) -> TrainConfig:
    return TrainConfig(devices=DevicesConfig(kind=kind, gpus=gpus), pipeline=PipelineConfig(split=split))


@dataclass(frozen=True)
class FakeGpu:
    """Stands for CudaDevice on a machine without GPUs."""

    index: int
    emulated: bool = False

    @property
    def name(self) -> str:
        return f"cuda:{self.index}"

    def facts(self) -> dict:
        return {"uuid": f"GPU-{self.index}"}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Pretend that this many GPUs are visible."""

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(dflash.devices, "CudaDevice", FakeGpu)

    return pretend


def names(devices) -> tuple[list[str], list[str]]:
    return [d.name for d in devices.targets], [d.name for d in devices.drafters]


def test_targets_come_first_then_drafters() -> None:
    devices = open_devices(config("logical", "3-2"))
    assert names(devices) == (["logical:0", "logical:1", "logical:2"], ["logical:3", "logical:4"])
    assert devices.emulated


def test_auto_takes_gpus_where_there_are_some(gpus) -> None:
    gpus(4)
    devices = open_devices(config("auto", "3-1"))
    assert names(devices) == (["cuda:0", "cuda:1", "cuda:2"], ["cuda:3"])
    assert not devices.emulated
    assert open_devices(config("logical", "3-1")).emulated
    gpus(0)
    assert open_devices(config("auto", "3-1")).emulated


def test_cuda_without_a_gpu_is_refused_with_a_remedy(gpus) -> None:
    gpus(0)
    with pytest.raises(DeviceError, match="no GPU") as caught:
        open_devices(config("cuda", "1-1"))
    assert caught.value.exit_code == 2
    assert "devices.kind=logical" in caught.value.remedy


def test_too_few_gpus_are_refused_with_both_numbers(gpus) -> None:
    gpus(2)
    with pytest.raises(DeviceError, match=r"split 3-1 needs 4 GPUs and 2 are visible"):
        open_devices(config("auto", "3-1"))


@pytest.mark.parametrize("kind", ["cuda", "logical"])
def test_roles_wrap_round_the_devices_they_may_spread_over(gpus, kind: str) -> None:
    gpus(4)
    devices = open_devices(config(kind, "3-2", gpus=2))
    assert names(devices) == ([f"{kind}:{i}" for i in (0, 1, 0)], [f"{kind}:{i}" for i in (1, 0)])
    assert devices.targets[0] is devices.targets[2] is devices.drafters[1]
    assert names(open_devices(config(kind, "1-1", gpus=1))) == ([f"{kind}:0"], [f"{kind}:0"])
    assert len(set(open_devices(config(kind, "1-1", gpus=4)).all)) == 2  # no more than there are roles


def test_in_an_even_split_target_and_drafter_of_a_number_share_a_gpu(gpus) -> None:
    gpus(2)
    devices = open_devices(config("cuda", "2-2", gpus=2))
    assert [t is d for t, d in zip(devices.targets, devices.drafters, strict=True)] == [True, True]


def test_a_colocated_split_has_a_target_and_a_drafter_on_each_device(gpus) -> None:
    gpus(2)
    devices = open_devices(config("cuda", "colocated-2"))
    assert names(devices) == (["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"])
    assert [t is d for t, d in zip(devices.targets, devices.drafters, strict=True)] == [True, True]
    with pytest.raises(DeviceError, match="split colocated-3 needs 3 GPUs"):
        open_devices(config("cuda", "colocated-3"))
    assert names(open_devices(config("cuda", "colocated-3", gpus=2)))[1] == ["cuda:0", "cuda:1", "cuda:0"]


def test_sharing_is_offered_where_gpus_are_too_few(gpus) -> None:
    gpus(1)
    with pytest.raises(DeviceError, match=r"split 1-1 needs 2 GPUs and 1 are visible") as caught:
        open_devices(config("cuda", "1-1"))
    assert "devices.gpus=1" in caught.value.remedy
    with pytest.raises(DeviceError, match=r"needs 2 GPUs and 1 are visible"):
        open_devices(config("cuda", "2-2", gpus=2))


def test_the_description_counts_stages_of_each_role(gpus) -> None:
    gpus(3)
    described = open_devices(config("auto", "2-1")).describe()
    assert [(d["name"], d["role"], d["index"], d["uuid"]) for d in described] == [
        ("cuda:0", "target", 0, "GPU-0"),
        ("cuda:1", "target", 1, "GPU-1"),
        ("cuda:2", "drafter", 0, "GPU-2"),
    ]


def test_unknown_facts_of_a_logical_device_are_null() -> None:
    (target, _) = open_devices(config("logical", "1-1")).describe()
    assert {target[key] for key in ("uuid", "pci", "memory_bytes", "model")} == {None}


def test_work_on_a_logical_device_is_done_when_the_call_returns() -> None:
    device = open_devices(config("logical", "1-1")).targets[0]
    device.bind_thread()
    moment = device.record()
    assert moment.done()
    moment.wait()
    moment.order_stream()
    assert device.start_timing() is None


class AskedLock:
    """A lock that tells when somebody was refused: a thread that was started may not have come so far."""

    def __init__(self) -> None:
        self._lock, self.refused = threading.Lock(), threading.Event()
        self.release = self._lock.release

    def acquire(self, *, blocking: bool = True) -> bool:
        taken = self._lock.acquire(blocking)
        if not taken:
            self.refused.set()
        return taken


def test_a_logical_device_computes_one_thing_at_a_time_and_says_who_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, other = open_devices(config("logical", "1-1")).all
    turn = AskedLock()
    monkeypatch.setattr(device, "_turn", turn)
    log: list[tuple] = []
    probe = Probe(SimpleNamespace(append=log.append), "drafter")
    inside, let_go = threading.Event(), threading.Event()

    def compute() -> None:
        with device.computing(silent):
            inside.set()
            let_go.wait(30)

    first = threading.Thread(target=compute, daemon=True)
    first.start()
    inside.wait(30)
    with other.computing(probe):
        assert log == []  # another device
    second = threading.Thread(target=lambda: device.computing(probe, batch=3).__enter__(), daemon=True)
    second.start()
    assert turn.refused.wait(30)
    assert second.is_alive()
    let_go.set()
    second.join(30)
    assert not second.is_alive()
    names = event_schema.names
    assert [(row[names.index("name")], row[names.index("batch")]) for row in log] == [("device_wait", 3)]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_attention_that_plans_for_every_shape_is_off_on_gpus(device: str) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        avoid_attention_plans(torch.device(device))
        assert torch.backends.cuda.cudnn_sdp_enabled() == (device == "cpu")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
        RuntimeError("CUDA error: out of memory"),
        MemoryError(),
    ],
)
def test_what_does_not_fit_into_memory_is_told_in_words(error: Exception) -> None:
    told = "the target does not fit into this device's memory"
    with pytest.raises(DFlashError, match=told) as caught, fitting(torch.device("cuda", 0)):
        raise error
    assert (caught.value.where, caught.value.exit_code) == ("cuda:0", 1)
    assert caught.value.found == (str(error).splitlines() or ["MemoryError"])[0]
    assert "devices.kind=logical" in str(caught.value.remedy)


def test_other_errors_of_loading_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), fitting(torch.device("cpu")):
        raise RuntimeError("shapes differ")
