"""`dflash-train`: train a drafter, export it, or see what data would give and what memory a run would need.

Checks the request without torch, so that a mistake is told at once; then the process becomes the trainer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli import evaluate_command, export_command, regenerate_command
from cli.child import become_trainer, hand_over
from cli.console import Program, show
from cli.install_check import check_install
from cli.options import (
    AsJson,
    ConfigFile,
    DataFile,
    Settings,
    Strict,
    configure,
    find_settings,
    tell_small_default,
)
from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import RunError, UsageError
from dflash.contract.rundir import RunDir, create_run, environment_variable, new_run_path, write_text
from dflash.contract.steps import StepRange

program = Program("dflash-train", "Train a DFlash drafter beside its frozen target, in one process.")


def _print_knobs(wanted: bool) -> None:
    if wanted:
        show("\n".join(describe_knobs()))
        raise typer.Exit


@program.app.command("run")
def run(
    config_file: ConfigFile = None,
    settings: Settings = None,
    data: DataFile = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="New directory for the run. [default: runs/TIME-HEX]", metavar="DIR")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Stop after this many optimizer steps in all (run.max_steps).")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Go on from a run, or from one of its checkpoints (run.resume). Without CONFIG: with the "
            "configuration of that run.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Look at these optimizer steps, counted from 0, with torch.profiler; writes RUN/traces.",
        ),
    ] = None,
    inject: Annotated[
        str | None,
        typer.Option(
            metavar="FAULT:STRENGTH", help="Plant a fault, to try the diagnosis; on logical devices only."
        ),
    ] = None,
    as_json: AsJson = False,
    strict: Strict = None,
    help_knobs: Annotated[  # noqa: ARG001 - its callback does the work
        bool,
        typer.Option("--help-knobs", callback=_print_knobs, is_eager=True, help="List all knobs and leave."),
    ] = False,
) -> None:
    """Train a drafter.

    Without CONFIG: the embedded default, which two CPU cores can carry.
    """
    check_install()
    options = {
        "data.path": data,
        "data.strict": strict,
        "run.max_steps": max_steps,
        "run.resume": resume and str(resume),
    }
    source = config_file or find_settings(resume)
    config = configure(source, settings, options)
    tell_small_default(source, config)
    traced = [] if trace is None else ["--trace", str(StepRange.parse(trace))]
    directory = open_run_directory(run_dir, config)
    planted = [] if inject is None else ["--inject", inject]
    become_trainer(["run", "--run-dir", str(directory), *traced, *planted, *(["--json"] if as_json else [])])


@program.app.command("check-data")
def check_data(
    config_file: ConfigFile = None,
    settings: Settings = None,
    data: DataFile = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens after which documents are cut (data.max_length).")
    ] = None,
    strict: Strict = None,
    as_json: AsJson = False,
) -> None:
    """See what the data would give.

    Reads it as a run would, and tells what would train and what is refused, row by row.
    """
    check_install()
    options = {"data.path": data, "data.max_length": max_length, "data.strict": strict}
    config = configure(config_file, settings, options)
    tell_small_default(config_file, config)
    become_trainer(["check-data", hand_over(config.to_toml()), *(["--json"] if as_json else [])])


@program.app.command("plan")
def plan(
    config_file: ConfigFile = None,
    settings: Settings = None,
    data: DataFile = None,
    as_json: AsJson = False,
) -> None:
    """See what memory a run would need.

    The ledger of every GPU and of the host, largest entries first, from shapes and data alone: no weights are
    read. Exit code 2 when the run cannot fit here.
    """
    check_install()
    config = configure(config_file, settings, {"data.path": data})
    tell_small_default(config_file, config)
    become_trainer(["plan", hand_over(config.to_toml()), *(["--json"] if as_json else [])])


program.app.command("regenerate")(regenerate_command.regenerate)
program.app.command("export")(export_command.export_drafter)
program.app.command("evaluate")(evaluate_command.evaluate_drafter)


def open_run_directory(wanted: Path | None, config: TrainConfig) -> Path:
    """The run directory with `config` in it: `wanted`, the recorder's (which has made it), or a new one."""
    recorded = os.environ.get(environment_variable)
    if recorded is None:
        run = create_run(wanted or new_run_path(), command=["dflash-train", "run"])
    else:
        run = RunDir(Path(recorded))
        if wanted is not None and wanted.resolve() != run.path.resolve():
            raise UsageError(
                "the recorder and --run-dir name different run directories",
                found=f"--run-dir {wanted}",
                expected=f"{environment_variable}={recorded}",
                remedy="give --run-dir to `dflash-profile record` only",
            )
        run.manifest()
    if run.config_path.exists():
        raise RunError("this run directory already has a trainer", where=str(run.config_path))
    write_text(run.config_path, config.to_toml())
    return run.path


def describe_knobs() -> list[str]:
    """Every knob as text: name, permitted values, default, meaning."""
    lines: list[str] = []
    section = ""
    for knob in all_knobs:
        if (own := knob.path.partition(".")[0]) != section:
            lines += ["", f"[{own}]"] if section else [f"[{own}]"]
            section = own
        unit = f" {knob.meta.unit}" if knob.meta.unit else ""
        lines.append(f"  {knob.path} = {knob.default!r}   ({knob.range_text()}{unit})")
        lines.append(f"      {knob.meta.help}")
    return lines
