"""Help and refusals come at once: no command imports a heavy library before it needs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
programs = ("dflash-train", "dflash-profile", "dflash-tune")
heavy = ("torch", "transformers", "pandas", "numpy", "plotly", "optuna", "pyarrow", "rich", "textual")


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
def test_no_escape_codes_whatever_the_environment_wishes(
    run_python: Run, environment: dict[str, str]
) -> None:
    code = (
        "import importlib\n"
        f"for name in {programs!r}:\n"
        "    program = importlib.import_module('cli.' + name.replace('-', '_')).program\n"
        "    for arguments in (['--help'], ['--nope'], ['no-such-command'], ['run', 'missing.toml']):\n"
        "        try: program.run(arguments)\n"
        "        except SystemExit: pass\n"
    )
    result = run_python(code, environment=environment)
    assert result.returncode == 0, result.stderr
    assert "Usage: dflash-tune" in result.stdout
    assert "No such option: --nope" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize("name", programs)
def test_called_with_nothing_it_explains_itself(run_command: Run, name: str) -> None:
    result = run_command(name)
    assert "Usage: " + name in result.stdout + result.stderr
