"""`dflash-profile live`: watch a run while it runs, on a screen, line by line, or as one document.

Attaches by reading the run's directory, so the trainer does not notice; leaving stops nothing. Knows nothing
of panels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from cli.conclusion import Conclusion, conclude
from cli.console import print_json, say, show
from cli.diagnosis_text import verdict_card
from cli.install_check import check_install
from cli.layout import facts
from dflash.contract.errors import DFlashError, UsageError
from dflash.contract.rundir import RunDir, new_run_path

if TYPE_CHECKING:
    from cli.live_watch import Watch

line_every_s: Final = 5.0
snapshot_width: Final = 100
start_limit_s: Final = 60.0  # for a recorder to make its run directory
_after_dashes = "dflash.live.command"


class CommandAfterDashes(TyperCommand):
    """Keeps what stands after `--` apart: `live train.sh` names a run, `live -- train.sh` a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta[_after_dashes] = args[cut + 1 :]
            args = args[:cut]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- CMD...]"]


def watch_live(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PID",
            help="A run's directory, or the pid of its trainer or recorder. [default: the newest in runs/]",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show what is there now and leave.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="A line every few seconds instead of a screen.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document of now on stdout, as with --once.")
    ] = False,
) -> None:
    """Watch a run while it runs.

    Reads the run's directory; the trainer goes on untouched, also after q or Ctrl-C. With -- CMD, records
    that command and shows it at once. When the run ends, writes its report.
    """
    command: list[str] | None = context.meta.get(_after_dashes)
    if command is not None:
        raise typer.Exit(_record_and_watch(command, target, plain=plain, odd=once or as_json))
    from cli.live_watch import Watch
    from profiler.live.attach import find_run

    watch = Watch(find_run(target))
    if as_json:
        print_json(watch.look().to_json())
    elif once:
        from cli.live_text import snapshot

        show(snapshot(watch.look(), snapshot_width))
    else:
        _watch(watch, plain=plain)


def _record_and_watch(command: list[str], target: str | None, *, plain: bool, odd: bool) -> int:
    """Start `dflash-profile record` beside the view; its exit code, or 0 when it was left running."""
    if target is not None or odd or not command:
        raise UsageError(
            "-- CMD starts a run and stays with it",
            found="no command" if not command else target or "--once or --json",
            expected="`dflash-profile live [--plain] -- CMD`",
        )
    check_install()
    run_path = new_run_path()
    log_path = run_path.with_name(run_path.name + ".log")
    recorder = _start_recorder(command, run_path, log_path)
    from cli.live_watch import Watch

    _watch(Watch(run_path), plain=plain)
    code = recorder.poll() if _is_running(run_path) else recorder.wait()
    say(f"output of the command: {log_path}")
    return 0 if code is None else code


def _start_recorder(command: list[str], run_path: Path, log_path: Path) -> subprocess.Popen[bytes]:
    """A recorder that the terminal's Ctrl-C and end do not reach. Raises UsageError if it gives up."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    start = "from cli.start import profile; profile()"
    with log_path.open("wb") as log:
        recorder = subprocess.Popen(
            [sys.executable, "-P", "-c", start, "record", "--run-dir", str(run_path), "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + start_limit_s
    while not RunDir(run_path).manifest_path.exists():
        if recorder.poll() is not None or time.monotonic() > deadline_s:
            told = log_path.read_text(encoding="utf-8", errors="replace").strip()
            raise UsageError("the recording did not start", where=str(log_path), found=told or "no word")
        time.sleep(0.05)
    return recorder


def _watch(watch: Watch, *, plain: bool) -> None:
    """Stay with the run until it is over or somebody leaves; then the report, or how to come back."""
    conclusion = _watch_lines(watch) if plain or not _has_screen() else _watch_screen(watch)
    if conclusion is None and not _is_running(watch.path):  # it ended since the last look
        conclusion = conclude(watch.path)
    if conclusion is None:
        say(_left_running(watch.path))
        return
    for trouble in conclusion.troubles:
        say(trouble)
    places = [("run", str(watch.path)), *([("report", str(conclusion.report))] if conclusion.report else [])]
    show(verdict_card(conclusion.diagnosis, places) if conclusion.diagnosis else facts(places))


def _watch_screen(watch: Watch) -> Conclusion | None:
    """None when somebody left before the end."""
    from cli.live_view import LiveApp

    # Without colours Textual would still paint greys, unless it is to use the terminal's own colours.
    app = LiveApp(watch, ansi_color=True if os.environ.get("NO_COLOR") else None)
    app.run()
    if app.trouble is not None:
        raise app.trouble
    return app.conclusion


def _watch_lines(watch: Watch) -> Conclusion:
    try:
        return _say_lines(watch)
    except KeyboardInterrupt:
        say(_left_running(watch.path))
        raise


def _say_lines(watch: Watch) -> Conclusion:
    """A line every few seconds until the run is over; the verdict in full whenever it is another one."""
    from cli.live_text import live_line, live_verdict

    said: str | None = None
    while True:
        view = watch.look()
        if (now := view.verdict.cause or view.verdict.mood) != said:
            show(f"  {live_verdict(view)}")
            said = now
        show(live_line(view))
        if view.run.over:
            return conclude(watch.path)
        time.sleep(max(line_every_s, watch.interval_s))


def _has_screen() -> bool:
    """Whether there is a terminal that can be drawn on."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return (
        all(stream.isatty() for stream in streams)
        and os.environ.get("TERM", "dumb") != "dumb"
        and encoding == "utf8"
    )


def _is_running(run_path: Path) -> bool:
    from profiler.run_status import effective_status

    return effective_status(RunDir(run_path).manifest()).status in ("running", "unknown")


def _left_running(run_path: Path) -> str:
    """What to know after leaving."""
    from profiler.run_status import pid_to_signal

    try:
        pid = pid_to_signal(RunDir(run_path).manifest())
    except DFlashError:
        pid = None
    stop = f"; to stop it: kill -INT {pid}" if pid else ""
    return f"the run goes on; to see it again: dflash-profile live {run_path}{stop}"
