"""How a checkpoint's directory comes to its name, and what becomes of leftovers."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dflash.checkpoints.files import (
    facts_of_files,
    remove_leftovers,
    remove_older,
    set_aside,
    step_directories,
    verify_files,
    write_whole,
)
from dflash.contract.errors import DamagedError


def fill(directory: Path) -> None:
    (directory / "a").write_bytes(b"first")
    (directory / "b").write_bytes(b"second")


def leave(directory: Path, name: str) -> Path:
    """What a killed writer leaves."""
    leftover = directory / name
    leftover.mkdir(parents=True)
    (leftover / "a").write_bytes(b"fir")
    return leftover


def test_everything_is_on_disk_before_the_name_is_there_and_the_name_before_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[tuple[str, str]] = []
    sync, rename = os.fsync, Path.rename

    def note_sync(descriptor: int) -> None:
        happened.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        sync(descriptor)

    def note_rename(path: Path, to: Path) -> Path:
        happened.append(("rename", to.name))
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    temporary = f".step-3.{os.getpid()}"
    write_whole(tmp_path / "kept", 3, fill)
    assert sorted(happened[:2]) == [("sync", "a"), ("sync", "b")]
    assert happened[2:] == [("sync", temporary), ("rename", "step-3"), ("sync", "kept")]


def test_what_cannot_be_filled_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    write_whole(tmp_path, 3, fill)

    def fail(directory: Path) -> None:
        assert [path.name for path in step_directories(tmp_path)] == ["step-3"]
        fill(directory)
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path, 4, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path, 3, fill)
    write_whole(tmp_path, 3, lambda directory: (directory / "c").touch())
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["step-3", "step-3/c"]


@pytest.mark.parametrize("name", [".step-9.123", ".step-2.77.old"])
def test_leftovers_go_unless_somebody_writes_there(tmp_path: Path, name: str) -> None:
    leftover = leave(tmp_path, name)
    writes = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(writes, fcntl.LOCK_EX)
        assert remove_leftovers(tmp_path) == []
        assert leftover.exists()
    finally:
        os.close(writes)  # as the system does for a process that was killed
    assert remove_leftovers(tmp_path) == [name]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", [".step-notes", ".step-9", ".step-9.123.mine", ".step-9.old", ".step-9.1.old.2"]
)
def test_what_no_writer_could_have_left_stays(tmp_path: Path, name: str) -> None:
    theirs = leave(tmp_path, name)
    assert remove_leftovers(tmp_path) == []
    write_whole(tmp_path, 1, fill)
    assert theirs.is_dir()


def test_leftovers_go_before_the_next_is_written_and_are_never_a_step(tmp_path: Path) -> None:
    leave(tmp_path, ".step-9.123")
    assert step_directories(tmp_path) == []
    write_whole(tmp_path, 1, fill)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_where_nothing_is_nothing_is_removed(tmp_path: Path) -> None:
    assert remove_leftovers(tmp_path / "not there") == []


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 100, 11):
        write_whole(tmp_path, step, fill)
    (tmp_path / "step-by-step.txt").touch()  # somebody's own
    remove_older(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-100", "step-11", "step-by-step.txt"]


def test_one_that_is_being_removed_is_no_step_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write_whole(tmp_path, step, fill)
    steps: list[list[str]] = []
    monkeypatch.setattr(
        "shutil.rmtree", lambda path, **_: steps.append([p.name for p in step_directories(tmp_path)])
    )
    remove_older(tmp_path, 1)
    assert steps == [["step-2"]]


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b""), "an empty file"),
        (lambda path: path.write_bytes(b"seco"), "4 bytes"),
        (lambda path: path.write_bytes(b"secone"), "6 bytes, sha256"),
        (lambda path: (path.unlink(), path.mkdir()), "bytes"),
    ],
)
def test_a_file_that_is_not_as_it_was_written_is_named(tmp_path: Path, harm, found: str) -> None:
    path = write_whole(tmp_path, 1, fill)
    facts = facts_of_files(path)
    verify_files(path, facts)
    harm(path / "b")
    with pytest.raises(DamagedError) as caught:
        verify_files(path, facts)
    assert caught.value.where == str(path / "b")
    assert str(caught.value.found).endswith(found) or str(caught.value.found).startswith(found)


def test_what_is_set_aside_is_no_step_and_still_there(tmp_path: Path) -> None:
    assert set_aside(write_whole(tmp_path, 1, fill)).is_dir()
    set_aside(write_whole(tmp_path, 1, fill))
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.step-1"]
