"""The belief on memory: peaks and failures teach it, for what was not tried as well."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.free_space import FreeSpace
from autotune.guided.memory import MemoryBelief, Seen
from autotune.guided.physics import Layout
from autotune.guided.places import (
    Roles,
    Savings,
    guess_limit,
    peaks_of,
    pipeline_features,
    plain_features,
)
from autotune.guided.table import Table
from autotune.telemetry import MemoryFigures
from profiler.forecast.setting import Setting

budgets = (4096, 8192, 16384, 32768, 65536)
settings = [
    Setting(target_places=(0, 1), drafter_places=(2,), token_budget=budget, window_tokens=131072)
    for budget in budgets
]
layout = Layout.of(settings, 131072.0, 1.0)
nothing_saved = Savings(np.ones(len(budgets)), np.ones(len(budgets)))
features = pipeline_features(Roles.of(settings), layout, {}, 51_200 / 80e9, nothing_saved)


def test_more_tokens_fit_less() -> None:
    fits = MemoryBelief(features, []).fits()
    assert (np.diff(fits) < 0).all()
    assert fits[0] > 0.8
    assert fits[-1] < 0.6


def test_memory_goes_with_the_fullest_batch_not_with_a_window_in_equal_ones() -> None:
    uneven = [
        Setting(target_places=(0,), drafter_places=(1,), token_budget=budget, window_tokens=131072)
        for budget in (49152, 43691, 131072)  # three batches a window, twice
    ]
    laid = Layout.of(uneven, 131072.0, 1.0)
    ones = Savings(np.ones(3), np.ones(3))
    fits = MemoryBelief(pipeline_features(Roles.of(uneven), laid, {}, 51_200 / 80e9, ones), []).fits()
    assert laid.tokens[0] < 49152
    assert fits[0] < fits[1]


def test_peaks_settle_what_was_open() -> None:
    def peaks(budget: int) -> dict[str, float]:
        return {"target": 0.3 + 0.2 * budget / 65536, "leader": 0.2 + 0.6 * budget / 65536}

    told = [Seen(row, True, peaks(budgets[row])) for row in (0, 2)]
    assert MemoryBelief(features, told).fits()[-1] > MemoryBelief(features, []).fits()[-1]
    held = MemoryBelief(features, told).held(3)
    assert held["leader"] == pytest.approx(peaks(budgets[3])["leader"], abs=0.05)


def test_running_out_of_memory_teaches_of_what_was_not_tried() -> None:
    before, after = MemoryBelief(features, []).fits(), MemoryBelief(features, [Seen(3, False, {})]).fits()
    assert after[4] < 0.5 * before[4]
    assert after[2] < before[2]
    assert MemoryBelief(features, [Seen(3, True, {})]).fits()[2] > before[2]


def test_what_was_planned_tells_how_much_a_run_wanted_that_found_too_little() -> None:
    def wanted(share: float) -> float:
        ran = Seen(1, True, {"target": 0.4, "leader": 0.5}, {"target": 0.5, "leader": 0.625})
        failed = Seen(3, False, {"target": 0.6, "leader": 0.9}, {"target": 0.7, "leader": share})
        return MemoryBelief(features, [ran, failed]).held(3)["leader"]

    # Plans are a quarter too high in the run that went well.
    assert wanted(1.5) == pytest.approx(1.2, abs=0.05)
    assert wanted(1.9) > wanted(1.5) + 0.1


def test_a_run_that_failed_needs_at_least_what_it_held_by_then() -> None:
    bare, told = (MemoryBelief(features, [Seen(3, False, held)]) for held in ({}, {"target": 0.9}))
    assert told.held(3)["target"] > bare.held(3)["target"]


def test_close_readings_make_it_surer() -> None:
    def told(off: float) -> list[Seen]:
        shares = [0.2 + 0.6 * budget / 65536 for budget in budgets]
        return [Seen(row, True, {"leader": shares[row] + off * (-1) ** row}) for row in range(4)]

    smooth, rough = MemoryBelief(features, told(0.0)), MemoryBelief(features, told(0.04))
    assert smooth.held(4)["leader"] == pytest.approx(0.8, abs=0.03)
    assert smooth.fits()[4] > rough.fits()[4]


def test_known_savers_are_thought_to_save_before_they_were_tried() -> None:
    space = FreeSpace({"drafter.checkpointing": ("none", "layers"), "transport.trim": (False, True)})
    saved = Savings.of(Table.of(space))
    assert saved.activations.tolist() == [1.0, 1.0, pytest.approx(0.65), pytest.approx(0.65)]
    assert saved.states.tolist() == [1.0, pytest.approx(0.7), 1.0, pytest.approx(0.7)]


def test_draws_agree_with_the_chance() -> None:
    belief = MemoryBelief(features, [Seen(2, True, {})])
    rows = np.arange(len(budgets))
    drawn = belief.draw_fits(rows, 4000, np.random.default_rng(0)).mean(axis=0)
    assert drawn == pytest.approx(belief.fits(), abs=0.12)


def test_knobs_of_any_name_are_learnt_too() -> None:
    table = Table.of(FreeSpace({"size": (1, 2, 4, 8), "kind": ("a", "b")}))
    plain = plain_features(table)
    starved = table.row({"size": 4, "kind": "a"})
    assert starved is not None
    before, after = MemoryBelief(plain, []).fits(), MemoryBelief(plain, [Seen(starved, False, {})]).fits()
    larger = table.row({"size": 8, "kind": "b"})
    smaller = table.row({"size": 1, "kind": "b"})
    assert after[larger] < after[smaller]
    assert after[larger] < before[larger]


def test_peaks_are_those_of_the_fullest_place_of_a_kind() -> None:
    figures = {
        "cuda:0": MemoryFigures(peak_bytes=40e9, limit_bytes=80e9),
        "cuda:1": MemoryFigures(peak_bytes=48e9, limit_bytes=80e9),
        "cuda:2": MemoryFigures(peak_bytes=60e9, limit_bytes=80e9),
        "host": MemoryFigures(peak_bytes=9e12),
    }
    assert peaks_of(settings[0], figures, 80e9) == pytest.approx({"target": 0.6, "leader": 0.75})
    assert peaks_of(None, figures, 80e9) == pytest.approx({"place": 0.75})


def test_an_unsaid_limit_is_a_usual_size_above_what_was_seen() -> None:
    assert guess_limit([{"cuda:0": MemoryFigures(peak_bytes=61e9)}]) == 80e9
    assert guess_limit([{"cuda:0": MemoryFigures(peak_bytes=61e9, limit_bytes=64e9)}]) == 64e9
    assert guess_limit([]) == 16e9
