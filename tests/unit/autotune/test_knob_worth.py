"""What a knob was worth: its sign and order where the trials tell, and "not known" where they do not."""

import math
import random

import pytest

from autotune.knob_worth import judge_knobs
from autotune.surface import Reading

choices = {
    "transport.preset": ("host", "pinned", "peer"),
    "pipeline.token_budget": (1024, 4096, 16384),
    "transport.depth": (1, 2, 4),
}
start = {"transport.preset": "host", "pipeline.token_budget": 1024, "transport.depth": 1}
winner = {"transport.preset": "peer", "pipeline.token_budget": 16384, "transport.depth": 2}
effects = {"host": 0.0, "pinned": 0.5, "peer": 0.6, 1024: 0.0, 4096: 0.1, 16384: 0.12, 1: 0.0, 2: 0.0, 4: 0.0}


def truth(values):
    return 9.0 + sum(effects[choice] for choice in values.values())


def read(values, noise=0.0):
    return Reading(values=values, log_rate=truth(values) + noise, deviation=0.002)


def around(noise=0.004, seed=0):
    """The start, the winner twice, and every single change of the winner back to the start."""
    generator = random.Random(seed)
    back = [{**winner, path: start[path]} for path in choices]
    points = [start, winner, winner, *back, {**winner, "transport.depth": 4}, {**start, "transport.depth": 4}]
    return [read(values, generator.gauss(0, noise)) for values in points]


def by_path(worths):
    return {worth.path: worth for worth in worths.knobs}


def test_signs_sizes_and_order_are_those_of_ablations():
    worths = judge_knobs(choices, around(), winner, start)
    told = by_path(worths)
    assert [worth.path for worth in worths.knobs][:2] == ["transport.preset", "pipeline.token_budget"]
    assert told["transport.preset"].verdict == told["pipeline.token_budget"].verdict == "faster"
    assert told["transport.preset"].ratio.mid == pytest.approx(math.exp(0.6), rel=0.03)
    assert told["transport.preset"].runs == 1
    assert ("transport.preset", "pipeline.token_budget") in worths.order
    assert ("pipeline.token_budget", "transport.preset") not in worths.order


def test_a_knob_without_effect_is_not_called_worth_something():
    told = by_path(judge_knobs(choices, around(), winner, start))["transport.depth"]
    assert told.verdict in ("no difference", "not known")
    assert told.ratio.low < 1 < told.ratio.high


def test_what_the_trials_cannot_tell_is_not_known():
    """The winner differs from the start in two knobs, and nothing was tried between them."""
    other = {**winner, "transport.depth": 1}
    worths = judge_knobs(choices, [read(start), read(start), read(other), read(other)], other, start)
    assert {worth.verdict for worth in worths.knobs if worth.is_change} == {"not known"}
    assert all("no trial differs" in worth.reason for worth in worths.knobs if worth.is_change)
    assert worths.order == ()


def test_a_single_change_is_known_though_its_opposite_was_never_run_beside_the_winner():
    """Additive knowledge from elsewhere: peer beats host at the other budgets, so it does at this one."""
    generator = random.Random(3)
    points = [
        {"transport.preset": preset, "pipeline.token_budget": budget, "transport.depth": depth}
        for preset in ("host", "peer")
        for budget in (1024, 4096)
        for depth in (1, 2)
    ]
    readings = [read(values, generator.gauss(0, 0.005)) for values in [*points, winner, winner]]
    told = by_path(judge_knobs(choices, readings, winner, start))["transport.preset"]
    assert told.verdict == "faster"
    assert told.runs == 0
    assert told.ratio.low < math.exp(0.6) < told.ratio.high


def test_a_change_without_which_it_fails_is_needed():
    failed = [({**winner, "transport.preset": "host"}, "trial 9: out of memory")]
    readings = [r for r in around() if r.values != failed[0][0]]
    told = by_path(judge_knobs(choices, readings, winner, start, failed=failed))["transport.preset"]
    assert (told.verdict, told.ratio, told.reason) == ("needed", None, "trial 9: out of memory")


def test_knobs_that_were_kept_are_held_against_their_nearest_rival():
    kept = {**winner, "transport.depth": 1}
    readings = [*around(), read(kept), read({**kept, "transport.depth": 4}), read(kept)]
    told = by_path(judge_knobs(choices, readings, kept, start))["transport.depth"]
    assert not told.is_change
    assert (told.choice, told.other) in ((1, 2), (1, 4))


def test_too_few_trials_say_so():
    worths = judge_knobs(choices, [read(start), read(winner)], winner, start)
    assert worths.knobs == ()
    assert worths.reason == "too few trials were measured"


def test_the_surface_is_checked_by_leaving_configurations_out():
    worths = judge_knobs(choices, around(), winner, start)
    assert 0 <= worths.inside[0] <= worths.inside[1] == 7
    assert worths.error < 0.5
