"""A second owner of one of our import names is found before any child starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.install_check import check_install, find_stranger, import_names

Run = Callable[..., subprocess.CompletedProcess[str]]


def plant_distribution(site: Path, name: str, *packages: str) -> None:
    """What pip leaves of a wheel: its packages and their record."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    rows = [f"{package}/__init__.py,," for package in packages]
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    for package in packages:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")


def test_this_installation_is_clean() -> None:
    assert find_stranger() is None
    check_install()


@pytest.mark.parametrize("taken", import_names)
def test_another_owner_of_a_name_is_refused(
    run_command: Run, repository: Path, tmp_path: Path, taken: str
) -> None:
    # Behind ours on the path, so that every import still works, as after pip has merged two wheels.
    plant_distribution(tmp_path / "site", "somebody-else", taken)
    path = f"{repository}{os.pathsep}{tmp_path / 'site'}"
    result = run_command("dflash-train", "run", PYTHONPATH=path)
    assert result.returncode == 2, result.stderr
    assert f"'{taken}'" in result.stderr
    assert "somebody-else" in result.stderr
    assert "environment of its own" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["dflash-train", "dflash-profile", "dflash-tune"])
@pytest.mark.parametrize("taken", ["dflash", "profiler"])
def test_another_package_in_front_of_ours_is_refused(
    run_command: Run, tmp_path: Path, name: str, taken: str
) -> None:
    # As an editable install of ours beside an ordinary one of theirs.
    plant_distribution(tmp_path / "front", "somebody-else", taken)
    result = run_command(name, "--help", PYTHONPATH=str(tmp_path / "front"))
    assert result.returncode == 2, result.stderr
    assert str(tmp_path / "front" / taken) in result.stderr
    assert "Traceback" not in result.stderr


def test_names_beside_ours_do_not_matter(run_python: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    plant_distribution(site, "dflash-something", "dflash_something")
    result = run_python(
        "from cli.install_check import check_install, find_stranger; check_install(); print(find_stranger())",
        environment={"PYTHONPATH": str(site)},
    )
    assert result.stdout == "None\n", result.stderr
