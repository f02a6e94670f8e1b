"""Trainings killed at random moments go on: nothing is lost, nothing comes twice (C099, C102, C107).

The same as `python -m benchmarks.killed_trainings --kills 50`, which takes several minutes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.killed_trainings import Tally, play
from benchmarks.training_ledger import Leg, settle


@pytest.mark.slow
def test_killed_trainings_train_each_document_once_an_epoch(tmp_path: Path) -> None:
    tally = play(tmp_path, kills=4, seed=4)
    assert (tally.kills, tally.chains_under_other_splits >= 1) == (4, True)
    assert tally.is_clean, tally


def test_whatever_went_wrong_is_not_clean() -> None:
    done = {
        "chains",
        "chains_under_other_splits",
        "kills",
        "kills_while_saving",
        "kills_before_the_first_step",
    }
    done |= {"steps_trained_again", "documents"}
    assert Tally(**dict.fromkeys(done, 1)).is_clean
    for name in {field.name for field in dataclasses.fields(Tally)} - done:
        assert not Tally(**{name: 1}).is_clean, name


def leg(path: Path, first_step: int, *lines: str) -> Leg:
    path.write_text("\n".join(lines))
    return Leg(path, first_step)


def batch(step: int, *documents: int) -> str:
    return f'{{"step": {step}, "epoch": 0, "documents": {list(documents)}}}'


def test_the_ledger_counts_what_the_last_weights_have_seen(tmp_path: Path) -> None:
    killed = leg(
        tmp_path / "0", 0, batch(0, 4), batch(0, 1), '{"made": 0}', batch(1, 2), '{"made": 1}', '{"st'
    )
    never_began = Leg(tmp_path / "absent", 1)
    rest = leg(tmp_path / "1", 1, batch(1, 2), '{"made": 1}', batch(2, 0, 3), '{"made": 2}', "")
    account = settle([killed, never_began, rest], 3)
    assert account.steps == Counter({0: 1, 1: 1, 2: 1})
    assert (account.lost(5, 1), account.lost(6, 1), account.repeated()) == (0, 1, 0)
    # Resumed a step too early, the same ledgers tell of what came twice; a step too late, of what is lost.
    assert settle([killed, Leg(rest.ledger, 2)], 3).repeated() == 2
    assert settle([leg(tmp_path / "2", 0, batch(0, 4, 1), ""), rest], 3).lost(5, 1) == 0
