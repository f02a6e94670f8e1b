"""`dflash-profile export-trace`: a run for the eyes of Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console import print_json, say, show
from cli.options import AsJson


def export_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; gzipped if it ends in .gz. [default: RUN/traces/run.json.gz]", metavar="FILE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as a Chrome trace.

    Stage threads, GPU work, copies, queue depths, rates and sensors on one time axis, for ui.perfetto.dev.
    """
    from profiler.trace_export import export_trace

    exported = export_trace(run, out)
    if exported.left_out:
        say(f"{exported.left_out} rows without a time or a value were left out")
    if as_json:
        print_json(
            {
                "run": str(run),
                "trace": str(exported.path),
                "events": exported.events,
                "left_out": exported.left_out,
            }
        )
    else:
        show(str(exported.path))
