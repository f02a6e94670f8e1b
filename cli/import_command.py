"""`dflash-profile import`: another trainer's metrics, one JSON object an interval, made into a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console import print_json, show
from cli.layout import facts
from cli.options import AsJson
from dflash.contract.rundir import new_run_path


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, or such a file packed as .gz.")],
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="New directory for the run. [default: runs/TIME-HEX]", metavar="DIR"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a run of another trainer's metrics.

    One JSON object an interval; docs/import.md lists the fields. The run is then diagnosed and reported
    like any other.
    """
    from profiler.metrics_trace.importer import import_metrics

    run_path = run_dir or new_run_path()
    imported = import_metrics(file, run_path)
    if as_json:
        print_json(
            {
                "run": str(run_path),
                "intervals": imported.intervals,
                "targets": imported.targets,
                "drafters": imported.drafters,
                "range_s": imported.range_s,
                "bad_lines": [{"line": bad.line, "reason": bad.reason} for bad in imported.bad_lines],
                "notes": list(imported.notes),
            }
        )
        return
    threads = f"{imported.targets} of targets, {imported.drafters} of drafters"
    show(
        facts(
            [
                ("run", str(run_path)),
                ("read", f"{imported.intervals} intervals over {imported.range_s:.6g} s"),
                ("threads", threads),
                *(("note", note) for note in imported.notes),
                ("next", f"dflash-profile diagnose {run_path}"),
            ]
        )
    )
