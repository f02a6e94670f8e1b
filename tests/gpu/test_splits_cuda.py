"""Training over the GPUs there are gives the update of one pair on one GPU; no other GPU is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.split import Split
from dflash.trainer import TrainResult, prepare
from tests.small_training import on_gpus

pytestmark = pytest.mark.gpu


def train(split: str, *changes: str, most_gpus: int) -> TrainResult:
    gpus = min(torch.cuda.device_count(), Split.parse(split).devices, most_gpus)
    return prepare(load_config(None, (*on_gpus, f"split={split}", f"devices.gpus={gpus}", *changes))).run()


@pytest.fixture(scope="module")
def reference() -> TrainResult:
    return train("1-1", most_gpus=1)


@pytest.mark.parametrize("preset", ["host", "shared", "pinned", "peer", "auto"])
@pytest.mark.parametrize("split", ["1-1", "1-2", "2-2"])
def test_any_split_and_transport_gives_the_update_of_one_pair(
    split: str, preset: str, reference: TrainResult
) -> None:
    """C042, C110: what drafters on other devices add up to is what one comes to."""
    result = train(split, f"transport={preset}", most_gpus=8)
    assert result.documents_trained == reference.documents_trained
    assert result.tokens_trained == reference.tokens_trained
    np.testing.assert_allclose(result.losses, reference.losses, rtol=1e-4)


program = """
import threading, torch
from dflash.contract.config import DevicesConfig, TransportChoice
from dflash.contract.events import silent
from dflash.cuda import CudaDevice
from dflash.devices import DeviceSet
from dflash.transport import open_transport
from tests.stream_rig import full, item_of
for path in ("peer", "pinned", "pageable"):
    devices = DeviceSet((CudaDevice(1),), (CudaDevice(1),))
    choice = TransportChoice("per_drafter", path, "least_depth", 2)
    transport = open_transport(choice, devices, DevicesConfig(), silent)
    errors = []
    def target():
        devices.targets[0].bind_thread()
        for tag in range(5):
            transport.send(item_of(tag, full(tag, torch.device("cuda"))), 0, silent)
        transport.close()
    def drafter():
        devices.drafters[0].bind_thread()
        for tag in range(5):
            item = transport.recv(0, silent)
            errors.append(int((item.taps != tag).sum()))
            transport.done(item)
    threads = [threading.Thread(target=work) for work in (target, drafter)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == [0] * 5, (path, errors)
print([torch._C._cuda_hasPrimaryContext(index) for index in range(2)])
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_work_on_the_second_gpu_leaves_no_context_on_the_first() -> None:
    """C114."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "[False, True]"), run.stderr[-2000:]
