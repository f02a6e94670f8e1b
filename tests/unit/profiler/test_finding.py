"""Findings keep their evidence honest, and a diagnosis survives its file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.errors import RunError
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Evidence
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("runs") / "run", target_copy_s=0.4, preset="host")


@pytest.fixture(scope="module")
def diagnosis(run_path: Path) -> Diagnosis:
    return diagnose(Timeline.of(Run.open(run_path)))


def test_the_unknown_needs_a_reason() -> None:
    assert Evidence("rate", None, "GB/s", "n/a: no bytes", "no bytes").value is None
    with pytest.raises(ValueError, match="unknown without a reason"):
        Evidence("rate", None, "GB/s", "")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_no_evidence(value: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        Evidence("rate", value, "GB/s", "?")


def test_a_diagnosis_survives_its_file(run_path: Path, diagnosis: Diagnosis) -> None:
    path = diagnosis.save(run_path)
    assert path.name == "findings.json"
    assert Diagnosis.load(run_path) == diagnosis

    def refuse(literal: str) -> Any:
        raise AssertionError(literal)

    json.loads(path.read_text(), parse_constant=refuse)  # strict: no NaN, no Infinity


def test_a_run_not_diagnosed_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not diagnosed yet"):
        Diagnosis.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1}', "[" * 100_000])
def test_a_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "findings.json").write_text(text)
    with pytest.raises(RunError):
        Diagnosis.load(tmp_path)


def test_a_tampered_value_is_refused(diagnosis: Diagnosis) -> None:
    data = json.loads(json.dumps(diagnosis.to_json()))
    data["findings"][0]["evidence"][0]["value"] = None
    data["findings"][0]["evidence"][0]["reason"] = None
    with pytest.raises(RunError, match="unknown without a reason"):
        Diagnosis.from_json(data)
