"""Entries that appear whole or not at all, and what became of them on the disk."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dflash.contract.errors import ConfigError
from dflash.data.token_cache import (
    DamagedEntryError,
    Entry,
    TokenCache,
    cache_root,
    key_of,
    manifest_name,
    unused_days,
)

parts = {"rows": "a" * 64, "data.max_length": 256}


@pytest.fixture
def cache(tmp_path: Path) -> TokenCache:
    return TokenCache.open(tmp_path / "cache")


def write(cache: TokenCache, text: bytes = b"documents", *, key: dict[str, object] | None = None) -> Entry:
    with cache.writing(key or parts) as draft:
        draft.documents.write(text)
        draft.refused.write(b"refused")
        return draft.publish({"files": ["rows.jsonl"], "share": 0.1})


def contents(entry: Entry | None) -> tuple[bytes, bytes] | None:
    return None if entry is None else (entry.documents.to_pybytes(), entry.refused.to_pybytes())


def names(cache: TokenCache) -> list[str]:
    return sorted(path.name for path in cache.directory.iterdir())


def test_what_was_published_is_found_again(cache: TokenCache) -> None:
    assert cache.find(parts) is None
    written = write(cache)
    found = cache.find(parts)
    assert found is not None
    assert contents(found) == contents(written) == (b"documents", b"refused")
    assert found.facts == written.facts == {"files": ["rows.jsonl"], "share": 0.1}
    assert names(cache) == [key_of(parts)]
    assert found.size_bytes == 16
    assert cache.size_bytes() > 16
    assert cache.find({**parts, "data.max_length": 257}) is None


def test_what_is_not_published_leaves_nothing(cache: TokenCache) -> None:
    with cache.writing(parts) as draft:
        draft.documents.write(b"half")
        assert len(names(cache)) == 1
    assert names(cache) == []


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "gone")


@pytest.mark.parametrize("file", ["documents.arrow", "refused.arrow", manifest_name])
@pytest.mark.parametrize("damage", [flip, cut_off, empty, dangle, Path.unlink])
def test_a_damaged_entry_is_told_and_can_be_replaced(cache: TokenCache, damage, file: str) -> None:
    write(cache)
    damage(cache.directory / key_of(parts) / file)
    with pytest.raises(DamagedEntryError, match=file):
        cache.find(parts)
    write(cache)
    assert contents(cache.find(parts)) == (b"documents", b"refused")
    assert names(cache) == [key_of(parts)]


@pytest.mark.parametrize("other", ["file", "link to nothing", "empty directory"])
def test_something_else_in_its_place_is_told_and_replaced(cache: TokenCache, other: str) -> None:
    place = cache.directory / key_of(parts)
    if other == "file":
        place.write_text("tokens")
    elif other == "empty directory":
        place.mkdir()
    else:
        place.symlink_to(cache.directory / "gone")
    with pytest.raises(DamagedEntryError):
        cache.find(parts)
    write(cache)
    assert contents(cache.find(parts)) == (b"documents", b"refused")


def test_an_entry_under_another_key_is_damaged(cache: TokenCache) -> None:
    write(cache)
    other = {**parts, "data.max_length": 512}
    shutil.copytree(cache.directory / key_of(parts), cache.directory / key_of(other))
    with pytest.raises(DamagedEntryError, match="of another key"):
        cache.find(other)


def test_a_changed_manifest_is_damaged_even_where_it_still_is_one(cache: TokenCache) -> None:
    write(cache)
    path = cache.directory / key_of(parts) / manifest_name
    manifest = json.loads(path.read_text())
    manifest["facts"]["share"] = 0.2
    path.write_text(json.dumps(manifest))
    with pytest.raises(DamagedEntryError, match="not what was written"):
        cache.find(parts)


killed_writer = """
import os, signal, sys
from pathlib import Path
from dflash.data.token_cache import TokenCache
with TokenCache.open(Path(sys.argv[1])).writing({"rows": "b"}) as draft:
    draft.documents.write(b"x" * 100_000)
    draft.documents.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_what_the_next_one_removes(cache: TokenCache, repository: Path) -> None:
    command = [sys.executable, "-c", killed_writer, str(cache.directory.parent)]
    done = subprocess.run(command, cwd=repository, check=False)
    assert done.returncode == -signal.SIGKILL
    (leftover,) = names(cache)
    assert leftover.startswith(f".{key_of({'rows': 'b'})}.")
    assert cache.find({"rows": "b"}) is None
    assert cache.entries() == []
    write(cache)
    assert names(cache) == [key_of(parts)]


def test_a_writer_at_work_is_left_alone(cache: TokenCache) -> None:
    with cache.writing(parts) as draft:
        draft.documents.write(b"documents")
        write(cache, key={"rows": "another"})  # sweeps
        draft.refused.write(b"refused")
        draft.publish({})
    assert contents(cache.find(parts)) == (b"documents", b"refused")


def test_entries_that_nobody_uses_are_removed_when_another_is_written(cache: TokenCache) -> None:
    for number in range(3):
        write(cache, key={"rows": number})
    long_ago = time.time() - (unused_days + 1) * 86400
    for number in range(2):
        os.utime(cache.directory / key_of({"rows": number}) / manifest_name, (long_ago, long_ago))
    assert cache.find({"rows": 0}) is not None  # that is a use
    write(cache)
    assert names(cache) == sorted(map(key_of, ({"rows": 0}, {"rows": 2}, parts)))


def test_what_somebody_else_put_there_stays(cache: TokenCache) -> None:
    key, old = "0123456789abcdef01234567", time.time() - (unused_days + 1) * 86400
    foreign = [".git", ".cache.1.00000000", f".{key}.12", f"{key}.bak", "models", key.upper()]
    own = [f".{key}.12.0a1b2c3d", key]
    for name in (*foreign, *own):
        (cache.directory / name).mkdir()
        (cache.directory / name / manifest_name).write_text("{}")
        os.utime(cache.directory / name / manifest_name, (old, old))
    assert [path.name for path in cache.entries()] == [key]
    assert cache.size_bytes() == 2
    cache.sweep()
    assert sorted(path.name for path in cache.directory.iterdir()) == sorted(foreign)


def test_an_open_entry_outlives_its_files(cache: TokenCache) -> None:
    written = write(cache)
    found = cache.find(parts)
    shutil.rmtree(cache.directory)
    assert contents(found) == contents(written) == (b"documents", b"refused")


def test_many_writers_readers_and_damage_at_once(cache: TokenCache) -> None:
    """Whoever writes has its own tokens in the end, and whoever reads never has anybody's half."""
    size, wrong = 20_000, list[object]()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(25):
                path = cache.directory / key_of(parts) / "documents.arrow"
                if draw.random() < 0.2 and path.exists():
                    bad = path.with_name(f"bad-{seed}")
                    with suppress(FileNotFoundError):  # the entry was replaced meanwhile
                        bad.write_bytes(b"z")
                        bad.rename(path)
                try:
                    entry = cache.find(parts)
                except DamagedEntryError:
                    entry = None
                if entry is None or draw.random() < 0.5:
                    entry = write(cache, bytes([seed]) * size)
                    found = contents(entry)
                    if found != (bytes([seed]) * size, b"refused"):
                        wrong.append(found)
                documents = entry.documents.to_pybytes()
                if len(documents) != size or len(set(documents)) != 1:
                    wrong.append(documents[:9])
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [name for name in names(cache) if name.startswith(".")] == []


def test_an_entry_that_leaves_while_it_is_replaced_is_no_failure(cache, monkeypatch) -> None:
    """Another writer may set it aside between two looks."""
    rename, failures = Path.rename, iter([OSError(errno.ENOTEMPTY, "not empty")])

    def fail_once(path: Path, target: Path) -> Path:
        error = next(failures, None)
        if error is not None:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    write(cache)
    assert contents(cache.find(parts)) == (b"documents", b"refused")
    assert names(cache) == [key_of(parts)]


@pytest.mark.parametrize("home", ["", "/somewhere"])
def test_auto_is_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, home: str, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root("auto") == (Path(home) if home else tmp_path / ".cache") / "dflash-tune"
    assert cache_root("~/tokens") == tmp_path / "tokens"
    assert cache_root("off") is None


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        TokenCache.open(tmp_path / "file")
    assert (caught.value.exit_code, caught.value.where) == (2, "data.cache")
