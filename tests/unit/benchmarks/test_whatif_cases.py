"""Every run of the accuracy page can be made, and no two share a directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.whatif_cases import families, other_fixes, sick_cases


def test_all_settings_are_configurations_with_names_of_their_own(tmp_path: Path) -> None:
    data = tmp_path / "conversations.jsonl"
    cases = [case for family in families.values() for case in (family.base, *family.cases)]
    cases += [replace(family.base, repeat=1) for family in families.values()]
    for _, sick in sick_cases(3):
        cases += [sick, *(sick.with_changes(fix) for fix in other_fixes)]
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        case.configure(data)


def test_later_knobs_win() -> None:
    base = families["targets"].base
    assert base.with_changes("transport=peer").configure(Path()).transport.preset == "peer"
    assert base.configure(Path()).transport.preset == "host"
