"""What can be measured on this machine and what cannot, why, and how to grant it.

Mostly read off a short recording of a practice command: what the real samplers got there is what they will
get. Pure functions of what was found. Knows nothing of how it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pandas as pd

Status = Literal["ok", "n/a", "broken"]
network_filesystems: Final = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|beegfs\w*|ceph|glusterfs|afs|9p|virtiofs|panfs|wekafs|fuse\..*"
)
least_free_bytes: Final = 1_000_000_000
pythons: Final = ((3, 11), (3, 13))
_no_reading = "no reading within the few seconds of practice"

# What a person wants to know, and the metrics that must have been read for it.
_host: Final = (
    ("memory by kind (smaps_rollup)", "host", ("rss_anon_bytes", "rss_shmem_bytes")),
    ("memory of the cgroup", "host", ("cgroup_usage_bytes",)),
    ("swapping", "host", ("swap_in_bytes",)),
    ("CPU time by thread", "host", ("thread_cpu_s",)),
    ("waiting for a CPU (schedstat)", "host", ("thread_run_queue_wait_s",)),
    ("NUMA node of memory", "numa", ("numa_bytes",)),
)
_gil: Final = (
    ("who holds the GIL (py-spy)", "gil", ("gil_hold_share",)),
    ("who waits for the GIL", "gil_wait", ("gil_wait_samples",)),
)
_gpu: Final = (
    ("utilisation", ("util_pct",)),
    ("power", ("power_w", "power_limit_w")),
    ("power every 20 ms", ("power_sample_w",)),
    ("energy", ("energy_j",)),
    ("clocks", ("sm_clock_mhz",)),
    ("throttling", ("throttle_reasons",)),
    ("temperature", ("temp_c",)),
    ("memory", ("mem_used_bytes",)),
    ("memory by process", ("own_mem_bytes",)),
    ("SM activity (GPM)", ("sm_active_pct",)),
    ("PCIe bytes", ("pcie_tx_bytes", "pcie_rx_bytes")),
    ("NVLink bytes", ("nvlink_tx_bytes", "nvlink_rx_bytes")),
)
_remedies: Final = (  # words of a reason, and what helps
    ("nvidia-ml-py is not installed", "pip install nvidia-ml-py"),
    ("no NVIDIA driver library", "install the driver; start containers with --gpus all"),
    ("driver is not loaded", "load the nvidia kernel module, or reboot"),
    ("driver was updated", "reboot, or reload the nvidia kernel modules with no program on the GPUs"),
    ("shows no GPU", "give the container its GPUs (--gpus all)"),
    ("no permission to talk to the NVIDIA driver", "let this user open /dev/nvidia* (its group)"),
    ("py-spy is not installed", "pip install py-spy"),
    ("does not support this version of Python", "pip install --upgrade py-spy"),
    ("pid namespace", "start the container with --pid=host"),
    ("/proc/PID/task/TID/syscall", "another kernel or sandbox; some, such as gVisor, do not have it"),
    ("not glibc", "an image with glibc rather than musl"),
    ("no permission to read /proc", "record as the user of the trainer, or as root"),
)  # fmt: skip


groups: Final = ("install", "torch", "disk", "host", "gil", "gpu")  # in the order of showing


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    group: str  # of `groups`
    name: str
    status: Status  # broken: nothing useful can be done without it
    detail: str  # what was found; for n/a and broken, the reason
    remedy: str | None = None


def examine_recording(manifest: Mapping[str, Any], samples: pd.DataFrame) -> Iterator[Check]:
    """Host, GIL and GPU sensors, from the manifest and the samples of a recorded practice command."""
    reports = manifest.get("samplers") or {}
    limit = (manifest.get("hardware") or {}).get("memory_limit_bytes")
    if limit is not None:
        yield Check(group="host", name="memory limit", status="ok", detail=f"{limit / 1e9:.1f} GB")
    for group, capabilities in (("host", _host), ("gil", _gil)):
        for name, source, metrics in capabilities:
            found = samples[samples["source"] == source]
            yield _judge(group, name, found, metrics, _report_reason(reports, source))
    yield from _examine_gpus(manifest, samples[samples["source"] == "gpu"], _report_reason(reports, "gpu"))


def _examine_gpus(manifest: Mapping[str, Any], samples: pd.DataFrame, reason: str | None) -> Iterator[Check]:
    hardware = manifest.get("hardware") or {}
    gpus = hardware.get("gpus") or []
    if not gpus:
        yield _missing("gpu", "sensors (NVML)", hardware.get("no_gpus") or reason or "no GPU was listed")
    for number, gpu in enumerate(gpus):
        mine = samples[samples["key"].isin([gpu["uuid"], "*"])]
        title = f"{gpu.get('name', 'GPU')} {number}"
        for name, metrics in _gpu:
            wanted = metrics
            if gpu.get("unified_memory") and name == "memory":
                wanted = ("unified_mem_used_bytes",)
            yield _judge("gpu", f"{title}: {name}", mine, wanted, reason)


def _judge(
    group: str, name: str, samples: pd.DataFrame, metrics: Sequence[str], sampler_reason: str | None
) -> Check:
    """Ok when every metric has been read at least once; otherwise why the first that was not, was not."""
    for metric in metrics:
        rows = samples[samples["metric"] == metric]
        if not rows["value"].notna().any():
            reasons = [reason for reason in rows["reason"] if isinstance(reason, str)]
            return _missing(group, name, reasons[-1] if reasons else sampler_reason or _no_reading)
    return Check(group=group, name=name, status="ok", detail="read")


def _missing(group: str, name: str, reason: str) -> Check:
    remedy = next((remedy for words, remedy in _remedies if words in reason), None)
    return Check(group=group, name=name, status="n/a", detail=reason, remedy=remedy)


def _report_reason(reports: Mapping[str, Any], source: str) -> str | None:
    report = reports.get(source)
    reason = report.get("reason") if isinstance(report, Mapping) else "this sampler did not run"
    return reason if isinstance(reason, str) else None


def examine_python(version: tuple[int, int], versions: Mapping[str, str | None]) -> Iterator[Check]:
    """The interpreter and this distribution."""
    low, high = pythons
    told = f"Python {versions.get('python')}, dflash-tune {versions.get('dflash-tune') or 'not installed'}"
    if low <= version <= high:
        yield Check(group="install", name="versions", status="ok", detail=told)
    else:
        yield Check(
            group="install",
            name="versions",
            status="broken",
            detail=told,
            remedy=f"use Python {low[0]}.{low[1]} to {high[0]}.{high[1]}",
        )


def examine_torch(answer: Mapping[str, Any] | None, problem: str | None) -> Iterator[Check]:
    """What `python -m dflash gpus` said; None with the problem when it said nothing sound."""
    if answer is None:
        yield Check(
            group="torch",
            name="torch",
            status="broken",
            detail=problem or "no answer",
            remedy="reinstall torch in this environment; `python -c 'import torch'` shows the cause",
        )
        return
    yield Check(group="torch", name="torch", status="ok", detail=str(answer.get("torch")))
    gpus, cuda = answer.get("gpus") or [], answer.get("cuda")
    if gpus:
        yield Check(
            group="torch", name="CUDA", status="ok", detail=f"CUDA {cuda}: {', '.join(map(str, gpus))}"
        )
    elif cuda is None:
        yield Check(
            group="torch",
            name="CUDA",
            status="n/a",
            detail="this torch is built without CUDA: stages run on logical devices",
            remedy="for GPUs, install a CUDA build of torch",
        )
    else:
        yield Check(
            group="torch",
            name="CUDA",
            status="n/a",
            detail=f"torch, built for CUDA {cuda}, sees no GPU: stages run on logical devices",
            remedy="for GPUs, check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        )


def examine_place(path: str, problem: str | None, mounts: str, free_bytes: int | None) -> Iterator[Check]:
    """Where runs would be written. `problem`: why nothing can be; `mounts`: /proc/self/mountinfo."""
    if problem is not None:
        yield Check(
            group="disk",
            name="runs can be written",
            status="broken",
            detail=f"{path}: {problem}",
            remedy="stand in a directory that is yours, or give --run-dir",
        )
        return
    kind = filesystem_of(path, mounts)
    yield Check(
        group="disk",
        name="runs can be written",
        status="ok",
        detail=f"{path}, {kind or 'file system unknown'}",
        remedy="a network file system: give --run-dir on a local disk where writing is slow"
        if kind and network_filesystems.fullmatch(kind)
        else None,
    )
    if free_bytes is not None and free_bytes < least_free_bytes:
        yield Check(
            group="disk",
            name="free space",
            status="n/a",
            detail=f"{free_bytes / 1e9:.2f} GB left, which a long run may need",
            remedy="make room, or give --run-dir on another disk",
        )


def filesystem_of(path: str, mounts: str) -> str | None:
    """The kind of file system that holds an absolute path; the last of the longest mount points wins."""
    best, kind = "", None
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def examine_ptrace(scope: str | None, status: str) -> Check:
    """Who may look into a process. `scope`: kernel.yama.ptrace_scope; `status`: /proc/self/status."""
    told = {
        None: "no Yama: processes of the same user may be looked into",
        "0": "ptrace scope 0: processes of the same user may be looked into",
        "1": "ptrace scope 1: only what the recorder itself starts",
        "2": "ptrace scope 2: only with SYS_PTRACE",
        "3": "ptrace scope 3: nobody",
    }.get(scope, f"ptrace scope {scope}")
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    has = found is not None and bool(int(found[1], 16) >> 19 & 1)
    allowed = scope in (None, "0", "1") or (has and scope != "3")
    grant = "sysctl kernel.yama.ptrace_scope=1, run as root, or start the container with --cap-add SYS_PTRACE"
    return Check(
        group="gil",
        name="permission to look into processes",
        status="ok" if allowed else "n/a",
        detail=f"{told}; {'with' if has else 'without'} SYS_PTRACE",
        remedy=None if allowed else "scope 3 stays until a reboot without it" if scope == "3" else grant,
    )
