"""Brackets, spaces, dashes, newlines and devices as paths: shown in full, refused in words, never lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.contract.config import load_config
from dflash.contract.rundir import printable

cases = Path(__file__).parents[2] / "data/cases/cli/c091_paths.txt"
written = cases.read_text(encoding="utf-8").splitlines()
paths = [*written, *(path.replace("\\n", "\n") for path in written if "\\n" in path), "runs/\x1b[31mred"]
devices = ("/dev/null", "/proc/self/mem")

Call = Callable[..., tuple[int, str, str]]


def test_the_cases_are_there() -> None:
    assert len(paths) >= 12
    assert "runs/trailing " in paths


@pytest.mark.parametrize("path", [p for p in paths if p != "/dev/null"])
def test_configuration_that_cannot_be_read(call: Call, path: str) -> None:
    code, _, err = call("dflash-train", "run", path)
    assert code == 2
    assert printable(path) in err


@pytest.mark.parametrize("path", [p for p in paths if p not in devices])
def test_run_directory_is_made_under_exactly_that_name(call: Call, path: str, tmp_path: Path) -> None:
    code, _, err = call("dflash-train", "run", "--run-dir", path)
    assert code == 99, err
    assert (tmp_path / path / "config.toml").is_file()


@pytest.mark.parametrize("path", devices)
def test_a_device_is_no_run_directory(call: Call, path: str) -> None:
    code, _, err = call("dflash-train", "run", "--run-dir", path)
    assert code == 2
    assert path in err


@pytest.mark.parametrize("path", [p for p in paths if p not in devices])
def test_data_path_reaches_the_trainer_unchanged(call: Call, path: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("{}")
    assert call("dflash-train", "run", "--run-dir", "r", "--data", path)[0] == 99
    assert load_config(tmp_path / "r/config.toml").data.path == str(tmp_path / path)


@pytest.mark.parametrize("path", [*(p for p in paths if p not in devices), "n" * 300])
def test_data_that_is_not_there_is_named(call: Call, path: str, tmp_path: Path) -> None:
    for program, command in (
        ("dflash-train", "run"),
        ("dflash-train", "check-data"),
        ("dflash-tune", "search"),
    ):
        code, out, err = call(program, command, "--data", path)
        assert (code, out) == (2, "")
        assert printable(str(tmp_path / path)) in err


@pytest.mark.parametrize("path", paths)
def test_what_is_no_run_or_study_is_named(call: Call, path: str) -> None:
    for program, *arguments in (
        ("dflash-profile", "diagnose", path),
        ("dflash-profile", "report", path),
        ("dflash-tune", "show", path),
        ("dflash-tune", "show", path, "--json"),
    ):
        code, out, err = call(program, *arguments)
        assert (code, out) == (2, "")
        assert printable(path) in err


@pytest.mark.parametrize("path", devices)
def test_a_device_is_no_study_directory(call: Call, path: str) -> None:
    code, _, err = call("dflash-tune", "search", "--study-dir", path)
    assert code == 2
    assert Path(path).name in err
