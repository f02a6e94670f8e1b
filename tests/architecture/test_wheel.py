"""What is shipped: exactly the five packages, with their data, and three commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

packages = {"dflash", "profiler", "autotune", "reports", "cli"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built offline from a copy, so that nothing is written into the source tree."""
    root = Path(__file__).parents[2]
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    ignore = shutil.ignore_patterns("__pycache__")
    for package in (*packages, "tests"):
        shutil.copytree(root / package, copy / package, ignore=ignore)
    out = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_top_level_names_are_the_five_packages(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == packages


def test_every_source_file_and_its_data_are_in(wheel: zipfile.ZipFile, repository: Path) -> None:
    expected = {
        path.relative_to(repository).as_posix()
        for package in packages
        for path in (repository / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "dflash/contract/embedded.toml" in expected
    assert expected - set(wheel.namelist()) == set()


def read_metadata(wheel: zipfile.ZipFile, name: str) -> str:
    [path] = [n for n in wheel.namelist() if n.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_the_wheel_cannot_be_uploaded_by_accident(wheel: zipfile.ZipFile) -> None:
    assert "Classifier: Private :: Do Not Upload" in read_metadata(wheel, "METADATA")


def test_the_three_commands_are_installed(wheel: zipfile.ZipFile) -> None:
    assert read_metadata(wheel, "entry_points.txt").split("\n")[1:4] == [
        "dflash-profile = cli.start:profile",
        "dflash-train = cli.start:train",
        "dflash-tune = cli.start:tune",
    ]
