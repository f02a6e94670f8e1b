"""`dflash-profile whatif`: what a change of the pipeline would do to a recorded run, before anybody tries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console import print_json, show
from cli.options import AsJson
from dflash.contract.errors import UsageError


def ask_what_if(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN...]",
            help="The run to change. Further runs of the same work make the forecast surer.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="The change; may be given again and again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict tokens/s and memory of another split, budget, transport, depth, schedule or number of devices.

    With a 90 % interval, what would limit the run then, and what the figures rest on. Without --set: how well
    the forecast describes the run as it is.
    """
    if len(set(runs)) < len(runs):
        raise UsageError("a run is named twice", where="RUN", found=", ".join(map(str, runs)))
    from profiler.ceilings import machine_file
    from profiler.forecast.what_if import ask
    from profiler.run import Run

    answer = ask([Run.open(path) for path in runs], settings or [], machine_file())
    if as_json:
        print_json(answer.to_json())
    else:
        from cli.whatif_text import describe_what_if

        show(describe_what_if(answer))
