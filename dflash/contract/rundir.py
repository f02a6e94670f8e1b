"""The run directory: the interface between trainer, recorder and everything that reads a run.

run.json            the manifest (see `new_manifest` and docs/run-directory.md)
config.toml         the configuration as resolved, ready for `dflash-train run`
events/*.arrow      one stream a process            samples/*.arrow   one stream a sampler
findings.json       written by diagnosis            report.html
links.json          measured links (contract/link_facts.py)
ceilings.json       what its GPUs can do at best (contract/ceilings.py)
checkpoints/step-N  complete checkpoints only
traces/*.json.gz    torch.profiler windows and exports, as Chrome traces

run.json has one writer at a time: the recorder before it starts the trainer and after the trainer has
ended, the trainer in between. Every write replaces the file whole. Nothing pickled is ever read.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from dflash.contract.errors import RunError
from dflash.contract.processes import boot_id, identify

schema_version: Final = 1
statuses: Final = ("running", "finished", "failed", "stopped")
environment_variable: Final = "DFLASH_RUN_DIR"  # set by the recorder for the command it starts


class RunDir:
    """Paths and manifest of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def findings_path(self) -> Path:
        return self.path / "findings.json"

    @property
    def links_path(self) -> Path:
        return self.path / "links.json"

    @property
    def ceilings_path(self) -> Path:
        return self.path / "ceilings.json"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    def manifest(self) -> dict[str, Any]:
        """run.json, checked for being one of ours. Raises RunError."""
        where = str(self.manifest_path)
        try:
            data = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(
                "not a run directory: it holds no run.json",
                where=str(self.path),
                remedy="`dflash-profile record -- COMMAND` makes one",
            ) from None
        except (OSError, ValueError) as error:
            raise RunError(f"run.json cannot be read: {error}", where=where) from None
        if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
            raise RunError("run.json is not a run manifest", where=where)
        if data["schema"] > schema_version:
            raise RunError(
                "the run was written by a newer version",
                where=where,
                found=f"schema {data['schema']}",
                expected=f"schema {schema_version} or older",
                remedy="update dflash-tune",
            )
        return data

    def update(self, **changes: Any) -> dict[str, Any]:
        """Merge top-level keys into run.json, atomically."""
        data = {**self.manifest(), **changes}
        write_json(self.manifest_path, data)
        return data


def create_run(path: Path, *, command: list[str]) -> RunDir:
    """A new run directory at `path`, which must not exist or be empty. Never overwrites a run."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(
            "a run is never overwritten",
            where=str(path),
            found="an existing file or non-empty directory",
            remedy="choose another --run-dir",
        )
    try:
        for directory in (path, path / "events", path / "samples"):
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"the run directory cannot be made: {error}", where=str(path)) from None
    run = RunDir(path)
    write_json(run.manifest_path, new_manifest(command))
    return run


def new_run_path(base: Path = Path("runs")) -> Path:
    """A fresh name under `base`: UTC time and four random hex digits."""
    return base / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def new_manifest(command: list[str]) -> dict[str, Any]:
    """The manifest of a run that is starting. Unknown facts are null until someone knows them."""
    return {
        "schema": schema_version,
        "status": "running",
        "reason": None,  # why it failed or stopped
        "exit_code": None,
        "command": command,
        "started_utc": utc_now(),
        "ended_utc": None,
        "clock": clock_anchor(),
        "pids": {"recorder": None, "trainer": None},
        # Tells them from later owners of their pids. Whoever makes the run stands for them until they say.
        "processes": {"maker": identify(os.getpid())},
        "emulated": None,  # true: logical devices, so times say nothing of GPUs
        "config": None,  # {dotted path: value}
        "versions": {"python": platform.python_version()},
        "kernels": None,  # which attention, optimizer and GatedDeltaNet kernels are in use
        "hardware": None,
        "devices": None,  # [{name, role, index, uuid}], in stage order
        "links": None,
        "git": None,
        "workload": None,  # what must match for two runs to be comparable
        "data": None,  # what became of the rows
        "books": None,  # documents, batches, steps counted at the end
        "resumed": None,  # the checkpoint that it goes on from, and what has changed since
        "evaluations": None,  # of documents held out, in order, as in the events
        "learned": None,  # losses and accuracy at the end, with what the loss is divided by
    }


def one_instant() -> tuple[int, int]:
    """The same instant as UTC and on CLOCK_MONOTONIC, in nanoseconds.

    Of several readings the one that took least time: a thread may stand still between two clocks.
    """
    readings = []
    for _ in range(5):
        before, utc_ns, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, utc_ns, (before + after) // 2))
    return min(readings)[1:]


def clock_anchor() -> dict[str, Any]:
    """One instant on both clocks, and the boot it belongs to."""
    utc_ns, monotonic_ns = one_instant()
    return {"utc_ns": utc_ns, "monotonic_ns": monotonic_ns, "boot_id": boot_id()}


def utc_now() -> str:
    """UTC with seconds, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write_json(path: Path, data: object) -> None:
    """Replace `path` by strict JSON (no NaN), whole or not at all."""
    write_text(path, json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, whole or not at all. Raises RunError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path.name}: {error}", where=str(path)) from None


def printable(text: str) -> str:
    """`text` from a run, safe for a terminal: control characters become escapes."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda m: f"\\x{ord(m.group()):02x}", text)


def python_command() -> list[str]:
    """How to start the trainer as a child process.

    -P: a directory called `dflash` where the user happens to stand is not what gets imported.
    """
    return [sys.executable, "-P", "-m", "dflash"]
