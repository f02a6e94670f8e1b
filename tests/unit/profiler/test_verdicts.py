"""Numbers behind a finding are shown so that they can be read at a glance."""

from __future__ import annotations

import pytest

from profiler.rules.verdicts import quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00969, "GB/s", "9.69 MB/s"),
        (392.0, "GB/s", "392 GB/s"),
        (2_500_000_000.0, "B", "2.5 GB"),
        (3.0, "", "3"),
    ],
)
def test_amounts_have_a_prefix_that_fits(value: float, unit: str, text: str) -> None:
    evidence = quantity("x", value, unit)
    assert (evidence.value, evidence.unit, evidence.text) == (value, unit, text)
