"""A row as it was found on disk, before anybody has looked into it. Cheap to make and to send elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """Where a row stands, and what stands there: a JSON text, a row of a table, or why it is neither."""

    file: str
    line: int  # from 1: the line of a JSONL file, the number of the row in any other
    payload: bytes | dict[str, Any] | None  # a JSON text; columns by name; None: see reason
    reason: str = ""  # "kind: details", why there is no payload
