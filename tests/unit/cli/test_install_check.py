"""A second owner of one of our import names is found before any child starts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.install_check import check_install, import_names

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
    check_install()


@pytest.mark.parametrize("taken", import_names)
def test_another_owner_of_a_name_is_refused(run_command: Run, tmp_path: Path, taken: str) -> None:
    # Only the record is planted: after pip merged two wheels, files alone do not tell whose they are.
    site = tmp_path / "site"
    plant_distribution(site, "somebody-else", taken)
    (site / taken / "__init__.py").unlink()
    (site / taken).rmdir()
    result = run_command("dflash-train", "run", PYTHONPATH=str(site))
    assert result.returncode == 2, result.stderr
    assert f"'{taken}'" in result.stderr
    assert "somebody-else" in result.stderr
    assert "environment of its own" in result.stderr
    assert "Traceback" not in result.stderr


def test_another_package_in_front_of_ours_is_refused(run_command: Run, tmp_path: Path) -> None:
    (tmp_path / "front" / "profiler").mkdir(parents=True)
    (tmp_path / "front" / "profiler" / "__init__.py").write_text("")
    result = run_command("dflash-train", "run", PYTHONPATH=str(tmp_path / "front"))
    assert result.returncode == 2, result.stderr
    assert str(tmp_path / "front" / "profiler") in result.stderr


def test_names_beside_ours_do_not_matter(run_python: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    plant_distribution(site, "dflash-something", "dflash_something")
    result = run_python(
        "from cli.install_check import check_install; check_install()",
        environment={"PYTHONPATH": str(site)},
    )
    assert result.returncode == 0, result.stderr
