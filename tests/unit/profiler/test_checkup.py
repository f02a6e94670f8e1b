"""What a machine is told of itself: read off recordings, real and made up, and plain facts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from profiler.checkup import (
    Check,
    examine_place,
    examine_ptrace,
    examine_python,
    examine_recording,
    examine_torch,
    filesystem_of,
    least_free_bytes,
)
from profiler.recorder import RecordOptions, record
from profiler.run import Run

Row = tuple[str, str, str, float | None, str | None]  # source, key, metric, value, reason


def frame(*rows: Row) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["source", "key", "metric", "value", "reason"])


def examined(manifest: dict[str, Any], *rows: Row) -> dict[str, Check]:
    return {check.name: check for check in examine_recording(manifest, frame(*rows))}


def gpu(uuid: str, **facts: Any) -> dict[str, Any]:
    return {"uuid": uuid, "name": "H200", **facts}


def test_what_was_read_is_ok_and_what_was_not_has_its_reason() -> None:
    checks = examined(
        {"samplers": {"host": {"status": "ok", "reason": None}}},
        ("host", "tree", "rss_anon_bytes", 5.0, None),
        ("host", "tree", "rss_shmem_bytes", None, "the kernel does not say"),
        ("host", "1:python", "thread_cpu_s", None, "gone"),
        ("host", "2:python", "thread_cpu_s", 1.0, None),
    )
    memory = checks["memory by kind (smaps_rollup)"]
    assert (memory.status, memory.detail) == ("n/a", "the kernel does not say")
    assert checks["CPU time by thread"].status == "ok", "one thread is enough to know that it can be read"
    assert "no reading" in checks["swapping"].detail
    assert checks["who holds the GIL (py-spy)"].detail == "this sampler did not run"


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("py-spy is not installed", "pip install py-spy"),
        ("py-spy does not support this version of Python", "--upgrade py-spy"),
        ("no permission (needs SYS_PTRACE): run as root", None),  # the reason itself says how
    ],
)
def test_a_sampler_that_never_read_anything_gives_its_reason(reason: str, remedy: str | None) -> None:
    manifest = {"samplers": {"gil": {"status": "n/a", "reason": reason}}}
    check = examined(manifest)["who holds the GIL (py-spy)"]
    assert (check.status, check.detail) == ("n/a", reason)
    assert (remedy is None) == (check.remedy is None)
    assert remedy is None or remedy in str(check.remedy)


def test_without_gpus_there_is_one_line_with_the_drivers_reason() -> None:
    reason = "no NVIDIA driver library on this machine (NVML_ERROR_LIBRARY_NOT_FOUND)"
    checks = examined({"hardware": {"gpus": [], "no_gpus": reason}, "samplers": {}})
    assert checks["sensors (NVML)"].detail == reason
    assert "--gpus all" in str(checks["sensors (NVML)"].remedy)


def test_each_gpu_is_asked_for_itself() -> None:
    manifest = {"hardware": {"gpus": [gpu("GPU-a"), gpu("GPU-b", unified_memory=True)]}, "samplers": {}}
    checks = examined(
        manifest,
        ("gpu", "GPU-a", "util_pct", 3.0, None),
        ("gpu", "GPU-b", "util_pct", None, "not supported on MIG (NVML_ERROR_NOT_SUPPORTED)"),
        ("gpu", "GPU-a", "own_mem_bytes", None, "pid namespace: other numbers here"),
        ("gpu", "GPU-b", "unified_mem_used_bytes", 9.0, None),
        ("gpu", "GPU-b", "mem_used_bytes", None, "unified memory: see …"),
    )
    assert checks["H200 0: utilisation"].status == "ok"
    assert "not supported on MIG" in checks["H200 1: utilisation"].detail
    assert checks["H200 0: memory by process"].remedy == "start the container with --pid=host"
    assert checks["H200 1: memory"].status == "ok"
    assert checks["H200 0: memory"].status == "n/a"


def test_a_recorded_practice_tells_a_mig_slice_from_its_gpu(tmp_path: Path, data_dir: Path) -> None:
    options = RecordOptions(gpu=f"replay:{data_dir / 'cases/nvml/c060_mig.json'}", log=tmp_path / "log")
    command = [sys.executable, "-P", "-m", "profiler.practice", "1.2"]
    assert record(command, tmp_path / "r", options).status == "finished", (tmp_path / "log").read_text()
    run = Run.open(tmp_path / "r")
    checks = list(examine_recording(run.manifest, run.samples))
    utilisation = [check for check in checks if check.name.endswith("utilisation")]
    assert utilisation
    assert all(check.status == "n/a" and "MIG" in check.detail for check in utilisation)
    assert any(check.status == "ok" for check in checks if check.name.endswith(": memory"))
    by_name = {check.name: check for check in checks}
    assert by_name["CPU time by thread"].status == "ok"
    assert not any(check.status == "broken" for check in checks)


def test_python_outside_the_supported_range_is_broken() -> None:
    versions = {"python": "3.14.0", "dflash-tune": None}
    statuses = {v: next(examine_python(v, versions)).status for v in ((3, 10), (3, 11), (3, 13), (3, 14))}
    assert statuses == {(3, 10): "broken", (3, 11): "ok", (3, 13): "ok", (3, 14): "broken"}
    assert "not installed" in next(examine_python((3, 12), versions)).detail


def test_torch_with_gpus_without_and_not_at_all() -> None:
    def told(answer: dict[str, Any] | None) -> list[tuple[str, str]]:
        return [(check.name, check.status) for check in examine_torch(answer, "it crashed")]

    assert told({"torch": "2", "cuda": "12.8", "gpus": ["H200"]}) == [("torch", "ok"), ("CUDA", "ok")]
    assert told({"torch": "2", "cuda": None, "gpus": []}) == [("torch", "ok"), ("CUDA", "n/a")]
    assert told({"torch": "2", "cuda": "12.8", "gpus": []})[1] == ("CUDA", "n/a")
    assert told(None) == [("torch", "broken")]
    blind = list(examine_torch({"torch": "2", "cuda": "12.8", "gpus": []}, None))[1]
    assert "CUDA_VISIBLE_DEVICES" in str(blind.remedy)


mounts = """\
23 22 0:22 / /data rw shared:1 - nfs4 server:/export rw
24 22 0:23 / /data/local\\040disk rw - xfs /dev/sdb rw
25 22 0:24 / /dataset rw - fuse.sshfs host:/ rw
22 27 0:21 / / rw - ext4 /dev/vda rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp", "ext4"),
        ("/data", "nfs4"),
        ("/data/runs", "nfs4"),
        ("/data/local disk/runs", "xfs"),
        ("/dataset", "fuse.sshfs"),
        ("/datasets", "ext4"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert filesystem_of(path, mounts) == kind


def test_places_for_runs() -> None:
    plenty = 10 * least_free_bytes
    [local] = examine_place("/tmp", None, mounts, plenty)
    assert (local.status, local.remedy) == ("ok", None)
    [remote] = examine_place("/data", None, mounts, plenty)
    assert remote.status == "ok"
    assert "network file system" in str(remote.remedy)
    [unknown] = examine_place("/tmp", None, "", None)
    assert "unknown" in unknown.detail
    [broken] = examine_place("/root", "Permission denied", mounts, None)
    assert broken.status == "broken"
    _, full = examine_place("/tmp", None, mounts, least_free_bytes - 1)
    assert full.name == "free space"


@pytest.mark.parametrize(
    ("scope", "capability", "status"),
    [
        (None, False, "ok"),
        ("0", False, "ok"),
        ("1", False, "ok"),
        ("2", False, "n/a"),
        ("2", True, "ok"),
        ("3", True, "n/a"),
    ],
)
def test_permission_to_look_into_processes(scope: str | None, capability: bool, status: str) -> None:
    mask = f"{1 << 19 if capability else 1 << 18:016x}"
    check = examine_ptrace(scope, f"Name:\tx\nCapEff:\t{mask}\n")
    assert check.status == status
    assert check.detail.endswith("; with SYS_PTRACE" if capability else "; without SYS_PTRACE")
    assert (check.remedy is None) == (status == "ok")
