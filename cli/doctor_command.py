"""`dflash-profile doctor`: what can be measured here, what cannot, why, and how to grant it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli.child import ask_trainer
from cli.console import print_json, say, show, stdout_kept_for_result
from cli.install_check import check_install
from cli.layout import table
from cli.options import AsJson
from dflash.contract.errors import DFlashError
from dflash.contract.rundir import new_run_path

if TYPE_CHECKING:
    from profiler.checkup import Check

practice_s = 4.0
practice_module = "profiler.practice"
torch_limit_s = 60.0


def check_up(as_json: AsJson = False) -> None:
    """Say what can be measured here.

    Records a practice command for a few seconds with the real sensors. Exit code 1 only when something
    essential is broken; what cannot be measured is n/a with the reason, and how to grant it.
    """
    from profiler.checkup import groups

    if not as_json:
        say(f"practising for {practice_s:g} s …")
    with stdout_kept_for_result():
        checks = [*_look_at_install(), *_look_at_torch(), *_look_at_disk(), *_practise()]
    checks.sort(key=lambda check: groups.index(check.group))
    broken = any(check.status == "broken" for check in checks)
    if as_json:
        print_json({"broken": broken, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        show(describe_checks(checks))
    raise typer.Exit(1 if broken else 0)


def describe_checks(checks: list[Check]) -> str:
    """One line a check; its remedy on the line below."""
    rows: list[tuple[str, str, str]] = []
    for check in checks:
        detail = check.detail if check.status == "ok" else f"{check.status}: {check.detail}"
        rows.append((check.group, check.name, "ok" if detail == "read" else detail))
        if check.remedy is not None:
            rows.append(("", "", f"  remedy: {check.remedy}"))
    return table(("", "what", "found"), rows)


def _look_at_install() -> Iterator[Check]:
    from profiler.checkup import Check, examine_python
    from profiler.machine import own_versions

    yield from examine_python(sys.version_info[:2], own_versions())
    try:
        check_install()
    except DFlashError as error:
        yield Check(
            group="install",
            name="import names",
            status="broken",
            detail=f"{error.what} ({error.found})",
            remedy=error.remedy,
        )
    else:
        yield Check(group="install", name="import names", status="ok", detail="all of them ours")


def _look_at_torch() -> Iterator[Check]:
    from profiler.checkup import examine_torch

    answer: dict[str, Any] | None = None
    problem = None
    try:
        code, told = ask_trainer(["gpus"], limit_s=torch_limit_s)
        answer = json.loads(told) if code == 0 else None
        problem = f"the process that imports torch ended with code {code}"
    except (DFlashError, ValueError) as error:
        problem = error.what if isinstance(error, DFlashError) else "its answer is not understood"
    yield from examine_torch(answer, problem)


def _look_at_disk() -> Iterator[Check]:
    from profiler.checkup import examine_place

    place = new_run_path().absolute().parent
    place = next(parent for parent in (place, *place.parents) if parent.exists())
    problem, free_bytes = None, None
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
            file.write(b"here")
            file.flush()
            os.fsync(file.fileno())
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        problem = error.strerror or str(error)
    yield from examine_place(str(place.resolve()), problem, _read("/proc/self/mountinfo") or "", free_bytes)


def _practise() -> Iterator[Check]:
    """Record the practice command with the sensors of `record`; Ctrl-C ends it and us."""
    from profiler.checkup import Check, examine_ptrace, examine_recording
    from profiler.recorder import RecordOptions, record
    from profiler.run import Run

    yield examine_ptrace(_read("/proc/sys/kernel/yama/ptrace_scope"), _read("/proc/self/status") or "")
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        command = [sys.executable, "-P", "-m", practice_module, str(practice_s)]
        options = RecordOptions(gil_holders=True, time_limit_s=10 * practice_s, log=Path(folder) / "log")
        recording = record(command, Path(folder) / "run", options)
        if recording.status == "stopped":
            raise typer.Exit(recording.exit_code)
        if recording.status != "finished":
            detail = f"the practice command failed: {recording.reason}"
            yield Check(group="host", name="recording", status="broken", detail=detail)
            return
        run = Run.open(Path(folder) / "run")
        yield from examine_recording(run.manifest, run.samples)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
