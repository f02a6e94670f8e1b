from __future__ import annotations

import pytest

from reports.parts import emulated_badge, say


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "n/a"),
        ({}, "none"),
        ("", '""'),
        (0, "0"),
        (False, "no"),
        ("x", "x"),
        ({"torch": "2.13.0", "python": None}, "torch 2.13.0, python n/a"),
        ({"memory_bytes": 2_500_000_000}, "memory 2.50\u00a0GB"),
        ([{"name": "cuda:0"}, {"name": "cuda:1"}], "name cuda:0; name cuda:1"),
        ({"gpus": ["a", "b"]}, "gpus (a, b)"),
    ],
)
def test_any_value_of_a_manifest_is_said_on_one_line(value: object, said: str) -> None:
    assert say(value) == said


def test_only_a_run_known_to_be_real_carries_no_badge() -> None:
    assert emulated_badge(False) == []
    assert "emulated" in emulated_badge(True)[0].words
    assert "n/a" in emulated_badge(None)[0].words
