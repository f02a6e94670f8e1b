"""`dflash-profile`: record a training command from outside, say what limits it, write the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import (
    ceilings_command,
    compare_command,
    doctor_command,
    export_trace_command,
    holder_command,
    import_command,
    links_command,
    live_command,
    report_command,
    whatif_command,
)
from cli.conclusion import conclude, examine_kept
from cli.console import Program, print_json, say, show, stdout_kept_for_result
from cli.diagnosis_text import full_diagnosis, verdict_card
from cli.install_check import check_install
from cli.layout import facts
from cli.links_on_the_spot import NoMeasure
from cli.options import AsJson
from dflash.contract.rundir import new_run_path

program = Program("dflash-profile", "Why is this run slow? Record it, diagnose it, report it.")
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]


@program.app.command("record", context_settings={"allow_interspersed_args": False})
def record_command(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command to record, after --.")],
    run_dir: Annotated[
        Path | None, typer.Option(help="New directory for the run. [default: runs/TIME-HEX]", metavar="DIR")
    ] = None,
    no_gil: Annotated[bool, typer.Option("--no-gil", help="Do not sample who waits for the GIL.")] = False,
    gpu: Annotated[
        str, typer.Option(help="GPU sensors: nvml, none, or replay:FILE (sensors.gpu).", metavar="SENSORS")
    ] = "nvml",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the recorder, such as sensors.gpu."),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.1, help="Stop the command after this time.", metavar="S")
    ] = None,
    no_measure: NoMeasure = False,
    as_json: AsJson = False,
) -> None:
    """Run a command, record, diagnose, report.

    CMD is what trains, such as `dflash-train run`. The exit code is the one of CMD.
    """
    check_install()
    from profiler.recorder import RecordOptions, record
    from profiler.recorder_settings import apply_settings

    options = RecordOptions(gpu=gpu, gil=not no_gil, time_limit_s=time_limit)
    options = apply_settings(options, settings or [])
    run_path = run_dir or new_run_path()
    if as_json:
        with stdout_kept_for_result():
            recording = record(command, run_path, options)
    else:
        recording = record(command, run_path, options)
    if recording.reason is not None:
        say(f"the command {recording.status}: {recording.reason}")
    conclusion = conclude(run_path, measure=not no_measure)
    diagnosis, report = conclusion.diagnosis, conclusion.report
    _say_all(conclusion.troubles)
    if as_json:
        print_json(
            {
                "run": str(run_path),
                "status": recording.status,
                "reason": recording.reason,
                "exit_code": recording.exit_code,
                "diagnosis": diagnosis and diagnosis.to_json(),
                "report": report and str(report),
            }
        )
    else:
        places = [("run", str(run_path)), *([("report", str(report))] if report else [])]
        show(verdict_card(diagnosis, places) if diagnosis else facts(places))
    raise typer.Exit(recording.exit_code)


@program.app.command("diagnose")
def diagnose_run(run: RunPath, no_measure: NoMeasure = False, as_json: AsJson = False) -> None:
    """Say what limits a recorded run.

    Every cause that was considered, with its evidence. Works anywhere, without GPU or torch. Where the run's
    GPUs are here and free, links that are suspected are measured, for some seconds.
    """
    examined, troubles = examine_kept(run, measure=not no_measure)
    diagnosis = examined.diagnosis
    _say_all(troubles)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        show(full_diagnosis(diagnosis))


program.app.command("report")(report_command.report_run)
program.app.command("compare")(compare_command.compare_runs)
program.app.command("whatif")(whatif_command.ask_what_if)
program.app.command("import")(import_command.import_file)
program.app.command("links")(links_command.measure_links)
program.app.command("ceilings")(ceilings_command.measure_ceilings)
program.app.command("doctor")(doctor_command.check_up)
program.app.command("export-trace")(export_trace_command.export_run)
program.app.command("holder")(holder_command.show_holder)
program.app.command("live", cls=live_command.CommandAfterDashes)(live_command.watch_live)


def _say_all(troubles: tuple[str, ...]) -> None:
    for trouble in troubles:
        say(trouble)
