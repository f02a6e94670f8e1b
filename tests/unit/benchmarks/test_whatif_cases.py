"""Every run of the accuracy page can be made, and no two share a directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.whatif_cases import Case, families, other_fixes, sick_cases, still_sick
from dflash.faults.pace import Pace


def test_all_settings_are_configurations_with_names_of_their_own(tmp_path: Path) -> None:
    data = tmp_path / "conversations.jsonl"
    cases = [case for family in families.values() for case in (family.base, *family.cases)]
    cases += [replace(family.base, repeat=1) for family in families.values()]
    for _, sick in sick_cases(3):
        fixed = (still_sick(sick, fix) for fix in other_fixes)
        cases += [sick, *(case for case in fixed if case is not None)]
    assert len({case.name for case in cases}) == len(set(cases))
    for case in cases:
        case.configure(data)


def test_later_knobs_win() -> None:
    base = families["targets"].base
    assert base.with_changes("transport=peer").configure(Path()).transport.preset == "peer"
    assert base.configure(Path()).transport.preset == "host"


@pytest.mark.parametrize("split", ["3-1", "2-2"])
def test_a_sickness_takes_the_same_seconds_in_another_split(split: str) -> None:
    before, after = Pace(2, 1), Pace(*map(int, split.split("-")))

    def strength(name: str, lost: float) -> float:
        changed = still_sick(Case(f"{name}:{lost}"), f"split={split}")
        assert changed is not None
        assert changed.configure(Path()).pipeline.split == split
        return float(changed.request.partition(":")[2])

    lost = strength("slow-data", 0.6)
    assert after.interval_s / (1 - lost) == pytest.approx(before.interval_s / 0.4, rel=1e-4)
    assert after.slow_step_s(strength("upload", 0.6)) == pytest.approx(before.slow_step_s(0.6), rel=1e-4)
    assert after.straggling(strength("slow-target", 0.35)) == pytest.approx(before.straggling(0.35), rel=1e-4)
    assert strength("sync-copy", 0.6) == pytest.approx(0.6)


def test_a_strength_that_cannot_be_is_no_fix() -> None:
    assert still_sick(Case("upload:0.3"), "split=1-4 window.tokens=2048") is None
    assert still_sick(Case("slow-target:0.35"), "split=1-1") is None
