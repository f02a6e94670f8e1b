"""`dflash-tune`: find the fastest configuration of this machine, or read what a search has found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import Program, print_json, say, show
from cli.install_check import check_install
from cli.options import AsJson, ConfigFile, DataFile, Settings, configure
from cli.study_text import SearchTalk, summarise_study
from dflash.contract.errors import RunError

if TYPE_CHECKING:
    from autotune.result import StudyResult

program = Program("dflash-tune", "Search the configuration that trains the most tokens per second.")
default_study = Path("dflash-study")


@program.app.command("search")
def search(
    config_file: ConfigFile = None,
    settings: Settings = None,
    data: DataFile = None,
    study_dir: Annotated[
        Path, typer.Option(help="Where the study lives. The same line goes on with it.", metavar="DIR")
    ] = default_study,
    trials: Annotated[int, typer.Option(min=1, help="Configurations to try, over all calls.")] = 8,
    repeats: Annotated[int, typer.Option(min=0, help="Further runs of each contender.")] = 2,
    seconds: Annotated[
        float, typer.Option(min=1, max=86400, help="Training time of a trial.", metavar="S")
    ] = 12.0,
    as_json: AsJson = False,
) -> None:
    """Find the fastest configuration.

    Measures configurations in real training runs, starting from CONFIG, and recommends one. Only knobs
    that leave the training signal alone are varied: split, token budget, transport, depths.
    """
    check_install()
    base = configure(config_file, settings, {"data.path": data})
    from autotune import search as searching
    from autotune.default_space import default_space
    from autotune.effort import Effort
    from autotune.machine import read_machine
    from autotune.runner import RecordedRunner

    machine = read_machine()
    plan = searching.SearchPlan(
        study_dir=study_dir,
        space=default_space(base, machine),
        machine=machine,
        effort=Effort(trials=trials, repeats=repeats, seconds=seconds),
    )
    talk = SearchTalk(plan, say)
    try:
        result = searching.search(plan, RecordedRunner(), talk.tell)
    except KeyboardInterrupt:
        say(f"stopped; the same line goes on. `dflash-tune show {study_dir}` shows what is known")
        raise
    _present(result, as_json)
    if result.best is None:
        raise typer.Exit(1)


@program.app.command("show")
def show_study(
    study_dir: Annotated[Path, typer.Argument(metavar="STUDY", help="A study's directory.")] = default_study,
    as_json: AsJson = False,
) -> None:
    """Show what a study has found.

    Also while its search runs; needs no GPU. Writes the report anew.
    """
    from autotune.result import load_study

    _present(load_study(study_dir), as_json)


def _present(result: StudyResult, as_json: bool) -> None:
    report = _write_report(result.study_dir)
    if as_json:
        paths = {"report": report, "best_toml": result.best_toml}
        print_json(result.to_json() | {name: path and str(path) for name, path in paths.items()})
    else:
        show(summarise_study(result, report))


def _write_report(study_dir: Path) -> Path | None:
    from reports.study_report import write_study_report

    try:
        return write_study_report(study_dir)
    except RunError as error:  # a study on a read-only disk can still be shown
        say(error.render())
        return None
