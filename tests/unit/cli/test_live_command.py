"""`dflash-profile live` picks screen, lines or one document, records on request, and stops no trainer."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.contract.rundir import RunDir
from tests.played_pipeline import play

Call = Callable[..., tuple[int, str, str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


def strict_json(text: str) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    document: dict[str, object] = json.loads(text, parse_constant=refuse)
    return document


def test_json_is_one_strict_document_with_the_views_parts(call: Call, tmp_path: Path) -> None:
    play(tmp_path / "r", windows=20)
    code, out, err = call("dflash-profile", "live", "r", "--once", "--json")
    document = strict_json(out)
    assert (code, err) == (0, "")
    assert set(document) >= {
        "schema",
        "run",
        "verdict",
        "pace",
        "stages",
        "queues",
        "gpus",
        "threads",
        "memory",
    }
    assert document["schema"] == 1
    assert not (tmp_path / "r/report.html").exists(), "a look leaves nothing behind"


def test_once_prints_the_view_and_leaves(call: Call, tmp_path: Path) -> None:
    play(tmp_path / "r", windows=20)
    RunDir(tmp_path / "r").update(status="running")
    code, out, _ = call("dflash-profile", "live", "r", "--once")
    assert code == 0
    for heading in ("VERDICT", "TOKENS PER SECOND", "PIPELINE", "GPUS", "THREADS", "HOST MEMORY", "EVENTS"):
        assert heading in out


def test_lines_end_with_the_run_and_name_its_report(call: Call, tmp_path: Path) -> None:
    play(tmp_path / "r", windows=20)
    code, out, _ = call("dflash-profile", "live", "r", "--plain")
    assert code == 0
    assert re.search(r"^q_pre=\d/8 q_hs=\d/2 step 20 .*Ktok/s", out, re.MULTILINE)
    assert "r/report.html" in out
    assert (tmp_path / "r/report.html").exists()


def test_without_a_terminal_there_are_lines_without_escape_codes(run_command: Run, tmp_path: Path) -> None:
    play(tmp_path / "[red]r[/x]", windows=12)
    result = run_command("dflash-profile", "live", "[red]r[/x]", FORCE_COLOR="1")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert "[red]r[/x]/report.html" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere"),
        (["999999999"], "no such process"),
        ([], "no run to watch"),
        (["r", "--", "true"], "-- CMD"),
        (["--json", "--", "true"], "-- CMD"),
        (["--"], "no command"),
        (["--", "no-such-program"], "no-such-program"),
    ],
)
def test_a_mistake_is_told_in_one_message(call: Call, arguments: list[str], named: str) -> None:
    code, out, err = call("dflash-profile", "live", *arguments)
    assert (code, out) == (2, "")
    assert named in err


def test_a_command_is_recorded_and_watched_to_its_end(run_command: Run, tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-S",
        "-c",
        "import time; print('chatter'); time.sleep(1); raise SystemExit(7)",
    )
    result = run_command("dflash-profile", "live", "--plain", "--", *command)
    assert result.returncode == 7, result.stderr
    [run] = (tmp_path / "runs").glob("*/run.json")
    assert json.loads(run.read_text())["exit_code"] == 7
    assert f"{run.parent.relative_to(tmp_path)}/report.html" in result.stdout
    [log] = (tmp_path / "runs").glob("*.log")
    assert log.name in result.stderr
    assert "chatter" in log.read_text()


def test_an_interrupt_leaves_the_recorded_command_running_and_says_so(
    tmp_path: Path, repository: Path
) -> None:
    command = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    live = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            "from cli.start import profile; profile()",
            "live",
            "--plain",
            "--",
            *command,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert live.stdout is not None
    live.stdout.readline()  # the first line is there, so it watches
    os.killpg(live.pid, signal.SIGINT)
    _, err = live.communicate(timeout=60)
    assert live.returncode == 130
    stop = re.search(r"the run goes on.*kill -INT (\d+)", err)
    assert stop is not None, err
    [run] = (tmp_path / "runs").glob("*/run.json")
    assert json.loads(run.read_text())["status"] == "running"
    os.kill(int(stop[1]), signal.SIGINT)
    deadline = time.monotonic() + 60
    while json.loads(run.read_text())["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)


def screen(path: Path, repository: Path, keys: bytes, **environment: str) -> tuple[int, bytes]:
    """What the command writes to a terminal of its own, from the first picture to the end after `keys`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"PYTHONPATH": str(repository), "TERM": "xterm-256color", **environment})
        code = "from cli.start import profile; profile()"
        os.execv(sys.executable, [sys.executable, "-P", "-c", code, "live", str(path)])
    written, pressed, deadline = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        try:
            data = os.read(terminal, 65536) if ready else b""
        except OSError:
            break  # the other end is closed
        written += data
        if not pressed and b"goes on" in written:
            os.write(terminal, keys)
            pressed = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written


@pytest.mark.parametrize(("keys", "environment"), [(b"q", {}), (b"\x03", {"NO_COLOR": "1"})])
def test_on_a_terminal_it_draws_and_leaves_by_key_with_a_word(
    tmp_path: Path, repository: Path, keys: bytes, environment: dict[str, str]
) -> None:
    path = play(tmp_path / "r", windows=20)
    RunDir(path).update(status="running")
    code, written = screen(path, repository, keys, **environment)
    assert code == 0
    assert b"\x1b[?1049h" in written, "it draws on a screen of its own"
    assert b"\x1b[?1049l" in written, "and gives the old one back"
    assert b"the run goes on" in written
    assert b"Ktok/s" in written
    in_colour = re.search(rb"\x1b\[[0-9;]*(38|48);[25];", written) is not None
    assert in_colour is ("NO_COLOR" not in environment)


def test_a_dumb_terminal_gets_lines(tmp_path: Path, repository: Path) -> None:
    path = play(tmp_path / "r", windows=20)
    code, written = screen(path, repository, b"", TERM="dumb")
    assert code == 0
    assert b"\x1b" not in written
    assert b"report.html" in written
