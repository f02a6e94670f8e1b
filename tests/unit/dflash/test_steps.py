"""Step ranges: what is read, what is refused."""

from __future__ import annotations

import pytest

from dflash.contract.errors import UsageError
from dflash.contract.steps import StepRange


@pytest.mark.parametrize(("text", "first", "last"), [("100:105", 100, 105), ("7", 7, 7), (" 0:0 ", 0, 0)])
def test_ranges_are_read(text: str, first: int, last: int) -> None:
    assert StepRange.parse(text) == StepRange(first, last)


@pytest.mark.parametrize(
    "text", ["", "5:4", "a:b", "1:2:3", "-1:3", "1.5", "steps 1:2", ":3", "٣:٤", "9" * 40]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a range") as refused:
        StepRange.parse(text)
    assert refused.value.found == text


def test_steps_outside_the_run_are_refused_with_both_numbers() -> None:
    StepRange(3, 9).check_within(3, 10)
    for steps in (StepRange(3, 10), StepRange(2, 4), StepRange(10, 10)):
        with pytest.raises(UsageError, match="not all steps of this run") as refused:
            steps.check_within(3, 10)
        assert refused.value.expected == "steps within 3 to 9"
