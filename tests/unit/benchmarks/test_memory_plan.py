"""The page on the memory plan tells of every configuration, also of one that did not run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import memory_plan

refused = {"refused": "it does not fit", "refused_after_s": 1.0, "peak_rss_bytes": 1, "peak_bytes": {}}


def test_a_configuration_that_was_refused_is_wrong_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run_child(assignments: list[str]) -> dict[str, object]:
        asked.append(assignments)
        return dict(refused)

    monkeypatch.setattr(memory_plan, "_run_child", run_child)
    monkeypatch.setattr(sys, "argv", ["memory_plan.py", "--tiny", "--out", str(tmp_path / "plan.json")])
    assert memory_plan.main() == 1
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["wrong"] == ["tiny"]
    assert written["configurations"]["tiny"]["error"] == "it does not fit"
    assert [sets.count("devices.memory_plan=warn") for sets in asked] == [0, 1]
