from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import text


def plain(words: str) -> str:
    return words.replace(text.nbsp, " ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (14800, "14.8 Ktok/s"),
        (999.6, "1,000 tok/s"),
        (812, "812 tok/s"),
        (3.14159, "3.14 tok/s"),
        (0.0, "0 tok/s"),
    ],
)
def test_rate_has_three_figures_and_the_unit_people_use(value: float, said: str) -> None:
    assert plain(text.rate(value)) == said


def test_rate_range_has_one_unit() -> None:
    assert plain(text.rate_range(995.0, 1004.0)) == "0.995 to 1.00 Ktok/s"


@pytest.mark.parametrize("say", [text.rate, text.share, text.duration, text.data_size])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_the_unknown_is_never_a_number(say: object, value: float | None) -> None:
    assert say(value, "no sensor") == "n/a: no sensor"  # type: ignore[operator]
    assert say(value) == "n/a"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("fraction", "said"),
    [
        (0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.004, "0.4 %"),
        (0.055, "5.5 %"),
        (0.05, "5 %"),
        (0.931, "93 %"),
        (1, "100 %"),
    ],
)
def test_share(fraction: float, said: str) -> None:
    assert plain(text.share(fraction)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (45e-6, "45.0 µs"),
        (0.32, "320 ms"),
        (0.99971, "1.00 s"),
        (1.9, "1.90 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (8.8 * 86400, "8.80 days"),
    ],
)
def test_duration_takes_the_unit_that_fits(seconds: float, said: str) -> None:
    assert plain(text.duration(seconds)) == said


def test_short_duration_is_one_number() -> None:
    assert plain(text.short_duration(762)) == "13 min"
    assert plain(text.short_duration(7560)) == "2.1 h"


def test_sizes_are_decimal() -> None:
    assert plain(text.data_size(2_500_000_000)) == "2.50 GB"
    assert plain(text.data_size(257e12)) == "257 TB"
    assert plain(text.data_size(0)) == "0 B"


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_significant_keeps_three_figures(value: float) -> None:
    said = text.significant(value)
    assert "e" not in said
    assert math.isclose(float(said.replace(",", "")), value, rel_tol=0.00501)


def test_joined() -> None:
    assert [text.joined(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
