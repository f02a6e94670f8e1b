"""The one place that renders errors, talks, and ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.console import Program, print_json, say, show, stdout_kept_for_result
from dflash.contract.errors import DFlashError, UsageError

nasty = "[/red] list[str] [bold]x[/bold] runs/[/bold]/x.jsonl"


def program_that(action: Callable[[], object]) -> Program:
    program = Program("dflash-test", "A program for tests.")

    @program.app.command("go")
    def go() -> None:
        """Do it."""
        action()

    return program


def raising(error: BaseException) -> Callable[[], object]:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [(DFlashError("it broke"), 1), (UsageError("not like this"), 2), (KeyboardInterrupt(), 130)],
)
def test_exit_code_tells_the_kind_of_failure(error: BaseException, code: int) -> None:
    with pytest.raises(SystemExit) as exit_:
        program_that(raising(error)).run(["go"])
    assert exit_.value.code == code


def test_success_exits_zero() -> None:
    with pytest.raises(SystemExit) as exit_:
        program_that(lambda: None).run(["go"])
    assert exit_.value.code == 0


def test_error_is_shown_in_full_on_stderr_only(capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError(nasty, where=nasty, found=nasty, expected=nasty, remedy=nasty)
    with pytest.raises(SystemExit):
        program_that(raising(error)).run(["go"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"dflash-test: {error.render()}\n"
    assert err.count(nasty) == 5


def test_unexpected_error_is_one_message_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        program_that(raising(ZeroDivisionError(nasty))).run(["go"])
    err = capsys.readouterr().err
    assert exit_.value.code == 1
    assert err.startswith(f"dflash-test: ZeroDivisionError: {nasty}\n")
    assert "this is a bug" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program_that(raising(ZeroDivisionError("x"))).run(["--debug", "go"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_unknown_option_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        program_that(lambda: None).run(["go", "--nope"])
    assert exit_.value.code == 2
    assert "--nope" in capsys.readouterr().err


def test_control_characters_cannot_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2Jb")
    show("a\x1b]0;title\x07b")
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert err == "a\\x1b[2Jb\n"


def test_json_is_strict() -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"x": float("nan")})


def test_json_survives_a_locale_without_unicode(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    told = {"path": "ünïcode/日本" + "x" * 300}
    code = f"from cli.console import print_json; print_json({told!a})"  # it may be read as ASCII
    result = run_python(code, environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert json.loads(result.stdout) == told


def test_text_survives_a_locale_without_unicode(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = "from cli.console import show; show('\\xb5 and \\udcff')"
    result = run_python(code, environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0
    assert result.stdout == "\\xb5 and \\udcff\n"


def test_a_reader_that_leaves_ends_it_quietly(repository: Path, tmp_path: Path) -> None:
    code = (
        "from cli.console import print_json, show\n"
        "for _ in range(2000): print_json(list(range(1000)))\n"
        "show('the end')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"[\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_children_cannot_spoil_the_result(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = (
        "import subprocess, sys\n"
        "from cli.console import print_json, stdout_kept_for_result\n"
        "with stdout_kept_for_result():\n"
        "    subprocess.run([sys.executable, '-c', 'print(\"noise\")'])\n"
        "    print('more noise')\n"
        "print_json({'result': 1})"
    )
    result = run_python(code)
    assert json.loads(result.stdout) == {"result": 1}
    assert result.stderr == "noise\nmore noise\n"


def test_stdout_comes_back_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), stdout_kept_for_result():
        raise ZeroDivisionError
    show("visible")
    assert capfd.readouterr().out == "visible\n"
