"""`dflash-profile compare`: what changed between two runs, and an exit code that CI can act on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from cli.console import print_json, show
from cli.options import AsJson
from dflash.contract.errors import UsageError


def compare_runs(
    a: Annotated[Path, typer.Argument(metavar="A", help="The run to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The run in question.")],
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="3%",
            help="Exit 3 when B is slower than A by more than this, 4 when noise hides it.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the comparison there, as JSON.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write it there as one HTML page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what changed from run A to run B.

    How much faster or slower, in which stage, and whether that is beyond noise. Only between runs of the
    same work. Without --fail-above the exit code is 0, however it turns out.
    """
    limit = None if fail_above is None else parse_limit(fail_above)
    from dflash.contract.rundir import write_json
    from profiler.comparison import compare
    from profiler.run import Run

    comparison = compare(Run.open(a), Run.open(b), limit=limit)
    if out is not None:
        write_json(out, comparison.to_json())
    if html is not None:
        from reports.comparison_report import write_comparison_report

        write_comparison_report(comparison, html)
    if as_json:
        print_json(comparison.to_json())
    else:
        from cli.comparison_text import describe_comparison

        show(describe_comparison(comparison))
    raise typer.Exit(comparison.gate.exit_code if comparison.gate else 0)


def parse_limit(text: str) -> float:
    """`3%` as 0.03. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text.strip())
    limit = float(found[1]) / 100 if found else None
    if limit is None or limit >= 1:
        raise UsageError(
            f"{text!r} is not a limit",
            where="--fail-above",
            expected="per cent of A's throughput, from 0% to below 100%, such as 3%",
        )
    return limit
