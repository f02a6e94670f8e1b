"""`dflash-tune`: find the fastest configuration of this machine, or read what a search has found."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import search_command, study_commands
from cli.console import Program
from cli.options import AsJson
from cli.search_options import Study, default_study
from cli.study_presentation import present
from dflash.contract.errors import UsageError

program = Program("dflash-tune", "Search the configuration that trains the most tokens per second.")
formats = ("text", "md")


program.app.command("search")(search_command.search)
program.app.command("resume")(search_command.resume)
program.app.command("export")(study_commands.export_trial)
program.app.command("replay")(study_commands.replay_trial)


@program.app.command("show")
def show_study(
    study_dir: Study = default_study,
    form: Annotated[
        str, typer.Option("--format", help="text, or md: Markdown for an issue.", metavar="text|md")
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """Show what a study has found.

    Also while its search runs; needs no GPU. Writes the report anew.
    """
    if form not in formats:
        raise UsageError(f"no study is shown as {form!r}", where="--format", expected="text or md")
    from autotune.result import load_study

    present(load_study(study_dir), as_json=as_json, as_markdown=form == "md")
