"""Real findings.json against the table in docs/findings.md: the same fields, values of the types said."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from profiler.examination import examine
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

page = Path(__file__).parents[3] / "docs" / "findings.md"
row = re.compile(r"^\| ([A-Z]+) \| `(\w+)` \| ([^|]+) \|([^|]*)\|$", re.MULTILINE)
simple: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


@pytest.fixture(scope="module")
def schema() -> dict[str, dict[str, str]]:
    """Object -> field -> type, as the page says."""
    objects: dict[str, dict[str, str]] = {}
    for name, field, kind, _ in row.findall(page.read_text(encoding="utf-8")):
        assert field not in objects.setdefault(name, {})
        objects[name][field] = kind.strip()
    return objects


def check(value: object, kind: str, schema: Mapping[str, Mapping[str, str]], where: str) -> None:
    if kind.endswith(" or null"):
        if value is None:
            return
        kind = kind.removesuffix(" or null")
    if kind.startswith("["):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            check(item, kind[1:-1], schema, f"{where}[{number}]")
    elif kind == "KNOBS":
        assert isinstance(value, dict), where
        assert all(isinstance(knob, str | int | float) for knob in value.values()), where
    elif kind in simple:
        assert isinstance(value, simple[kind]), f"{where} is {value!r}, not {kind}"
        assert kind == "boolean" or not isinstance(value, bool), where
    else:
        assert isinstance(value, dict), where
        assert set(value) == set(schema[kind]), where
        for field, part in value.items():
            check(part, schema[kind][field], schema, f"{where}.{field}")


def reasons_stand(finding: Mapping[str, Any]) -> bool:
    pairs = (
        ("measured_cost_share", "measured_cost_reason"),
        ("predicted_cost_s", "predicted_cost_reason"),
        ("predicted_gain", "predicted_gain_reason"),
    )
    return all((finding[value] is None) != (finding[reason] is None) for value, reason in pairs)


def saved(run: Path) -> Any:
    text = examine(run).diagnosis.save(run).read_text(encoding="utf-8")
    return json.loads(text, parse_constant=pytest.fail)


def test_a_sick_run_an_empty_one_and_the_page_agree(
    tmp_path: Path, schema: dict[str, dict[str, str]]
) -> None:
    sick = saved(play(tmp_path / "sick", targets=2, preset="host", target_copy_s=0.5, windows=20))
    empty = saved(RunBuilder(tmp_path / "empty").finish("failed"))
    for name, document in (("sick", sick), ("empty", empty)):
        check(document, "DIAGNOSIS", schema, name)
        assert all(map(reasons_stand, document["findings"])), name
    first = sick["findings"][0]
    assert first["predicted_gain"] == pytest.approx(0.5, abs=0.05)
    assert first["predicted_gain_reason"] is None
    rejected = [finding for finding in sick["findings"] if finding["verdict"] == "rejected"]
    assert {finding["predicted_gain_reason"] for finding in rejected} == {"rejected: nothing to remove"}
    told = page.read_text(encoding="utf-8")
    assert all(f"`{finding['predicted_gain_reason']}`" in " ".join(told.split()) for finding in rejected)


def test_the_check_notices_what_the_page_does_not_know(schema: dict[str, dict[str, str]]) -> None:
    sound = {"text": "halve it", "knobs": {"pipeline.token_budget": 4096}}
    check(sound, "REMEDY", schema, "remedy")
    for wrong in (
        {**sound, "cost": 1},
        {"text": "halve it"},
        {**sound, "text": None},
        {**sound, "knobs": {"a": []}},
    ):
        with pytest.raises(AssertionError):
            check(wrong, "REMEDY", schema, "remedy")
