"""What a search costs at most."""

from __future__ import annotations

import json

import pytest

from autotune.cost import assumed_start_s, measured_starts_s, price
from autotune.effort import Effort


def test_every_run_takes_its_training_and_its_start():
    cost = price(Effort(trials=10, repeats=2, seconds=30), 1000, 4, emulated=False)
    runs = 10 + (2 * 2 * 3 + 5 + 1)
    assert cost.minutes == pytest.approx(runs * (30 + assumed_start_s[False]) / 60)
    assert cost.gpu_hours == pytest.approx(cost.minutes * 4 / 60)
    assert (cost.limited_by, cost.start_from) == ("trials", "assumed, none was measured")


def test_a_small_space_costs_no_more_than_it_holds():
    cost = price(Effort(trials=10, repeats=1), 2, 0, emulated=True)
    assert (cost.trials, cost.repeats, cost.gpu_hours, cost.limited_by) == (2, 6, 0, "the space")


@pytest.mark.parametrize(
    ("effort", "minutes", "limited_by"),
    [
        ({"minutes": 5.0}, 5.0, "minutes"),
        ({"gpu_hours": 0.4}, 6.0, "GPU-hours"),
        ({"minutes": 5.0, "gpu_hours": 0.1}, 1.5, "GPU-hours"),
        ({"minutes": 1e6}, (8 + 12 + 4 + 1) * 102 / 60, "trials"),
    ],
)
def test_the_tightest_budget_is_the_bound(effort, minutes, limited_by):
    cost = price(Effort(trials=8, **effort), 1000, 4, emulated=False)
    assert (cost.minutes, cost.limited_by) == (pytest.approx(minutes), limited_by)


def test_starts_of_a_study_are_taken_as_measured(tmp_path, trial_of, space):
    for number, spent_s in enumerate((20.0, 22.0, 90.0)):
        (tmp_path / "trials" / f"{number:03d}").mkdir(parents=True)
        trial = trial_of(number, space.baseline, 100.0, spent_s=spent_s)
        (tmp_path / "trials" / f"{number:03d}" / "trial.json").write_text(json.dumps(trial.to_json()))
    for name, text in (("003", "{"), ("004", '{"state": "finished"}'), ("005", "[]")):
        (tmp_path / "trials" / name).mkdir()
        (tmp_path / "trials" / name / "trial.json").write_text(text)
    assert measured_starts_s(tmp_path) == [8.0, 10.0, 78.0]
    cost = price(Effort(), 100, 1, emulated=False, study_dir=tmp_path)
    assert cost.start_s == 10.0
    assert cost.start_from == f"measured in 3 trials of {tmp_path}"
