"""`dflash-profile report`: one HTML file for people, or Markdown to paste into an issue tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from cli.conclusion import examine_here, examine_kept
from cli.console import print_json, say, show
from cli.links_on_the_spot import NoMeasure
from cli.options import AsJson
from dflash.contract.errors import UsageError

formats: Final = ("html", "md")


def report_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. [default: RUN/report.html; md: stdout]", metavar="FILE"),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="html: one page. md: Markdown for an issue.", metavar="html|md")
    ] = "html",
    no_measure: NoMeasure = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a recorded run.

    One HTML file that needs no network, with findings.json beside it; or Markdown to paste.
    """
    if form not in formats:
        raise UsageError(
            f"no report is written as {form!r}",
            where="--format",
            expected="html or md; for paper or a picture, print the page from a browser",
        )
    if form == "md":
        _write_markdown(run, out, measure=not no_measure, as_json=as_json)
        return
    from reports.run_report import write_run_report

    examined = examine_here(run, measure=not no_measure)
    if out is None:  # a report elsewhere leaves the run as it is
        examined.diagnosis.save(run)
    path = write_run_report(examined, out)
    if as_json:
        print_json({"run": str(run), "report": str(path)})
    else:
        show(str(path))


def _write_markdown(run_path: Path, out: Path | None, *, measure: bool, as_json: bool) -> None:
    from reports.page import write_page
    from reports.run_markdown import describe_run

    examined, troubles = examine_kept(run_path, measure=measure)
    for trouble in troubles:
        say(trouble)
    body = describe_run(examined)
    if out is not None:
        write_page(out, body)
    if as_json:
        print_json({"run": str(run_path), "report": out and str(out), "markdown": None if out else body})
    else:
        show(str(out) if out is not None else body.rstrip())
