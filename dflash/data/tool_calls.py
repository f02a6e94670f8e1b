"""Tool calls and descriptions of tools, as people write them, in the one form that chat templates read.

Some write the arguments of a call as an object, some as JSON text, and templates want the one or the other:
`Arguments` is an object that remembers its text. Knows nothing of turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class Arguments(dict[str, Any]):
    """The arguments of a call, with the JSON text that they were or that they make."""

    def __init__(self, value: dict[str, Any], text: str | None = None) -> None:
        super().__init__(value)
        self.text = json.dumps(value, ensure_ascii=False) if text is None else text


def normalize_calls(value: Any, parse: Callable[[str], Any]) -> list[dict[str, Any]]:
    """The calls of a message: a list, or JSON text of one. `parse` reads JSON text. Raises ValueError."""
    if isinstance(value, str):
        value = parse(value)
    if not isinstance(value, list):
        raise ValueError("tool_calls are not a list")
    return [_normalize_call(call, parse) for call in value]


def _normalize_call(call: Any, parse: Callable[[str], Any]) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise ValueError("a call is not an object")
    inner = call.get("function", call)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise ValueError("a call names no function")
    given = inner.get("arguments")
    text = given if isinstance(given, str) else None
    if text is not None:
        given = parse(text) if text.strip() else {}
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"the arguments of {inner['name'][:40]} are no object")
    function = inner if given is None else {**inner, "arguments": Arguments(given, text)}
    return {**call, "function": function} if "function" in call else function


def normalize_tools(value: Any, parse: Callable[[str], Any]) -> tuple[dict[str, Any], ...]:
    """Descriptions of tools: a list of objects, or JSON text of one. Raises ValueError."""
    if isinstance(value, str):
        value = parse(value) if value.strip() else []
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("tools are not a list of objects")
    return tuple(value)
