"""Facts for the manifest: the machine, its GPUs, the code's git state, versions. Unknown facts are None.

Knows nothing of runs.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from dflash.contract.cgroup import MemoryCgroup
from dflash.contract.numa import node_of_gpu, read_nodes
from dflash.contract.versions import own_version
from profiler.samplers.sensors import GpuDevice
from profiler.visible_devices import NoneVisible, visible_devices

git_limit_s = 5.0


def describe_hardware(
    gpus: Sequence[GpuDevice], no_gpus: str | None, environ: Mapping[str, str] = os.environ
) -> dict[str, object]:
    """The entry "hardware". `no_gpus` says why the list of GPUs is empty."""
    memory_bytes = psutil.virtual_memory().total
    limit_bytes = MemoryCgroup.of_process().limit_bytes()
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "cgroup_limit_bytes": limit_bytes,
        "memory_limit_bytes": min(memory_bytes, limit_bytes or memory_bytes),
        "numa_nodes": {str(node): cpus for node, cpus in read_nodes().items()},
        "gpus": [{**device.facts(), "numa_node": node_of_gpu(device.pci_bus_id)[0]} for device in gpus],
        "no_gpus": no_gpus,
        **_describe_visible(gpus, environ),
    }


def _describe_visible(gpus: Sequence[GpuDevice], environ: Mapping[str, str]) -> dict[str, object]:
    """What CUDA shows a command that is started here."""
    if not gpus:
        return {"visible_gpus": None, "no_visible_gpus": None}
    shown = visible_devices(environ.get("CUDA_VISIBLE_DEVICES"), gpus, environ.get("CUDA_DEVICE_ORDER"))
    if isinstance(shown, NoneVisible):
        return {"visible_gpus": None if shown.ask_cuda else [], "no_visible_gpus": str(shown)}
    return {"visible_gpus": [device.uuid for device in shown], "no_visible_gpus": None}


def describe_git(directory: Path) -> dict[str, object] | None:
    """Commit of a work tree and whether tracked files differ from it; None without git or tree."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "dirty": None if changes is None else bool(changes.strip())}


def own_versions() -> dict[str, str | None]:
    """Python's version and that of this distribution (None when it is not installed)."""
    return {"python": platform.python_version(), "dflash-tune": own_version()}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=git_limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.processor() or None
