"""What a knob was worth: its sign and order where the trials tell, and "not known" where they do not."""

import json
import math
import random

import numpy as np
import pytest

from autotune.comparison import Interval
from autotune.free_space import FreeSpace
from autotune.lessons.knob_worth import KnobWorth, _sure_order, always_together, untold, value_knobs
from autotune.telemetry import Beside

# Names that are not ours: nothing is known of their physics.

choices = {
    "copies": ("host", "pinned", "peer"),
    "batch": (1024, 4096, 16384),
    "depth": (1, 2, 4),
}
start = {"copies": "host", "batch": 1024, "depth": 1}
best = {"copies": "peer", "batch": 16384, "depth": 2}
effects = {"host": 0.0, "pinned": 0.5, "peer": 0.6, 1024: 0.0, 4096: 0.1, 16384: 0.12, 1: 0.0, 2: 0.0, 4: 0.0}
back = [{**best, path: start[path]} for path in choices]
around = [
    start,
    best,
    best,
    *back,
    {**best, "depth": 4},
    {**start, "depth": 4},
]


def truth(values):
    return 9.0 + sum(effects[choice] for choice in values.values())


@pytest.fixture
def valued(trial_of, measurement_of):
    """Worths from runs of the points in their order; a repeated point is a repeat."""

    def make(points, winner, *, failed=(), noise=0.004, beside=None, allowed=None):
        generator, trials, first = random.Random(0), [], {}
        for number, values in enumerate([*points, *failed]):
            rate = math.exp(truth(values) + generator.gauss(0, noise)) if number < len(points) else None
            key = json.dumps(values)
            told = rate and measurement_of(rate, low=rate * 0.998, high=rate * 1.002, beside=beside)
            trials.append(trial_of(number, values, rate, measurement=told, repeat_of=first.get(key)))
            first.setdefault(key, number)
        chosen = next((trial for trial in trials if trial.values == winner), None)
        return value_knobs(FreeSpace(choices, start, allowed), trials, chosen)

    return make


def by_path(worths):
    return {worth.path: worth for worth in worths.knobs}


def test_signs_sizes_and_order_are_those_of_ablations(valued):
    worths = valued(around, best)
    told = by_path(worths)
    assert [worth.path for worth in worths.knobs][:2] == ["copies", "batch"]
    assert told["copies"].verdict == told["batch"].verdict == "faster"
    assert told["copies"].ratio.mid == pytest.approx(math.exp(0.6), rel=0.05)
    assert told["copies"].runs == 1
    assert ("copies", "batch") in worths.order
    assert ("batch", "copies") not in worths.order


def test_an_order_is_told_where_the_interval_of_the_difference_leaves_out_none():
    def told(path, gain):
        ratio = Interval(math.exp(gain), 1.0, 2.0)
        return KnobWorth(path=path, choice=1, other=2, ratio=ratio, verdict="faster", runs=0)

    knobs, gains = [told("a", 0.2), told("b", 0.1)], np.array([0.2, 0.1])
    assert _sure_order(knobs, gains, 0.05**2 * np.eye(2)) == []
    assert _sure_order(knobs, gains, 0.04**2 * np.eye(2)) == [("a", "b")]
    together = 0.05**2 * np.array([[1.0, 0.9], [0.9, 1.0]])
    assert _sure_order(knobs, gains, together) == [("a", "b")]


def test_a_knob_without_effect_is_not_called_worth_something(valued):
    told = by_path(valued(around, best))["depth"]
    assert told.verdict in ("no difference", "not known")
    assert told.ratio.low < 1 < told.ratio.high


def test_what_the_trials_cannot_tell_is_not_known(valued):
    """The winner differs from the start in two knobs, and nothing was tried between them."""
    other = {**best, "depth": 1}
    deep = [{**start, "depth": 4}, {**other, "depth": 4}]
    worths = valued([start, start, other, other, *deep, {**start, "depth": 2}], other)
    changed = [worth for worth in worths.knobs if worth.is_change]
    assert {worth.verdict for worth in changed} == {"not known"}
    assert {worth.reason for worth in changed} <= {always_together, untold}
    assert always_together in {worth.reason for worth in changed}
    assert worths.order == ()


def test_a_change_is_known_though_its_opposite_was_never_run_beside_the_winner(valued):
    """Peer beats host at the other budgets, so it does at this one."""
    points = [
        {"copies": preset, "batch": budget, "depth": depth}
        for preset in ("host", "peer")
        for budget in (1024, 4096)
        for depth in (1, 2)
    ]
    told = by_path(valued([*points, best, best], best))["copies"]
    assert told.verdict == "faster"
    assert told.runs == 0
    assert told.ratio.low < math.exp(0.6) < told.ratio.high


def test_a_ratio_within_one_run_tells_what_two_noisy_runs_do_not(valued):
    points = [start, best, back[1], back[2], {**start, "depth": 2}]
    alone = by_path(valued(points, best, noise=0.05))["batch"]
    beside = Beside(values=back[1], log_ratio=0.12, deviation=0.002)
    paired = by_path(valued(points, best, noise=0.05, beside=beside))["batch"]
    assert paired.ratio.high / paired.ratio.low < 0.5 * (alone.ratio.high / alone.ratio.low - 1) + 1


def test_a_change_without_which_it_fails_is_needed(valued):
    points = [values for values in around if values != back[0]]
    told = by_path(valued(points, best, failed=[back[0]]))["copies"]
    assert (told.verdict, told.ratio) == ("needed", None)
    assert told.reason == f"trial {len(points)}: out of memory"


def test_what_the_space_leaves_out_is_not_possible(valued):
    points = [values for values in around if values != back[0]]
    told = by_path(valued(points, best, allowed=lambda values: values != back[0] or "no such copies"))
    assert told["copies"].verdict == "not possible"
    assert told["copies"].reason == "no such copies"


def test_knobs_that_were_kept_are_held_against_their_nearest_rival(valued):
    kept = {**best, "depth": 1}
    told = by_path(valued([*around, kept, {**kept, "depth": 4}], kept))["depth"]
    assert not told.is_change
    assert (told.choice, told.other) in ((1, 2), (1, 4))


def test_too_few_trials_and_no_winner_say_so(valued):
    assert valued([start, best], best).reason == "too few were measured"
    assert valued(around, {}).reason == "no configuration was found to ask about"


def test_the_model_is_checked_by_leaving_configurations_out(valued):
    worths = valued(around, best)
    assert 0 <= worths.inside[0] <= worths.inside[1] == 7
    assert worths.error < 0.5
