"""Help and refusals come at once: no command imports a heavy library before it needs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
programs = ("dflash-train", "dflash-profile", "dflash-tune")
heavy = ("torch", "transformers", "pandas", "numpy", "plotly", "optuna", "pyarrow", "rich")


@pytest.mark.parametrize("name", programs)
def test_help_imports_nothing_heavy(run_python: Run, name: str) -> None:
    module = name.replace("-", "_")
    code = (
        "import json, sys\n"
        f"from cli.{module} import program\n"
        "for arguments in (['--help'], *([c.name, '--help'] for c in program.app.registered_commands)):\n"
        "    try: program.run(arguments)\n"
        "    except SystemExit as end: assert not end.code, arguments\n"
        f"print(json.dumps([n for n in {heavy!r} if n in sys.modules]), file=sys.stderr)"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stderr.splitlines()[-1]) == []


@pytest.mark.parametrize("environment", [{"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("name", programs)
def test_no_escape_codes_whatever_the_environment_wishes(
    run_command: Run, name: str, environment: dict[str, str]
) -> None:
    for arguments in (["--help"], ["--nope"], ["no-such-command"]):
        result = run_command(name, *arguments, **environment)
        assert "\x1b" not in result.stdout + result.stderr
        assert result.returncode == (0 if arguments == ["--help"] else 2)


@pytest.mark.parametrize("name", programs)
def test_called_with_nothing_it_explains_itself(run_command: Run, name: str) -> None:
    result = run_command(name)
    assert "Usage: " + name in result.stdout + result.stderr
