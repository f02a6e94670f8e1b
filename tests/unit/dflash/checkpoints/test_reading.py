"""Which checkpoint is meant, and whether it is whole (C100)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.checkpoints.reading import find_checkpoint
from dflash.contract.errors import CheckpointError, DamagedError
from tests.small_checkpoints import write_steps

names = ("model.safetensors", "optimizer.safetensors", "config.json", "state.json")
harms: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-3] + b"\x01" + path.read_bytes()[-2:]),
    "gone": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("written")
    write_steps(run / "checkpoints", 4, "run.keep_checkpoints=3")
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    """A run directory that holds step-2, step-3 and step-4, to be harmed."""
    return Path(shutil.copytree(written, tmp_path / "run"))


@pytest.mark.parametrize("source", ["", "checkpoints", "checkpoints/step-4"])
def test_the_newest_is_meant_unless_one_is_named(written: Path, source: str) -> None:
    found = find_checkpoint(str(written / source))
    assert (found.path, found.damaged, found.steps_lost) == (written / "checkpoints/step-4", (), 0)
    assert find_checkpoint(str(written / "checkpoints/step-3")).manifest.position.step == 3


@pytest.mark.parametrize("name", names)
@pytest.mark.parametrize("harm", harms)
def test_a_damaged_newest_gives_way_to_the_one_before_and_is_named(run: Path, name: str, harm: str) -> None:
    file = run / "checkpoints/step-4" / name
    harms[harm](file)
    found = find_checkpoint(str(run))
    assert (found.path.name, found.steps_lost) == ("step-3", 1)
    (error,) = found.damaged
    assert error.where == str(file)
    assert error.found


@pytest.mark.parametrize("name", names[1:])
def test_one_that_was_named_is_refused_when_it_is_damaged(run: Path, name: str) -> None:
    harms["cut"](run / "checkpoints/step-4" / name)
    with pytest.raises(DamagedError, match="damaged") as caught:
        find_checkpoint(str(run / "checkpoints/step-4"))
    assert caught.value.where == str(run / "checkpoints/step-4" / name)
    assert (caught.value.exit_code, "older" in str(caught.value.remedy)) == (2, True)


def test_who_wants_no_older_one_is_told_of_the_damage(run: Path) -> None:
    harms["flipped"](run / "checkpoints/step-4/model.safetensors")
    with pytest.raises(DamagedError):
        find_checkpoint(str(run), older=False)


def test_every_damaged_one_is_passed_and_counted(run: Path) -> None:
    harms["gone"](run / "checkpoints/step-4/state.json")
    harms["empty"](run / "checkpoints/step-3/model.safetensors")
    found = find_checkpoint(str(run))
    assert (found.path.name, found.steps_lost, len(found.damaged)) == ("step-2", 2, 2)
    harms["cut"](run / "checkpoints/step-2/config.json")
    with pytest.raises(CheckpointError, match="no checkpoint is whole") as caught:
        find_checkpoint(str(run))
    for part in (
        "step-4/state.json: missing",
        "step-3/model.safetensors: an empty file",
        "step-2/config.json",
    ):
        assert part in str(caught.value.found)


def test_another_format_is_not_passed_over(run: Path) -> None:
    state = run / "checkpoints/step-4/state.json"
    state.write_text(json.dumps({"version": 99, "sha256": {}}))
    with pytest.raises(CheckpointError, match="format of another version"):
        find_checkpoint(str(run))


@pytest.mark.parametrize(
    ("name", "found"), [("c100_truncated.pt", "a file of 504 bytes"), ("c100_zero_bytes.pt", "an empty file")]
)
def test_a_file_of_another_trainer_gets_words(data_dir: Path, name: str, found: str) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to resume from") as caught:
        find_checkpoint(str(data_dir / "cases/checkpoint" / name))
    assert caught.value.found == found
    assert "step-N directory" in str(caught.value.expected)


@pytest.mark.parametrize("name", ["c100_truncated.pt", "c100_zero_bytes.pt"])
def test_such_a_file_in_the_place_of_ours_is_damage(data_dir: Path, run: Path, name: str) -> None:
    shutil.copy(data_dir / "cases/checkpoint" / name, run / "checkpoints/step-4/optimizer.safetensors")
    assert find_checkpoint(str(run)).path.name == "step-3"


def test_leftovers_are_never_found(tmp_path: Path, written: Path) -> None:
    shutil.copytree(written / "checkpoints/step-4", tmp_path / "checkpoints/.step-4.123")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_checkpoint(str(tmp_path))


def test_a_run_that_saved_nothing_says_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[run]\nresume = "/runs/before"\n')
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(str(tmp_path))
    assert "resumed from /runs/before" in str(caught.value.remedy)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(str(tmp_path / "nowhere"))
    assert (caught.value.found, caught.value.remedy) == ("no such path", None)
