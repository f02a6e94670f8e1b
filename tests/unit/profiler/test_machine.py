"""Facts about machine and code; none of them is invented."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from dflash.contract.cgroup import MemoryCgroup
from profiler import machine
from profiler.machine import describe_git, describe_hardware, own_versions
from profiler.samplers.sensors import GpuDevice


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_commit_and_changes_of_a_work_tree(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("x")
    assert describe_git(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "a").write_text("2")
    assert describe_git(tmp_path) == {"commit": commit, "dirty": True}


def test_folder_outside_a_work_tree_has_no_commit(tmp_path: Path) -> None:
    assert describe_git(tmp_path) is None


def test_missing_git_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_git(tmp_path) is None


def test_hardware_states_the_limit_that_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000")
    monkeypatch.setattr(machine.MemoryCgroup, "of_process", lambda: MemoryCgroup(((tmp_path,),)))
    hardware = describe_hardware([GpuDevice(key="GPU-a", name="x", memory_bytes=7)], None)
    assert hardware["memory_bytes"] == psutil.virtual_memory().total
    assert hardware["memory_limit_bytes"] == hardware["cgroup_limit_bytes"] == 1_000_000
    assert [gpu["uuid"] for gpu in hardware["gpus"]] == ["GPU-a"]  # type: ignore[attr-defined]
    json.dumps(hardware, allow_nan=False)


def test_missing_gpus_have_a_reason() -> None:
    hardware = describe_hardware([], "no NVIDIA driver library on this machine")
    assert (hardware["gpus"], hardware["no_gpus"]) == ([], "no NVIDIA driver library on this machine")


def test_versions_name_python_and_ours() -> None:
    assert set(own_versions()) == {"python", "dflash-tune"}


gpus = [GpuDevice(key=f"GPU-{i}", name="H", index=i) for i in range(2)]


def test_gpus_that_cuda_shows_the_command_are_told_by_uuid() -> None:
    def shown(**environ: str) -> tuple[object, object]:
        facts = describe_hardware(gpus, None, environ)
        return facts["visible_gpus"], facts["no_visible_gpus"]

    assert shown() == (["GPU-0", "GPU-1"], None)
    assert shown(CUDA_VISIBLE_DEVICES="1,0") == (["GPU-1", "GPU-0"], None)
    assert shown(CUDA_VISIBLE_DEVICES="") == ([], "no visible GPU because CUDA_VISIBLE_DEVICES is empty")
    assert shown(CUDA_DEVICE_ORDER="FASTEST_FIRST")[0] is None  # unknown, which is not none
    assert describe_hardware([], "no driver", {})["visible_gpus"] is None
