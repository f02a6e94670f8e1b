"""A second try is for tries that others disturbed, and hides nothing else."""

from __future__ import annotations

from itertools import count

import pytest

from tests import undisturbed
from tests.undisturbed import tries, try_undisturbed


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU time that others take in each try; empty: none."""
    taken: list[float] = []
    looks = count()

    def cpu_of_others_s() -> float:
        return sum(taken[: -(-next(looks) // 2)])

    monkeypatch.setattr(undisturbed, "cpu_of_others_s", cpu_of_others_s)
    return taken


def test_what_is_wrong_in_a_quiet_try_fails_whether_returned_or_asserted(crowd: list[float]) -> None:
    tried = []

    def wrong(number: int) -> str | None:
        tried.append(number)
        assert number % 2, "asserted"
        return "returned"

    with pytest.raises(pytest.fail.Exception, match="asserted"):
        try_undisturbed(wrong)
    with pytest.raises(pytest.fail.Exception, match="returned"):
        try_undisturbed(lambda _: "returned")
    assert tried == [0]


def test_a_disturbed_try_is_made_again(crowd: list[float]) -> None:
    crowd += [100.0]
    tried = []

    def second(number: int) -> str | None:
        tried.append(number)
        return None if number else "disturbed"

    try_undisturbed(second)
    assert tried == [0, 1]


def test_where_no_try_was_quiet_nothing_is_said(crowd: list[float]) -> None:
    crowd += [100.0] * tries
    with pytest.raises(pytest.skip.Exception, match=f"all of {tries} tries: slow; slow; slow"):
        try_undisturbed(lambda _: "slow")


def test_a_run_that_broke_is_excused_by_nobody(crowd: list[float]) -> None:
    crowd += [100.0] * tries
    with pytest.raises(pytest.fail.Exception, match="broke"):
        try_undisturbed(lambda _: pytest.fail("broke"))
