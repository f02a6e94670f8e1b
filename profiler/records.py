"""Frozen dataclasses back from plain JSON values, checked against their annotations.

Knows nothing of which records there are.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


class RecordError(ValueError):
    """A value does not fit the record; says where."""


def decode(record_type: type[Record], data: object) -> Record:
    """An instance of `record_type` from JSON values. Raises RecordError, with where it does not fit."""
    value: Record = _decode(record_type, data, record_type.__name__)
    return value


def _decode(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _decode_record(typing.cast(type, hint), value, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is typing.Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        items = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(items) == len(value):
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(_decode(h, v, f"{where}[{i}]") for i, (h, v) in pairs)
    if origin is Mapping and isinstance(value, dict):
        return {str(k): _decode(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(float(value), where)
    if hint in (int, str, bool, types.NoneType) and type(value) is hint:
        return value
    raise RecordError(f"{where} is {value!r:.60}")


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise RecordError(f"{where} is {value}")
    return value


def _decode_union(arguments: tuple[Any, ...], value: object, where: str) -> Any:
    # An int stays one where a float could stand, too.
    for hint in sorted(arguments, key=lambda h: type(value) is not h):
        try:
            return _decode(hint, value, where)
        except RecordError:
            if dataclasses.is_dataclass(hint) and isinstance(value, dict):
                raise
    raise RecordError(f"{where} is {value!r:.60}")


def _decode_record(record_type: type[Any], value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise RecordError(f"{where} is {value!r:.60}, not a table")
    names = {f.name for f in dataclasses.fields(record_type)}
    if names != set(value):
        lacks, odd = sorted(names - set(value)), sorted(map(str, set(value) - names))
        raise RecordError(f"{where} lacks {lacks} and has {odd} too much")
    hints = typing.get_type_hints(record_type)
    return record_type(**{name: _decode(hints[name], value[name], f"{where}.{name}") for name in names})
