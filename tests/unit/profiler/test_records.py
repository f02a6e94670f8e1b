"""Records back from JSON, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from profiler.records import RecordError, decode


@dataclass(frozen=True)
class Inner:
    value: float | None
    knobs: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    state: Literal["on", "off"]
    span: tuple[float, float]
    inners: tuple[Inner, ...]
    one: Inner | None
    count: int
    yes: bool | None


sample = Outer("on", (0.0, 1.5), (Inner(None, {"a": 2, "b": 0.5, "c": "x"}), Inner(2.0)), Inner(1.0), 3, True)


def as_json(record: Outer = sample) -> dict[str, object]:
    data: dict[str, object] = json.loads(json.dumps(dataclasses.asdict(record)))
    return data


def test_a_record_survives_json() -> None:
    back = decode(Outer, as_json())
    assert back == sample
    assert type(back.inners[0].knobs["a"]) is int


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("state", "maybe", "Outer.state"),
        ("span", [1.0], "Outer.span"),
        ("inners", [{"value": "1", "knobs": {}}], r"Outer.inners\[0\].value"),
        ("one", {"value": 1.0}, "Outer.one lacks .'knobs'."),
        ("one", {"value": 1.0, "knobs": {}, "more": 1}, "'more'"),
        ("count", 3.5, "Outer.count"),
        ("count", True, "Outer.count"),
        ("yes", 1, "Outer.yes"),
        ("span", [float("nan"), 1.0], r"Outer.span\[0\]"),
        ("inners", {}, "Outer.inners"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(name: str, value: object, where: str) -> None:
    with pytest.raises(RecordError, match=where):
        decode(Outer, as_json() | {name: value})


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_table_is_refused(data: object) -> None:
    with pytest.raises(RecordError, match="not a table"):
        decode(Outer, data)
