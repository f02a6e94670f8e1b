"""Matches of a tuning contest: every run counts, what is recommended is scored, rows are gone on with."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.history import History
from autotune.searcher import Stop, Task
from autotune.telemetry import Values
from benchmarks.tuner import choose_matches, describe, find_missing, play_missing, read_rows, tuners, variants
from benchmarks.tuner_match import Match, fingerprint, play, play_ours, play_peer
from benchmarks.tuner_ours import Entry, check_model, entries, version_of
from benchmarks.tuner_peer_process import PeerError, PeerProcess
from benchmarks.tuner_peers import Peer, RandomPeer
from benchmarks.tuner_suite import Problem


@cache
def problem() -> Problem:
    return Problem("normal", 18)


@cache
def best_safe_and_full() -> tuple[Values, Values, Values]:
    """The best configuration, a slow one, and one that never fits."""
    given = problem()
    safe = np.flatnonzero(~given.can_fail)
    slow = safe[given.rates[safe].argmin()]
    full = given.fullness.argmax()
    return tuple(given.configurations[int(row)] for row in (given.worth.argmax(), slow, full))


class Script(Peer):
    """Asks for what it was given, in turn."""

    def __init__(self, asked: list[Values]) -> None:
        self._left, self.told = list(asked), []

    def ask(self) -> dict[str, Any]:
        return dict(self._left.pop(0))

    def tell(self, score: float | None) -> None:
        self.told.append(score)


class ScriptedSearcher:
    """A search of ours that tries what it was given, then stops."""

    def __init__(self, asked: list[Values], recommended: Callable[[History], Any] | None = None) -> None:
        self._asked, self._recommended = asked, recommended

    def next(self, history: History) -> Task | Stop:
        if len(history.trials) < len(self._asked):
            return Task(values=self._asked[len(history.trials)], why="it was in the script")
        return Stop("the script is over", gap_probability=0.05)


def test_a_peer_is_scored_by_its_fastest_run_and_told_of_memory_as_nothing() -> None:
    best, slow, full = best_safe_and_full()
    peer = Script([slow, full, best, slow])
    row = play_peer(problem(), peer, 4)
    assert row["worth"][0] < 0.9
    assert row["worth"] == [row["worth"][0], row["worth"][0], 1.0, 1.0]
    assert (row["failed"], row["repeated"], row["made"]) == (1, 1, 4)
    assert peer.told[0] == 1.0
    assert peer.told[1] is None
    assert peer.told[2] > 1.1


def test_a_recommendation_that_can_run_out_of_memory_is_worth_nothing() -> None:
    given = Problem("normal", 7)
    edge = int(np.where(given.can_fail, given.fullness, np.inf).argmin())
    assert given.fullness[edge] < 0.999  # so that some runs fit
    row = play_peer(given, Script([given.configurations[edge]] * 60), 60)
    assert 0 < row["failed"] < 60
    assert set(row["worth"]) == {0.0}


def test_our_own_stop_ends_the_trials_and_its_recommendation_stays() -> None:
    best, slow, full = best_safe_and_full()
    entry = Entry(make=lambda: ScriptedSearcher([slow, full, best]), told="a script")
    row = play_ours(problem(), entry, 10)
    assert (row["made"], row["stopped"], row["failed"]) == (3, 3, 1)
    assert row["stop"] == "the script is over"
    assert row["gap_probability"] == 0.05
    assert len(row["worth"]) == 10
    assert row["worth"][0] < 0.9
    assert row["worth"][2:] == [1.0] * 8


def test_a_search_that_uses_up_its_trials_has_no_stop() -> None:
    _, slow, _ = best_safe_and_full()
    row = play_ours(problem(), Entry(make=lambda: ScriptedSearcher([slow] * 9), told="a script"), 4)
    assert row["made"] == 4
    assert "stopped" not in row


def test_a_peer_behind_a_pipe_asks_as_it_does_here(tmp_path: Path) -> None:
    given = problem()
    said = {"choices": given.choices, "baseline": given.baseline, "seed": 3, "trials": 6}
    far = PeerProcess(Path(sys.executable), "random", log=tmp_path / "log", folder="", **said)
    near = RandomPeer(*said.values())
    for number in range(6):
        asked = far.ask()
        assert asked == near.ask()
        assert number or asked == given.baseline
        far.tell(None if number % 2 else 1.0)
    far.close()


def test_a_peer_that_dies_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="nobody"):
        PeerProcess(Path(sys.executable), "nobody", log=tmp_path / "log", choices={}, baseline={}, seed=0)


@pytest.mark.parametrize("name", ["optuna-tpe", "optuna-tpe-constrained"])
def test_a_peer_starts_where_we_start_and_is_the_same_twice(name: str) -> None:
    rows = [play(Match(tuner=name, set="normal", seed=18, trials=14)) for _ in range(2)]
    assert rows[0]["worth"] == rows[1]["worth"]
    assert rows[0]["worth"][0] == pytest.approx(problem().worth[problem().row(problem().baseline)], abs=1e-4)


def options(path: Path, *only: str, **more: Any) -> argparse.Namespace:
    chosen = {"sets": ["normal"], "seeds": 1, "trials": 6, "peers_python": None, **more}
    return argparse.Namespace(rows=path, only=list(only), **chosen)


def test_a_second_call_plays_only_what_is_missing(tmp_path: Path) -> None:
    rows_path = tmp_path / "rows.jsonl"
    asked = options(rows_path, "random")
    rows = read_rows(rows_path)
    play_missing(choose_matches(asked), rows, rows_path, 1)
    first = rows_path.read_text()
    again = read_rows(rows_path)
    assert again == rows
    play_missing(choose_matches(asked), again, rows_path, 1)
    assert rows_path.read_text() == first
    document = describe(again, asked, {})
    assert [entry["tuner"] for entry in document["scores"]] == ["random"]
    assert document["unplayed"] == {}
    more = describe(again, options(rows_path, "random", "ax", seeds=2), {})
    assert more["unplayed"] == {"ax": 2, "random": 1}  # what was not played is counted, not left out
    json.dumps(document, allow_nan=False)


def test_rows_of_another_suite_or_search_do_not_count(tmp_path: Path) -> None:
    rows_path = tmp_path / "rows.jsonl"
    row = {"tuner": "random", "set": "normal", "seed": 18, "suite": fingerprint(problem())}
    ours = {**row, "tuner": "ours", "version": version_of("ours")}
    others = ({**row, "suite": 1}, {**ours, "version": 1}, {**row, "tuner": "ours"})
    rows_path.write_text("".join(json.dumps(each) + "\n" for each in (row, ours, *others)))
    assert read_rows(rows_path) == [row, ours]


def test_a_match_that_fails_is_told_and_takes_no_other_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = []
    broken = Match(tuner="ax", set="normal", seed=0, trials=6, python=Path(sys.executable))
    sound = Match(tuner="random", set="normal", seed=0, trials=6)
    play_missing([broken, sound], rows, tmp_path / "rows.jsonl", 1)
    assert [row["tuner"] for row in rows] == ["random"]
    assert "ax is gone" in capsys.readouterr().out


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tuner._has", lambda module, python: module == "optuna")
    assert find_missing(tuners, Path("python9")) == {
        "smac": "python9 has no smac",
        "ax": "python9 has no ax",
    }


def test_our_search_plays_and_its_model_is_looked_into() -> None:
    row = play_ours(problem(), entries["ours"], 3)
    assert row["made"] == 3
    assert row["worth"][0] == pytest.approx(problem().worth[problem().row(problem().baseline)], abs=1e-4)
    assert 0 < row["two_run_error"] < 1
    assert 0 <= row["missed_memory"] < 0.3
    assert 0 <= row["pruned_memory"] < 0.9


def test_a_search_without_a_memory_model_misses_all_that_does_not_fit() -> None:
    given = problem()
    parts = entries["ours-no-memory"].parts
    assert parts is not None
    found = check_model(given, given.space(), (), parts)
    assert found == {
        "missed_memory": pytest.approx((given.fullness > 1).mean(), abs=1e-4),
        "pruned_memory": 0,
    }


def test_every_part_of_ours_has_a_variant_without_it() -> None:
    parts = [entries[name].parts for name in variants]
    assert len({repr(each) for each in parts}) == len(variants) == 4
    assert all(repr(each).count("False") == 1 for each in parts)
