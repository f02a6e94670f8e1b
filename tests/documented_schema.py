"""A JSON document held against the table of its page in docs: the same fields, values of the types said.

Tables have rows `| OBJECT | `field` | type | meaning |`. Types: text, number, integer, boolean, `[type]`,
`type or null`, an object of the table, CHOICE (a value of a knob), KNOBS ({knob: choice}), ANY (an object).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

row = re.compile(r"^\| ([A-Z_]+) \| `(\w+)` \| ([^|]+) \|([^|]*)\|$", re.MULTILINE)
simple: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "CHOICE": (str, int, float),  # of a knob; true and false too
}
Schema = Mapping[str, Mapping[str, str]]


def read_schema(page: Path) -> Schema:
    """Object -> field -> type, as the page says."""
    objects: dict[str, dict[str, str]] = {}
    for name, field, kind, _ in row.findall(page.read_text(encoding="utf-8")):
        assert field not in objects.setdefault(name, {})
        objects[name][field] = kind.strip()
    return objects


def check(value: object, kind: str, schema: Schema, where: str) -> None:
    """Fail where `value` is not of that kind, and say where."""
    if kind.endswith(" or null"):
        if value is None:
            return
        kind = kind.removesuffix(" or null")
    if kind.startswith("["):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            check(item, kind[1:-1], schema, f"{where}[{number}]")
    elif kind in ("KNOBS", "ANY"):
        assert isinstance(value, dict), where
        assert kind == "ANY" or all(isinstance(knob, str | int | float) for knob in value.values()), where
    elif kind in simple:
        assert isinstance(value, simple[kind]), f"{where} is {value!r}, not {kind}"
        assert kind in ("boolean", "CHOICE") or not isinstance(value, bool), where
    else:
        assert isinstance(value, dict), where
        assert set(value) == set(schema[kind]), where
        for field, part in value.items():
            check(part, schema[kind][field], schema, f"{where}.{field}")
