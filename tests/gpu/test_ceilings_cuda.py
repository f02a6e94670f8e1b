"""Ceilings of real GPUs: all measured, in the range that such cards can have."""

from __future__ import annotations

import pytest
import torch

from dflash.ceiling_probe import measure_ceilings

pytestmark = pytest.mark.gpu


def test_every_gpu_is_measured_whole() -> None:
    found = measure_ceilings()
    assert len(found.devices) == torch.cuda.device_count()
    for device in found.devices:
        assert device.reason is None
        assert device.uuid
        assert device.matmul_tflops
        assert 10 < device.matmul_tflops < 10_000
        assert device.memory_gb_per_s
        assert 100 < device.memory_gb_per_s < 20_000
        assert device.down_gb_per_s
        assert device.up_gb_per_s
        assert (device.peer_gb_per_s is None) == (len(found.devices) == 1)
