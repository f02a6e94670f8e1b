"""`--set` of the recorder: names, values, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from dflash.contract.errors import UsageError
from profiler.recorder import RecordOptions
from profiler.recorder_settings import apply_settings, settings


def test_settings_change_what_they_name_and_the_last_counts() -> None:
    changed = apply_settings(
        RecordOptions(gil=False),
        ["sensors.gpu=none", "sensors.gil_holders=false", "sensors.gil_holders=true"],
    )
    assert changed == RecordOptions(gil=False, gpu="none", gil_holders=True)
    assert apply_settings(RecordOptions(), []) == RecordOptions()


def test_who_holds_the_gil_is_sampled_only_when_asked_for() -> None:
    assert RecordOptions().gil
    assert not RecordOptions().gil_holders


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("sensors.gil_holders=yes", "true or false"),
        ("sensors.gil_holders=", "NAME=VALUE"),
        ("sensors.gil_holder=true", "sensors.gil_holders"),
        ("split=3-1", "behind --"),
    ],
)
def test_what_is_no_setting_is_refused_with_what_is_one(assignment: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_settings(RecordOptions(), [assignment])
    told = f"{caught.value} {caught.value.expected} {caught.value.remedy}"
    assert words in told
    if "NAME" not in words and "true" not in words:
        assert all(name in told for name in settings)
