"""Ceilings come from the run, then this machine, then a table; unknown hardware is n/a with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.ceilings import Ceilings, DeviceCeilings
from dflash.contract.rundir import RunDir, create_run, write_json
from profiler.ceilings import (
    find_ceilings,
    keep_ceilings,
    known_gpus,
    machine_file,
    read_ceilings,
    visible_alike,
)
from profiler.run import Run

one = DeviceCeilings(
    model="NVIDIA X1", uuid="GPU-a", matmul_tflops=100.0, memory_gb_per_s=1000.0, down_gb_per_s=20.0,
    up_gb_per_s=21.0, peer_gb_per_s=None, source="measured 2026-01-01T00:00:00Z",
)  # fmt: skip
other = replace(one, uuid="GPU-b", matmul_tflops=120.0, peer_gb_per_s=40.0)


def file_of(*devices: DeviceCeilings) -> Ceilings:
    return Ceilings(measured_utc="2026-01-01T00:00:00Z", torch="2.11", devices=devices)


def run_on(path: Path, *models: str, emulated: bool = False, **manifest: Any) -> Run:
    run = create_run(path, command=[])
    devices = [
        {"name": f"cuda:{i}", "role": "target", "index": i, "model": model, "uuid": f"GPU-{'abcd'[i]}"}
        for i, model in enumerate(models)
    ]
    run.update(emulated=emulated, devices=devices, **manifest)
    return Run.open(path)


def test_what_was_measured_beside_the_run_comes_first_and_is_the_mean(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", "NVIDIA X1", "NVIDIA X1")
    write_json(RunDir(run.path).ceilings_path, file_of(one, other, replace(one, uuid="GPU-z")).to_json())
    machine = tmp_path / "machine.json"
    write_json(machine, file_of(replace(one, matmul_tflops=7.0)).to_json())
    each = find_ceilings(run, machine).each
    assert each is not None
    assert (each.matmul_tflops, each.memory_gb_per_s, each.peer_gb_per_s) == (110.0, 1000.0, 40.0)


def test_this_machines_file_serves_only_the_same_gpus(tmp_path: Path) -> None:
    machine = tmp_path / "machine.json"
    write_json(machine, file_of(one).to_json())
    assert find_ceilings(run_on(tmp_path / "here", "NVIDIA X1"), machine).each == one
    write_json(machine, file_of(replace(one, uuid="GPU-elsewhere")).to_json())
    found = find_ceilings(run_on(tmp_path / "there", "NVIDIA X1"), machine)
    assert found.each is None
    assert found.reason is not None
    assert "NVIDIA X1 are not known" in found.reason
    assert "dflash-profile ceilings" in found.reason


@pytest.mark.parametrize(("name", "figure"), [("NVIDIA H200", 790.0), ("NVIDIA H100 80GB HBM3", 989.0)])
def test_known_models_have_a_table_with_sources(tmp_path: Path, name: str, figure: float) -> None:
    each = find_ceilings(run_on(tmp_path / "run", name, name)).each
    assert each is not None
    assert each.matmul_tflops == figure
    assert "known of the model" in each.source
    assert all(known.model == key for key, known in known_gpus.items())


def test_a_broken_or_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    run = run_on(tmp_path / "run", "NVIDIA H200")
    for text in ("", "{", "[]", '{"schema": 1}'):
        RunDir(run.path).ceilings_path.write_text(text)
        assert find_ceilings(run).each == known_gpus["NVIDIA H200"]
    write_json(RunDir(run.path).ceilings_path, file_of(replace(one, matmul_tflops=None)).to_json())
    assert find_ceilings(run).each == known_gpus["NVIDIA H200"]


@pytest.mark.parametrize(
    ("models", "emulated", "reason"),
    [
        (("NVIDIA H200",), True, "logical devices have no ceilings"),
        ((), False, "does not say which GPUs"),
        (("NVIDIA H200", "NVIDIA H100 PCIe"), False, "differ: NVIDIA H100 PCIe, NVIDIA H200"),
    ],
)
def test_without_ceilings_there_is_a_reason(
    tmp_path: Path, models: tuple[str, ...], emulated: bool, reason: str
) -> None:
    found = find_ceilings(run_on(tmp_path / "run", *models, emulated=emulated))
    assert found.each is None
    assert reason in (found.reason or "")


def test_a_machines_file_keeps_gpus_that_were_not_looked_at(tmp_path: Path) -> None:
    path = machine_file({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert tmp_path in path.parents
    keep_ceilings(file_of(one), path)
    keep_ceilings(file_of(other), path)
    keep_ceilings(file_of(replace(one, matmul_tflops=101.0)), path)
    kept = read_ceilings(path)
    assert kept is not None
    assert {device.uuid: device.matmul_tflops for device in kept.devices} == {"GPU-a": 101.0, "GPU-b": 120.0}


def test_visible_gpus_of_the_model_are_counted(tmp_path: Path) -> None:
    gpus = [{"uuid": f"GPU-{i}", "name": "NVIDIA X1" if i else "NVIDIA T4"} for i in range(4)]
    hardware = {"gpus": gpus, "visible_gpus": ["GPU-0", "GPU-1", "GPU-3"]}
    run = run_on(tmp_path / "run", "NVIDIA X1", hardware=hardware)
    assert visible_alike(run, "NVIDIA X1") == 2
    assert visible_alike(run_on(tmp_path / "b", "NVIDIA X1"), "NVIDIA X1") == 0


def test_the_table_of_known_gpus_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/forecast.md").read_text(encoding="utf-8")
    for name, known in known_gpus.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert f"{known.matmul_tflops:g} TFLOP/s" in row
        assert f"{known.memory_gb_per_s:,.0f} GB/s" in row
        assert f"| {known.peer_gb_per_s:g} GB/s |" in row
