"""`dflash-profile` records any command, passes its exit code on, and reads runs back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
quick = ("--gpu", "none", "--no-gil")


def strict_json(text: str) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    document: dict[str, object] = json.loads(text, parse_constant=refuse)
    return document


def record(run_command: Run, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        "dflash-profile", "record", *quick, "--run-dir", "r", *options, "--", sys.executable, "-c", code
    )


def test_the_exit_code_is_the_one_of_the_command(run_command: Run, tmp_path: Path) -> None:
    result = record(run_command, "raise SystemExit(7)")
    assert result.returncode == 7, result.stderr
    manifest = json.loads((tmp_path / "r/run.json").read_text())
    assert (manifest["status"], manifest["exit_code"]) == ("failed", 7)
    assert "Traceback" not in result.stderr


def test_a_command_that_tells_nothing_gets_no_invented_verdict(run_command: Run) -> None:
    result = record(run_command, "pass")
    assert result.returncode == 0, result.stderr
    assert "too little of the run was seen to name a cause" in result.stdout.lower()
    assert "report " in result.stdout


def test_json_is_alone_on_stdout_whatever_the_command_prints(run_command: Run) -> None:
    result = record(run_command, "print('chatter')", "--json")
    document = strict_json(result.stdout)
    assert "chatter" in result.stderr
    assert (document["status"], document["exit_code"], document["run"]) == ("finished", 0, "r")
    assert Path(str(document["report"])).name == "report.html"


def test_the_command_keeps_its_own_options(run_command: Run) -> None:
    result = run_command(
        "dflash-profile",
        "record",
        *quick,
        sys.executable,
        "-c",
        "import sys; print(sys.argv[1:])",
        "--json",
        "-h",
    )
    assert "['--json', '-h']" in result.stdout


def test_the_time_limit_ends_the_command(run_command: Run) -> None:
    result = record(run_command, "import time; time.sleep(60)", "--time-limit", "0.5")
    assert result.returncode == 124, result.stderr
    assert "time limit of 0.5 s" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["record"], "CMD"),
        (["record", "--", "no-such-program"], "no-such-program"),
        (["record", "--gpu", "replay:missing.json", "--", "true"], "missing.json"),
        (["record", "--gpu", "some", "--", "true"], "some"),
        (["record", "--time-limit", "0", "--", "true"], "--time-limit"),
        (["diagnose", "nowhere"], "nowhere"),
        (["diagnose", "nowhere", "--json"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_told_in_one_message(
    run_command: Run, tmp_path: Path, arguments: list[str], named: str
) -> None:
    result = run_command("dflash-profile", *arguments)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [], "a refused request leaves nothing behind"


def test_a_recorded_run_is_diagnosed_and_reported(run_command: Run, tmp_path: Path) -> None:
    record(run_command, "pass")
    diagnosis = strict_json(run_command("dflash-profile", "diagnose", "r", "--json").stdout)
    assert diagnosis == json.loads((tmp_path / "r/findings.json").read_text())
    spoken = run_command("dflash-profile", "diagnose", "r")
    assert spoken.returncode == 0, spoken.stderr
    assert str(diagnosis["headline"]).split()[0] in spoken.stdout
    written = strict_json(run_command("dflash-profile", "report", "r", "--out", "page.html", "--json").stdout)
    assert written == {"run": "r", "report": "page.html"}
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_run_is_diagnosed_without_torch(run_python: Run, run_command: Run) -> None:
    record(run_command, "pass")
    code = (
        "import sys\n"
        "from cli.dflash_profile import program\n"
        "try: program.run(['diagnose', 'r'])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("verdict")
    assert result.stderr.splitlines()[-1] == "False"
