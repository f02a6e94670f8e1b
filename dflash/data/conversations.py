"""Conversations from rows as they are on disk: other people's shapes brought to one form.

Every row comes out exactly once, as a Conversation or as a RefusedRow with its reason;
nothing is repaired in silence. docs/data.md lists what is accepted. Knows nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dflash.data.sources import RawRow, read_raw
from dflash.data.table_rows import list_names
from dflash.data.tool_calls import normalize_calls, normalize_tools

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
think_start, think_end = "<think>", "</think>"
# Texts that templates read beside content, and what people call them.
passed_on = {
    "reasoning_content": ("reasoning_content", "reasoning", "thinking"),
    "name": ("name",),
    "tool_call_id": ("tool_call_id",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A usable row."""

    file: str
    line: int  # from 1
    id: str | None
    messages: tuple[dict[str, Any], ...]  # role (system, user, assistant, tool), content (text), see _pass_on
    tools: tuple[dict[str, Any], ...] = ()  # descriptions of what the assistant may call
    untrained: tuple[int, ...] = ()  # messages that are answers with weight 0, from 0
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
    """All rows of `path`, in order. Raises DataError when it cannot be read."""
    return map(normalize, read_raw(path))


def normalize(raw: RawRow, *, prompts: bool = False) -> Conversation | RefusedRow:
    """What a row says, in one form. Needs nothing but the row: any process may do it.

    `prompts`: its answers are to be written anew. Those it has may be anything and come out empty, and it may
    end with a user's turn.
    """
    row_id: str | None = None
    try:
        row = _parse(raw)
        row_id = _id_of(row)
        messages, untrained, warnings = normalize_row(row, prompts=prompts)
        tools = _find_tools(row)
    except RowError as error:
        return RefusedRow(file=raw.file, line=raw.line, id=row_id, reason=str(error))
    except RecursionError:
        return RefusedRow(file=raw.file, line=raw.line, id=row_id, reason="not JSON: nested too deep")
    return Conversation(
        file=raw.file,
        line=raw.line,
        id=row_id,
        messages=tuple(messages),
        tools=tools,
        untrained=tuple(untrained),
        warnings=tuple(warnings),
    )


def _parse(raw: RawRow) -> Mapping[str, Any]:
    if raw.payload is None:
        raise RowError(raw.reason)
    if isinstance(raw.payload, dict):
        return raw.payload
    row = _parse_json(raw.payload, "")
    if not isinstance(row, dict):
        raise RowError(f"not an object: {_kind(row)}")
    return row


def _parse_json(text: bytes | str, where: str) -> Any:
    """The value of a JSON text; half characters are refused. Raises RowError."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {where}{error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # numbers too long, nesting too deep
        raise RowError(f"not JSON: {where}{error}") from None
    # Only an escape can bring in half of a surrogate pair.
    if (b"\\ud" in text.lower()) if isinstance(text, bytes) else ("\\ud" in text.lower()):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except RecursionError:
            raise RowError(f"not JSON: {where}nested too deep") from None
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise RowError(f"lone surrogate: {where}\\u{half:04x} is half a character") from None
    return value


def _id_of(row: Mapping[str, Any]) -> str | None:
    value = row.get("id")
    return None if value is None else str(value)[:100]


def normalize_row(
    row: Mapping[str, Any], *, prompts: bool = False
) -> tuple[list[dict[str, Any]], list[int], list[str]]:
    """The messages of a row, which of them are answers not to train, and warnings. Raises RowError.

    `prompts`: see `normalize`.
    """
    turns, warnings = _find_list(row)
    turns = _put_system_first(row, turns, warnings)
    if prompts:
        turns = [_without_answer(turn, i) for i, turn in enumerate(turns, start=1)]
    messages = [_normalize_message(turn, f"message {i}") for i, turn in enumerate(turns, start=1)]
    previous: dict[str, Any] = {"role": ""}
    for i, message in enumerate(messages, start=1):
        _check_order(message, previous, i)
        previous = message
    if prompts:
        return _only_prompts(messages), [], warnings
    answered = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not answered:
        raise RowError("no supervised token: no answer by an assistant")
    untrained = [i for i in answered if _weighs_nothing(turns[i], warnings)]
    trained = [i for i in answered if i not in untrained]
    if not trained:
        raise RowError("no supervised token: every answer has weight 0")
    # What comes after the last answer is never learnt from.
    return messages[: trained[-1] + 1], [i for i in untrained if i < trained[-1]], warnings


def _put_system_first(row: Mapping[str, Any], turns: list[Any], warnings: list[str]) -> list[Any]:
    """The turns after the system's that a row may have beside them; their own goes before that one."""
    text = row.get("system")
    if text is None or (isinstance(text, str) and not text.strip()):
        return turns
    if not isinstance(text, str):
        warnings.append("system beside the turns is no text; it was left out")
        return turns
    first = turns[0] if isinstance(turns[0], dict) else {}
    speaker = _first_given(first, "role", "from")
    if isinstance(speaker, str) and roles.get(speaker.strip().lower()) == "system":
        if _first_given(first, "content", "value") != text:
            warnings.append("system beside the turns and the first turn differ; the turn was used")
        return turns
    return [{"role": "system", "content": text}, *turns]


def _weighs_nothing(turn: Mapping[str, Any], warnings: list[str]) -> bool:
    """Whether an answer is there to be read only: `weight` 0, as in fine-tuning files of OpenAI."""
    weight = turn.get("weight")
    if weight is not None and weight not in (0, 1):
        warnings.append("an answer has a weight that is neither 0 nor 1; it was taken for 1")
    return bool(weight == 0)


def _without_answer(turn: Any, number: int) -> Any:
    """The turn, or one that says nothing in place of an assistant's. Raises RowError for one by a tool."""
    speaker = _first_given(turn, "role", "from") if isinstance(turn, dict) else None
    role = roles.get(speaker.strip().lower()) if isinstance(speaker, str) else None
    if role == "tool":
        raise RowError(
            f"tool turns: message {number} is by a tool, and what it would say to a new call nobody knows"
        )
    if role == "assistant":
        return {"role": "assistant", "content": "-"}
    return turn


def _only_prompts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with empty answers, one after each user's turn. Raises RowError."""
    if not any(message["role"] == "user" for message in messages):
        raise RowError("no prompt: no turn by a user")
    asked = [message for message in messages if message["role"] != "assistant"]
    nothing = {"role": "assistant", "content": ""}
    return [
        turn for message in asked for turn in ([message, nothing] if message["role"] == "user" else [message])
    ]


def _find_tools(row: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    try:
        return normalize_tools(row.get("tools"), partial(_parse_json, where="tools: "))
    except RowError:
        raise
    except ValueError as error:
        raise RowError(f"tools not understood: {error}") from None


def _find_list(row: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    names = [name for name in list_names if row.get(name) is not None]
    if not names:
        empty = [name for name in list_names if name in row]
        if empty:
            raise RowError(f"no messages: {empty[0]} is null")
        keys = ", ".join(str(key)[:40] for key in list(row)[:8]) or "none"
        raise RowError(f"neither messages nor conversations: keys found are {keys}")
    turns = _as_list(row[names[0]], names[0])
    if not turns:
        raise RowError(f"no messages: {names[0]} is empty")
    both = len(names) > 1 and row[names[1]] != row[names[0]]
    return turns, ["messages and conversations differ; messages was used"] if both else []


def _as_list(value: Any, name: str) -> list[Any]:
    """The turns: a list, JSON text of one, or lists side by side as `datasets` keeps a sequence of dicts."""
    if isinstance(value, str):
        try:
            value = _parse_json(value, f"{name} is a string: ")
        except RowError as error:
            if str(error).startswith("lone surrogate"):
                raise
            raise RowError(
                f"messages are not a list: {name} is a string that is no JSON; "
                "write a list of turns with role and content"
            ) from None
    if isinstance(value, dict) and value.keys() & {"role", "from"}:
        columns = [column for column in value.values() if isinstance(column, list)]
        if len(columns) == len(value) and len({len(column) for column in columns}) == 1:
            return [dict(zip(value, turn, strict=True)) for turn in zip(*columns, strict=True)]
    if not isinstance(value, list):
        raise RowError(f"messages are not a list: {name} is {_kind(value)}")
    return value


def _normalize_message(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowError(f"message is not an object: {where} is {_kind(turn)}")
    speaker = _first_given(turn, "role", "from")
    if not isinstance(speaker, str):
        raise RowError(f"no role: {where}")
    role = roles.get(speaker.strip().lower())
    if role is None:
        raise RowError(f"unknown role: {where} is by {speaker[:40]!r}")
    message: dict[str, Any] = {"role": role}
    message |= _pass_on(turn, where)
    content = _first_given(turn, "content", "value")
    if content is None and "tool_calls" in message:
        content = ""
    message["content"] = _text_of(content, where)
    if role == "assistant":
        _check_answer(message, where)
    return message


def _pass_on(turn: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What chat templates also read of a turn."""
    found: dict[str, Any] = {}
    calls = turn.get("tool_calls")
    if calls:
        found["tool_calls"] = _normalize_calls(calls, where)
    for key, names in passed_on.items():
        value = _first_given(turn, *names)
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
            raise RowError(f"no text: {key} of {where} is {_kind(value)}")
        if value is not None and str(value).strip():
            found[key] = str(value)
    return found


def _first_given(turn: Mapping[str, Any], *names: str) -> Any:
    return next((turn[name] for name in names if turn.get(name) is not None), None)


def _normalize_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    try:
        return normalize_calls(calls, partial(_parse_json, where=f"arguments in {where}: "))
    except RowError:
        raise
    except ValueError as error:
        raise RowError(f"tool call not understood: {where}: {error}") from None


def _check_answer(message: Mapping[str, Any], where: str) -> None:
    content = message["content"].strip()
    if not content and "tool_calls" not in message:
        raise RowError(f"empty answer: {where}")
    if content.startswith(think_start) and think_end not in content:
        # Cut off while thinking: an end of turn would be trained where the target never writes one.
        raise RowError(f"unclosed thinking: {where} begins with {think_start} and has no {think_end}")


def _text_of(content: Any, where: str) -> str:
    """A text, or the texts of a list of parts joined in order."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"no text: the content of {where} is {_kind(content)}")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and (part.get("type") or "text") == "text" else part
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
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
