"""The file of answers: rows appended as they are finished, put in order at the end, safe against any kill.

While it grows it is `OUT.part`: one JSON object a line, on disk before the next batch begins. A line that a
kill has torn is dropped when the file is opened again, one that cannot be read is passed over: their rows are
asked for again. All others are done.
At the end the rows go to OUT in the order of the data, refused ones to `OUT.refused`, each by an atomic
rename. One process at a time has the file. Knows nothing of engines.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dflash.contract.errors import DFlashError, RunError


class AnswerFile:
    """The growing file and what is in it, by the number of the row in the data."""

    def __init__(self, path: Path) -> None:
        """Open or go on with the file behind `path`. Raises RunError when another process has it."""
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.refused_path = path.with_name(path.name + ".refused")
        self._places: dict[int, int] = {}  # number of the row -> offset in the part
        self.kinds: Counter[str] = Counter()  # "answered" or the kind of the refusal
        self.tokens = 0
        self.dropped_bytes = 0  # of a torn line
        self.bad_lines = 0  # that are whole and no entries, or a second one of their row
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.part.open("a+b")
        except OSError as error:
            raise RunError(f"the answers cannot be written: {error}", where=str(path)) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise RunError("another process writes these answers", where=str(self.part)) from None
        self._take_in()

    def _take_in(self) -> None:
        """Read what earlier sessions wrote; cut off a last line that is not whole."""
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            entry = _parse(line)
            if entry is None or entry["number"] in self:
                self.bad_lines += 1
            else:
                self._count(entry, whole)
            whole += len(line)
        size = self._file.seek(0, os.SEEK_END)
        self.dropped_bytes = size - whole
        if self.dropped_bytes:
            self._file.truncate(whole)

    def _count(self, entry: dict[str, Any], place: int) -> None:
        self._places[entry["number"]] = place
        self.kinds["answered" if "row" in entry else entry["refused"]["reason"].partition(":")[0]] += 1
        self.tokens += entry.get("tokens") or 0

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __len__(self) -> int:
        return len(self._places)

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Add finished rows: `number` and `row` or `refused`; on disk when this returns.

        Raises DFlashError where there is no room.
        """
        try:
            place = self._file.seek(0, os.SEEK_END)
            for entry in entries:
                line = json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
                self._file.write(line)
                self._count(entry, place)
                place += len(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _not_written(error, self.part) from None

    def finish(self) -> None:
        """Put everything in the order of the data, in its final files, and remove the part.

        Raises DFlashError; the part is whole then.
        """
        wanted = {"row": self.path, "refused": self.refused_path}
        files = {key: path.with_name(path.name + ".tmp") for key, path in wanted.items()}
        try:
            self._put_in_order(files, wanted)
        except OSError as error:
            for file in files.values():
                file.unlink(missing_ok=True)
            raise _not_written(error, self.path) from None
        self.close()

    def _put_in_order(self, files: dict[str, Path], wanted: dict[str, Path]) -> None:
        counts = dict.fromkeys(wanted, 0)
        with files["row"].open("wb") as rows, files["refused"].open("wb") as refused:
            for entry in self._ordered():
                key = "row" if "row" in entry else "refused"
                text = json.dumps(entry[key], ensure_ascii=False).encode("utf-8", "surrogatepass")
                (rows if key == "row" else refused).write(text + b"\n")
                counts[key] += 1
            for file in (rows, refused):
                file.flush()
                os.fsync(file.fileno())
        for key in ("refused", "row"):  # the answers last: where they are, all is there
            if counts[key] or key == "row":
                files[key].replace(wanted[key])
            else:
                files[key].unlink()
        _sync_directory(self.path.parent)
        self.part.unlink()

    def _ordered(self) -> Iterator[dict[str, Any]]:
        numbers = np.fromiter(self._places, np.int64, len(self._places))
        for number in np.sort(numbers).tolist():
            self._file.seek(self._places[number])
            entry = _parse(self._file.readline())
            assert entry is not None
            yield entry

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):  # what could not be written was told when it was tried
            self._file.close()


def _parse(line: bytes) -> dict[str, Any] | None:
    """An entry; None for a line that is none."""
    try:
        entry = json.loads(line)
        good = type(entry["number"]) is int and (
            isinstance(entry["row"], dict) if "row" in entry else isinstance(entry["refused"]["reason"], str)
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return entry if good else None


def _not_written(error: OSError, where: Path) -> DFlashError:
    return DFlashError(
        f"the answers cannot be written: {error.strerror or error}",
        where=str(where),
        remedy="make room there; the same command goes on from what is written",
    )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
