"""Runs go into archives of limited size and come back whole, without what no diagnosis needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import run_archive


def kept_run(folder: Path, size: int) -> Path:
    (folder / "run" / "events").mkdir(parents=True)
    (folder / "run" / "events" / "trainer-1.arrow").write_bytes(bytes(size))
    (folder / "truth.json").write_text("{}")
    (folder / "case.json").write_text(f'"{folder.name}"')
    (folder / "conversations.jsonl").write_text("large")
    return folder


def test_what_is_packed_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_archive, "archive_bytes", 1000)
    runs = [kept_run(tmp_path / "runs" / name, size) for name, size in (("a", 600), ("b", 300), ("c", 600))]
    archives = run_archive.pack(runs, tmp_path / "kept")
    assert [path.name for path in archives] == ["kept-1.tar.gz", "kept-2.tar.gz"]
    for archive in archives:
        run_archive.unpack(archive, tmp_path / "back")
    back = {str(p.relative_to(tmp_path / "back")) for p in (tmp_path / "back").rglob("*") if p.is_file()}
    parts = ("run/events/trainer-1.arrow", "truth.json", "case.json")
    assert back == {f"{name}/{part}" for name in "abc" for part in parts}
    assert (tmp_path / "back" / "b" / "run" / "events" / "trainer-1.arrow").read_bytes() == bytes(300)


def test_no_runs_are_no_archive(tmp_path: Path) -> None:
    assert run_archive.pack([], tmp_path / "kept") == []
