"""Conversations read from a JSONL file: one object a line, other people's shapes brought to one form.

Every line that is not blank comes out exactly once, as a Conversation or as a RefusedRow with its reason;
nothing is repaired in silence. docs/data.md lists what is accepted. Knows nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.contract.errors import DataError

roles = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
# What may stand before each role; "" is the beginning.
may_follow = {
    "system": {""},
    "user": {"", "system", "assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
passed_on = {"tool_calls": list, "reasoning_content": str, "name": str, "tool_call_id": str}

_signatures = {b"PAR1": "parquet", b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
_utf8_mark = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A usable row."""

    file: str
    line: int  # from 1
    id: str | None
    messages: tuple[dict[str, Any], ...]  # role (system, user, assistant, tool), content (text), `passed_on`
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that is not trained, and why."""

    file: str
    line: int
    id: str | None
    reason: str  # "kind: details"

    @property
    def kind(self) -> str:
        """The reason without its details."""
        return self.reason.partition(":")[0]

    def __str__(self) -> str:
        name = f" ({self.id})" if self.id else ""
        return f"{self.file}, line {self.line}{name}: {self.reason}"


class RowError(ValueError):
    """Why a row cannot be trained: "kind: details"."""


def read_conversations(path: Path) -> Iterator[Conversation | RefusedRow]:
    """All rows of a file, in order. Lines end at LF or CRLF only. Raises DataError when it cannot be read."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    _check_signature(raw, path)
                line = raw.removeprefix(_utf8_mark) if number == 1 else raw
                if line.strip():
                    yield _read_line(line, str(path), number)
    except FileNotFoundError:
        raise DataError("there is no such data file", where="data.path", found=path) from None
    except IsADirectoryError:
        raise DataError(
            "data.path is a directory", where="data.path", found=path, expected="one JSONL file"
        ) from None
    except OSError as error:
        raise DataError(f"the data file cannot be read: {error}", where=str(path)) from None


def _check_signature(line: bytes, path: Path) -> None:
    for signature, name in _signatures.items():
        if line.startswith(signature):
            raise DataError(
                f"{name} files are not read",
                where=str(path),
                found=name,
                expected="JSONL: one JSON object a line, in UTF-8",
                remedy="convert the file first",
            )


def _read_line(line: bytes, file: str, number: int) -> Conversation | RefusedRow:
    row_id: str | None = None
    try:
        row = _parse(line)
        row_id = _id_of(row)
        messages, warnings = normalize_row(row)
    except RowError as error:
        return RefusedRow(file=file, line=number, id=row_id, reason=str(error))
    return Conversation(file=file, line=number, id=row_id, messages=tuple(messages), warnings=tuple(warnings))


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{line[error.start]:02x} at {error.start}") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # numbers too long, nesting too deep
        raise RowError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RowError(f"not an object: {_kind(row)}")
    if b"\\ud" in line.lower():  # only an escape can bring in half of a surrogate pair
        try:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise RowError(f"lone surrogate: \\u{half:04x} is half a character") from None
    return row


def _id_of(row: Mapping[str, Any]) -> str | None:
    value = row.get("id")
    return None if value is None else str(value)[:100]


def normalize_row(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages of a row and warnings about how they were read. Raises RowError."""
    turns, warnings = _find_list(row)
    messages = [_normalize_message(turn, f"message {i}") for i, turn in enumerate(turns, start=1)]
    previous: dict[str, Any] = {"role": ""}
    for i, message in enumerate(messages, start=1):
        _check_order(message, previous, i)
        previous = message
    answered = [i for i, message in enumerate(messages, start=1) if message["role"] == "assistant"]
    if not answered:
        raise RowError("no supervised token: no answer by an assistant")
    # What comes after the last answer is never learnt from.
    return messages[: answered[-1]], warnings


def _find_list(row: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    names = [name for name in ("messages", "conversations") if row.get(name) is not None]
    if not names:
        keys = ", ".join(str(key)[:40] for key in list(row)[:8]) or "none"
        raise RowError(f"neither messages nor conversations: keys found are {keys}")
    turns = row[names[0]]
    if not isinstance(turns, list):
        raise RowError(f"messages are not a list: {names[0]} is {_kind(turns)}")
    if not turns:
        raise RowError(f"no messages: {names[0]} is empty")
    both = len(names) > 1 and row[names[1]] != turns
    return turns, ["messages and conversations differ; messages was used"] if both else []


def _normalize_message(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowError(f"message is not an object: {where} is {_kind(turn)}")
    speaker = turn.get("role", turn.get("from"))
    if not isinstance(speaker, str):
        raise RowError(f"no role: {where}")
    role = roles.get(speaker.strip().lower())
    if role is None:
        raise RowError(f"unknown role: {where} is by {speaker[:40]!r}")
    message: dict[str, Any] = {"role": role}
    for key, kind in passed_on.items():
        if isinstance(turn.get(key), kind) and turn[key]:
            message[key] = turn[key]
    content = turn.get("content", turn.get("value"))
    if content is None and "tool_calls" in message:
        content = ""
    message["content"] = _text_of(content, where)
    if role == "assistant" and not message["content"].strip() and "tool_calls" not in message:
        raise RowError(f"empty answer: {where}")
    return message


def _text_of(content: Any, where: str) -> str:
    """A text, or the texts of a list of parts joined in order."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"no text: the content of {where} is {_kind(content)}")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            kind = repr(part.get("type", "no type"))[:40] if isinstance(part, dict) else _kind(part)
            raise RowError(f"not only text: {where} has a part of type {kind}")
        texts.append(text)
    return "".join(texts)


def _check_order(message: Mapping[str, Any], previous: Mapping[str, Any], number: int) -> None:
    role, before = message["role"], previous["role"]
    if before not in may_follow[role]:
        place = f"after {before}" if before else "at the beginning"
        raise RowError(f"roles out of turn: {role} {place}, message {number}")
    if role == "tool" and before == "assistant" and "tool_calls" not in previous:
        raise RowError(f"roles out of turn: tool after an assistant that called none, message {number}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
