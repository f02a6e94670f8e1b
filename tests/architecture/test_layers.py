"""The import contracts in pyproject.toml hold, and each of them can break."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

packages = ("dflash", "profiler", "autotune", "reports", "cli")


def check_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = "import sys; from importlinter.cli import lint_imports_command as c; c(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache", "--no-logo"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def copied_tree(repository: Path, tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    for package in packages:
        shutil.copytree(repository / package, tmp_path / package, ignore=ignore)
    shutil.copy(repository / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_keeps_every_contract(repository: Path) -> None:
    result = check_imports(repository)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "5 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("profiler/planted.py", "import autotune", "Layers"),
        ("dflash/planted.py", "import profiler", "Layers"),
        ("dflash/contract/planted.py", "import dflash.brand_new", "stands on its own"),
        ("dflash/contract/planted.py", "import torch", "Only the trainer process"),
        ("reports/planted.py", "import transformers", "Only the trainer process"),
        ("autotune/planted.py", "import dflash.brand_new", "Of dflash"),
        ("cli/planted.py", "from dflash import brand_new", "Of dflash"),
    ],
)
def test_a_planted_import_breaks_its_contract(copied_tree: Path, module: str, line: str, broken: str) -> None:
    # brand_new stands for the module somebody adds tomorrow: no list names it.
    (copied_tree / "dflash/brand_new.py").write_text('"""New."""\n')
    (copied_tree / module).write_text(f'"""Planted."""\n{line}\n')
    result = check_imports(copied_tree)
    assert result.returncode == 1, result.stdout + result.stderr
    verdicts = [row for row in result.stdout.splitlines() if " BROKEN" in row]
    assert any(broken in row for row in verdicts), result.stdout
