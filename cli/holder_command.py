"""`dflash-profile holder`: who holds the GIL of a running trainer right now, and at which line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cli.console import print_json, show
from cli.layout import plain, table
from cli.options import AsJson
from dflash.contract.errors import DFlashError, RunError
from dflash.contract.rundir import RunDir


def show_holder(
    target: Annotated[str, typer.Argument(metavar="RUN|PID", help="A run in progress, or a process.")],
    seconds: Annotated[int, typer.Option("--for", min=1, max=60, metavar="S", help="How long to look.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Name the line of Python that holds the GIL.

    py-spy looks at the running process without pausing it.
    """
    from profiler.gil_holder import name_holder
    from reports import text

    pid = int(target) if target.isdecimal() else trainer_of(Path(target))
    report = name_holder(pid, seconds=seconds)
    if report.reason is not None:
        raise DFlashError("who holds the GIL cannot be told", where=f"process {pid}", found=report.reason)
    if as_json:
        print_json({"pid": pid, "seconds": seconds, **dataclasses.asdict(report)})
        return
    rows = [(text.share(holder.share), holder.thread, holder.line) for holder in report.holders[:10]]
    show(plain(table(("held", "thread", "line"), rows)))


def trainer_of(run_path: Path) -> int:
    """The process of a run whose GIL is meant: who published it, else the trainer. Raises RunError."""
    manifest = RunDir(run_path).manifest()
    gil, pids = manifest.get("gil"), manifest.get("pids")
    known = [part.get(key) for part, key in ((gil, "pid"), (pids, "trainer")) if isinstance(part, dict)]
    pid = next((value for value in known if isinstance(value, int)), None)
    if manifest.get("status") != "running" or pid is None:
        raise RunError(
            "the run is not in progress",
            where=str(run_path),
            found=f"status {manifest.get('status')}",
            remedy="ask while it runs; `record --set sensors.gil_holders=true` asks all along",
        )
    return pid
