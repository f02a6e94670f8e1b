"""Real findings.json against the table in docs/findings.md: the same fields, values of the types said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.operations import Operations, Part
from dflash.contract.rundir import RunDir
from profiler.examination import examine
from profiler.finding import Diagnosis
from profiler.hardware_limit import Limit
from tests.documented_schema import Schema, check, read_schema
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

page = Path(__file__).parents[3] / "docs" / "findings.md"


@pytest.fixture(scope="module")
def schema() -> Schema:
    return read_schema(page)


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


def test_a_sick_run_an_empty_one_and_the_page_agree(tmp_path: Path, schema: Schema) -> None:
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


def test_the_limit_is_there_with_its_parts(tmp_path: Path, schema: Schema) -> None:
    path = play(tmp_path / "gpus", targets=2, windows=20, emulated=False)
    roles = (("target", 0), ("target", 1), ("drafter", 0))
    devices = [
        {"name": f"cuda:{n}", "role": role, "index": index, "model": "NVIDIA H200", "uuid": f"GPU-{n}"}
        for n, (role, index) in enumerate(roles)
    ]
    operations = Operations(
        parts=(
            Part(stage="target", name="matrix products", per_token=13e9, why="2 × weights"),
            Part(stage="drafter", name="blocks", per_token=20e9, why="6 × weights"),
        ),
        dtype_bytes={"target": 2, "drafter": 2},
        weight_bytes={"target": 13_000_000, "drafter": 4_000_000},
        step_bytes=31_000_000_000,
        state_bytes=40_960,
    )
    RunDir(path).update(devices=devices, operations=operations.to_json())
    document = saved(path)
    check(document, "DIAGNOSIS", schema, "gpus")
    limit, times = document["limit"], document["limit"]["times"]
    # Both roles on all three GPUs: a window of 6,000 tokens at what its parts take.
    seconds = (6000 * (times["target_s"] + times["drafter_s"]) + times["step_s"]) / 3
    assert limit["tokens_per_s"] == pytest.approx(6000 / seconds)
    assert (limit["split"], limit["gpus"], limit["reason"]) == ("colocated-3", 3, None)
    assert times["target_s"] == pytest.approx(13e9 / (limit["ceilings"]["matmul_tflops"] * 1e12))
    assert [mark["stage"] for mark in limit["marks"]] == ["target", "drafter"]
    assert all(mark["working_share"] > 0 for mark in limit["marks"])
    assert Diagnosis.load(path).limit == examine(path).diagnosis.limit


def test_an_unknown_limit_says_why(tmp_path: Path) -> None:
    limit = saved(play(tmp_path / "logical", windows=20))["limit"]
    assert limit["reason"] == "logical devices have no ceilings"
    assert {limit[name] for name in ("as_split", "tokens_per_s", "split", "gpus", "times")} == {None}
    with pytest.raises(ValueError, match="without a reason"):
        Limit()
    with pytest.raises(ValueError, match="finite"):
        Limit(as_split=1.0, tokens_per_s=math.inf)


def test_the_check_notices_what_the_page_does_not_know(schema: Schema) -> None:
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
