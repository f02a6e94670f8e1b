"""Rows of text files: JSONL, one JSON text a line, and JSON, one array of rows. Read piece by piece.

Rows are cut out as bytes and not judged here. Knows nothing of what a row means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from dflash.contract.errors import DataError
from dflash.data.raw_rows import RawRow

line_suffixes = (".jsonl", ".ndjson")  # here a line is a row, whatever it begins with

_utf8_mark = b"\xef\xbb\xbf"
_piece = 1 << 20  # bytes read at once of an array
_longest_row = 1 << 28  # characters; a longer row of an array is taken for a missing bracket
_blanks = re.compile(r"[ \t\r\n]*")
_near_end = 16  # characters: an error before them is none of text that is not read yet
_decoder = json.JSONDecoder(strict=False)


def read_text_rows(path: Path) -> Iterator[RawRow]:
    """All rows of a JSONL file or of a JSON array, in order. Raises DataError and OSError."""
    with path.open("rb") as file:
        if is_array(file, path):
            yield from _read_array(file, path)
        else:
            yield from _read_lines(file, path)


def is_array(file: BufferedReader, path: Path) -> bool:
    """Whether the file is one JSON array; afterwards it stands at its beginning."""
    file.seek(0)
    head = file.read(4096).removeprefix(_utf8_mark).lstrip()
    file.seek(0)
    return head.startswith(b"[") and path.suffix.lower() not in line_suffixes


def _read_lines(file: BufferedReader, path: Path) -> Iterator[RawRow]:
    """One row a line that is not blank. Lines end at LF or CRLF only."""
    name = str(path)
    for number, raw in enumerate(file, start=1):
        line = raw.removeprefix(_utf8_mark) if number == 1 else raw
        if line.strip():
            yield RawRow(file=name, line=number, payload=line)


def _read_array(file: BufferedReader, path: Path) -> Iterator[RawRow]:
    """One row an element. Bytes that are no UTF-8 stay as they are, for the row to be refused."""
    name, scan = str(path), _Scan(file, path)
    scan.take("[")
    if scan.peek() == "]":
        scan.take("]")
    else:
        while True:
            element = scan.element()
            yield RawRow(file=name, line=scan.rows, payload=element.encode("utf-8", "surrogateescape"))
            if scan.peek() == "]":
                break
            scan.take(",")
        scan.take("]")
    if scan.peek():
        raise scan.error("text after the end of the array")


class _Scan:
    """Walks along the elements of an array and holds little more than one of them."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file, self._path = file, path
        self._tail = file.read(len(_utf8_mark)).removeprefix(_utf8_mark)  # bytes not yet decoded
        self._text, self._at = "", 0
        self.rows = 0  # elements given so far

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            self._at = _end_of(_blanks.match(self._text, self._at), self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read(_piece):
                return ""

    def take(self, wanted: str) -> None:
        found = self.peek()
        if found != wanted:
            raise self.error(f"{wanted} expected, found {found!r}" if found else f"it ends without {wanted}")
        self._at += 1

    def element(self) -> str:
        """The text of the next element. Raises DataError where the array cannot be followed any further."""
        self.peek()
        while True:
            try:
                _, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._may_go_on(error):
                    raise self.error(error.msg) from None
                continue
            except (RecursionError, ValueError) as error:
                raise self.error(str(error)) from None
            if end > len(self._text) - 3 and self._read(_piece):
                continue  # a number may go on: 1, 1., 1.5e, 1.5e-
            self.rows += 1
            text, self._at = self._text[self._at : end], end
            return text

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether the element could be JSON with more of the file, which is then read."""
        waiting = len(self._text) - self._at
        cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _near_end
        # Twice as much each time: linear in all.
        return cut and waiting <= _longest_row and self._read(max(_piece, waiting))

    def error(self, what: str) -> DataError:
        return DataError(
            f"the array cannot be read past row {self.rows}: {what}",
            where=str(self._path),
            expected="one JSON array of objects, or JSONL: one object a line",
            remedy="mend the file; in JSONL a broken row costs only itself",
        )

    def _read(self, size: int) -> bool:
        """Add what the file has next; False at its end."""
        new = self._file.read(size)
        data = self._tail + new
        if not data:
            return False
        whole = len(data) - _cut_character(data) if self._file.peek(1) else len(data)
        self._tail = data[whole:]
        self._text = self._text[self._at :] + data[:whole].decode("utf-8", "surrogateescape")
        self._at = 0
        return True


def _end_of(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise


def _cut_character(data: bytes) -> int:
    """How many bytes at the end begin a character whose other bytes are not there yet."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
        if byte < 0x80:
            return 0
    return 0
