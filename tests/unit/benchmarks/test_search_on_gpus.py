"""The search in place has configurations to try on one GPU as on two."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from autotune.machine import Gpu, Machine
from benchmarks import search_on_gpus
from benchmarks.search_on_gpus import Page
from benchmarks.tuning_case import TuningCase


@pytest.mark.parametrize(
    ("gpus", "split"), [(1, "1-1"), (1, "colocated-1"), (1, "2-1"), (2, "1-1"), (2, "colocated-2")]
)
def test_every_configuration_runs_on_the_gpus_there_are(
    gpus: int, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = tuple(Gpu("NVIDIA H200", f"GPU-{number}", 143 << 30) for number in range(gpus))
    machine = Machine(cpu="any", cpus=16, gpus=cards, host_bytes=128 << 30)
    monkeypatch.setattr(search_on_gpus, "read_machine", lambda: machine)
    choice = argparse.Namespace(tiny=False, gpus=gpus)
    page = Page(choice, tmp_path, TuningCase(tiny=False, gpus=gpus))
    space = page.space(split)
    assert space.size >= 30
    assert {space.config(values).device_count for values in space.configurations} == {gpus}
    assert page.overflow(split).device_count == gpus
