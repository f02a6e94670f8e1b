"""Which thread works on which device, and what two drafters do at once. CPU threads stand for GPUs."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.config import load_config
from dflash.contract.events import Probe
from dflash.devices import LogicalDevice, Moment
from dflash.trainer import Trainer, prepare
from dflash.window import batches
from tests.small_training import on_logical_devices

small = (*on_logical_devices, "run.checkpoint_every=1")


def make(tmp_path: Any, *changes: str) -> Trainer:
    return prepare(load_config(None, (*small, *changes)), run_path=tmp_path)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, str]]]:
    """What each thread did to which device, in order: as CUDA, a thread that binds nothing is on device 0."""
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def note(device: LogicalDevice, what: str) -> None:
        seen[threading.current_thread().name].append((what, device.name))

    def bind_thread(self: LogicalDevice) -> None:
        note(self, "bind")

    record, computing = LogicalDevice.record, LogicalDevice.computing

    def noted_record(self: LogicalDevice) -> Moment:
        note(self, "record")
        return record(self)

    def noted_computing(self: LogicalDevice, probe: Probe, **fields: object) -> AbstractContextManager[None]:
        note(self, "compute")
        return computing(self, probe, **fields)

    monkeypatch.setattr(LogicalDevice, "bind_thread", bind_thread)
    monkeypatch.setattr(LogicalDevice, "record", noted_record)
    monkeypatch.setattr(LogicalDevice, "computing", noted_computing)
    return seen


@pytest.mark.parametrize("preset", ["host", "shared", "pinned", "peer", "auto"])
def test_every_thread_works_on_its_own_device_and_helpers_on_none(
    tmp_path: Any, touched: dict[str, list[tuple[str, str]]], preset: str
) -> None:
    """C114: eight devices, each with its own thread; only a window's end is worked at the leader."""
    trainer = make(tmp_path, "split=5-3", f"transport={preset}", "window.tokens=1024")
    roles = {f"target-{i}": device.name for i, device in enumerate(trainer.devices.targets)}
    roles |= {f"drafter-{i}": device.name for i, device in enumerate(trainer.devices.drafters)}
    leader = trainer.devices.drafters[0].name
    assert len(set(roles.values())) == 8
    touched.clear()
    assert trainer.run().steps_done == 3
    main = threading.current_thread().name
    assert set(touched) <= {main, *roles}, "prefetch, links, events and checkpoints touch no device"
    for thread, own in roles.items():
        assert touched[thread][0] == ("bind", own)
        assert [what for what, _ in touched[thread]].count("bind") == 1
        places = {place for what, place in touched[thread] if what == "compute"}
        assert places <= ({own, leader} if thread.startswith("drafter") else {own})
    assert "compute" not in {what for what, _ in touched[main]}


def gradients_of(
    trainer: Trainer, work: list[list[Any]], *, at_once: bool
) -> list[list[torch.Tensor | None]]:
    """What each replica's batches come to, trained by threads at once or one replica after the other."""
    target, errors = trainer.targets[0], []

    def train(index: int) -> None:
        try:
            for batch in work[index]:
                replica = trainer.group.replicas[index]
                replica.train(HiddenStates(batch=batch, taps=states[batch.id]))
        except Exception as error:  # noqa: BLE001 - raised by the assertion below
            errors.append(error)

    states = {batch.id: target.forward(batch).clone() for batches_ in work for batch in batches_}
    threads = [threading.Thread(target=train, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join(60)
    for thread in threads:
        thread.join(60)
    assert errors == []
    return [replica.take_gradients() for replica in trainer.group.replicas]


def test_two_drafters_at_once_get_the_gradients_of_each_alone(tmp_path: Any) -> None:
    """C110: on the CPU both backward passes share autograd's threads."""
    trainer = make(tmp_path, "split=1-2")
    stream = batches(trainer.documents, trainer.config, layout=trainer.layout, start_step=0)
    made = [next(stream) for _ in range(8)]
    work = [made[0::2], made[1::2]]
    alone = gradients_of(trainer, work, at_once=False)
    for _ in range(5):
        together = gradients_of(trainer, work, at_once=True)
        for ours, theirs in zip(together, alone, strict=True):
            for gradient, reference in zip(ours, theirs, strict=True):
                assert gradient is not None
                assert reference is not None
                torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(a, b) for a, b in zip(*alone, strict=True)), "they were given different work"
