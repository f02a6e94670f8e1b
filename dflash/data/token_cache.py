"""Tokens kept between runs: a directory for each key, which appears whole or not at all.

<cache>/tokens/<key>/
  documents.arrow, refused.arrow    see dflash/data/documents.py
  entry.json                        the key's parts, the books, size and sha256 of the two; its own sha256

An entry is written under a name that begins with a dot and is renamed when all of it is on the disk. Whoever
writes holds a lock on that directory, which the kernel lets go when the process ends in whatever way: a
leftover is a dotted directory that nobody holds. Two writers of one key write two directories, and either may
stay. What was opened is read through its open files, so that replacing or removing an entry harms nobody.
Knows nothing of how tokens are made.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

import pyarrow as pa

from dflash.contract.errors import ConfigError

names: Final = ("documents.arrow", "refused.arrow")
manifest_name: Final = "entry.json"
_entry_name: Final = re.compile(r"[0-9a-f]{24}")
_draft_name: Final = re.compile(r"\.[0-9a-f]{24}\.\d+\.[0-9a-f]{8}")  # also of what was set aside
unused_days: Final = 30  # after which an entry is removed when another one is written
Parts = Mapping[str, Any]  # of a key, in words


@dataclass(frozen=True, slots=True)
class Entry:
    """Tokens that were found, verified and mapped into memory."""

    facts: dict[str, Any]  # of the Intake that stored them
    documents: pa.Buffer
    refused: pa.Buffer
    size_bytes: int


class DamagedEntryError(Exception):
    """An entry that is there and cannot be used; the text says why."""


def key_of(parts: Parts) -> str:
    """The name of the entry of these parts."""
    return hashlib.sha256(_canonical(parts)).hexdigest()[:24]


def cache_root(choice: str) -> Path | None:
    """The directory meant by data.cache; None: nothing is kept."""
    if choice == "off":
        return None
    if choice != "auto":
        return Path(choice).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "dflash-tune"


@dataclass(frozen=True, slots=True)
class TokenCache:
    """The entries under one directory. Safe for several processes and threads at once."""

    directory: Path

    @classmethod
    def of(cls, root: Path) -> TokenCache:
        """The cache at a place, whether or not it is there yet."""
        return cls(root / "tokens")

    @classmethod
    def open(cls, root: Path) -> TokenCache:
        """Make the directory, if need be. Raises ConfigError when it cannot be used."""
        directory = cls.of(root).directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(directory, os.W_OK | os.X_OK)
        except OSError as error:
            raise _unusable(root, error.strerror or str(error)) from None
        if not writable:
            raise _unusable(root, "no right to write there")
        return cls(directory)

    def find(self, parts: Parts) -> Entry | None:
        """The entry of a key, None when there is none. Raises DamagedEntryError."""
        path = self.directory / key_of(parts)
        while True:
            try:
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if path.is_symlink():
                    raise DamagedEntryError("a link to nothing") from None
                return None
            except OSError as error:
                raise DamagedEntryError(error.strerror or str(error)) from None
            try:
                return _read_entry(folder, parts)
            except OSError as error:
                if _is_still(path, folder):
                    name = error.filename or path.name
                    raise DamagedEntryError(f"{name}: {error.strerror or error}") from None
            finally:
                os.close(folder)

    @contextmanager
    def writing(self, parts: Parts) -> Iterator[Draft]:
        """A draft to fill and publish; what is not published is removed. Raises OSError."""
        self.sweep()
        draft = Draft(self, key_of(parts), parts)
        try:
            yield draft
        finally:
            draft.discard()

    def sweep(self) -> None:
        """Remove what killed writers left, and entries that nobody has used for a month.

        What is not called as this module calls things is somebody else's, and stays.
        """
        for path in self.directory.glob(".*"):
            if _draft_name.fullmatch(path.name):
                _remove_unheld(path)
        oldest = time.time() - unused_days * 86400
        for path in self.entries():
            with suppress(OSError):
                if (path / manifest_name).stat().st_mtime < oldest:
                    shutil.rmtree(path, ignore_errors=True)

    def entries(self) -> list[Path]:
        """Directories of entries, damaged ones too."""
        found = sorted(self.directory.glob("[!.]*"))
        return [path for path in found if _entry_name.fullmatch(path.name) and path.is_dir()]

    def size_bytes(self) -> int:
        """Of all entries."""
        sizes = []
        for path in (file for entry in self.entries() for file in entry.glob("*")):
            with suppress(OSError):
                sizes.append(path.stat().st_size)
        return sum(sizes)


class Draft:
    """An entry that is being written, in a directory that is locked as long as that lasts."""

    def __init__(self, cache: TokenCache, key: str, parts: Parts) -> None:
        self._final, self._parts = cache.directory / key, parts
        self._path, self._lock = _locked_directory(cache.directory, key)
        self.documents = (self._path / names[0]).open("xb")
        self.refused = (self._path / names[1]).open("xb")

    @property
    def directory(self) -> Path:
        """Where the entry will be."""
        return self._final

    def publish(self, facts: dict[str, Any]) -> Entry:
        """Complete the entry under its own name, in place of one that is there. Raises OSError."""
        for file in (self.documents, self.refused):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        files = {name: _describe(self._path / name) for name in names}
        body = {"key": dict(self._parts), "files": files, "facts": facts}
        text = json.dumps({**body, "sha256": hashlib.sha256(_canonical(body)).hexdigest()})
        with (self._path / manifest_name).open("xb") as manifest:
            manifest.write(text.encode())
            manifest.flush()
            os.fsync(manifest.fileno())
        os.fsync(self._lock)
        documents, refused = (_map_file(self._path / name) for name in names)
        self._take_place()
        return Entry(facts, documents, refused, sum(file["bytes"] for file in files.values()))

    def discard(self) -> None:
        """Remove what was not published, and let go of it."""
        self.documents.close()
        self.refused.close()
        if self._lock >= 0:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _take_place(self) -> None:
        while True:
            try:
                self._path.rename(self._final)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                _set_aside(self._final)
        _sync_directory(self._final.parent)


def _locked_directory(parent: Path, key: str) -> tuple[Path, int]:
    """A new dotted directory, and the descriptor that holds its lock."""
    while True:
        path = parent / f".{key}.{os.getpid()}.{uuid4().hex[:8]}"
        path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # swept between the two lines
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return path, descriptor
        except BlockingIOError:
            pass  # somebody is sweeping it
        os.close(descriptor)


def _remove_unheld(path: Path) -> None:
    """Remove a dotted directory, unless a writer holds it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _set_aside(path: Path) -> None:
    """Get what is at a place out of it: a damaged entry, or an equal one of another writer."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}")
    with suppress(FileNotFoundError):
        path.rename(aside)
    if aside.is_symlink() or aside.is_file():
        aside.unlink()
    else:
        shutil.rmtree(aside, ignore_errors=True)


def _is_still(path: Path, folder: int) -> bool:
    """Whether `path` is the directory that was opened, not one that came in its place meanwhile."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(folder))
    return False


def _read_entry(folder: int, parts: Parts) -> Entry:
    manifest = _read_manifest(folder, parts)
    buffers, total = [], 0
    for name in names:
        expected = manifest["files"][name]
        with _open_in(folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected["bytes"]:
                raise DamagedEntryError(f"{name}: {size} bytes, {expected['bytes']} expected")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected["sha256"]:
                raise DamagedEntryError(f"{name}: sha256 {digest[:12]}…, {expected['sha256'][:12]}… expected")
            buffers.append(_map_open(file))
            total += size
    with suppress(OSError):
        os.utime(manifest_name, dir_fd=folder)  # the time of its last use
    documents, refused = buffers
    return Entry(manifest["facts"], documents, refused, total)


def _read_manifest(folder: int, parts: Parts) -> dict[str, Any]:
    with _open_in(folder, manifest_name) as file:
        try:
            manifest: dict[str, Any] = json.loads(file.read())
            digest = manifest.pop("sha256")
            intact = digest == hashlib.sha256(_canonical(manifest)).hexdigest()
        except (ValueError, LookupError, TypeError, AttributeError):
            intact = False
    if not intact:
        raise DamagedEntryError(f"{manifest_name}: not what was written")
    if manifest["key"] != json.loads(_canonical(parts)):
        raise DamagedEntryError(f"{manifest_name}: of another key")
    return manifest


def _open_in(folder: int, name: str) -> BufferedReader:
    return os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder), "rb")


def _map_file(path: Path) -> pa.Buffer:
    with path.open("rb") as file:
        return _map_open(file)


def _map_open(file: IO[bytes]) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def map_temporary(file: IO[bytes]) -> pa.Buffer:
    """What was written to a file that has no name, mapped into memory."""
    file.flush()
    return _map_open(file)


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(root: Path, why: str) -> ConfigError:
    return ConfigError(
        "tokens cannot be kept there",
        where="data.cache",
        found=f"{root}: {why}",
        expected="a directory that may be written to, auto or off",
    )
