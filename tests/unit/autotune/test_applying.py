"""Trials of an earlier space in a changed one."""

from autotune.applying import base_values, sort_out, translate
from autotune.free_space import FreeSpace


def test_values_move_to_a_space_that_holds_their_whole_configuration(space_of):
    space = space_of(pipeline__split=(), transport__depth=(1, 2, 4))
    base = base_values(space)
    old = {"pipeline.token_budget": 2048, "pipeline.prefetch_depth": base["pipeline.prefetch_depth"]}
    values, _ = translate(old, space, base)
    assert values == {"pipeline.token_budget": 2048, "transport.preset": "host", "transport.depth": 2}
    _, reason = translate({"pipeline.prefetch_depth": 99}, space, base)
    assert reason == "pipeline.prefetch_depth = 99 is not searched any more"
    _, reason = translate({"pipeline.token_budget": 512}, space, base)
    assert reason == "pipeline.token_budget = 512 is none of the choices any more"


def test_trials_are_sorted_into_those_that_apply_and_strays(trial_of):
    space = FreeSpace({"size": [1, 2]})
    trials = [trial_of(0, {"size": 1}, 1.0), trial_of(1, {"size": 3}, 1.0), trial_of(2, {"size": 2})]
    applying, strays = sort_out(trials, space)
    assert applying == (trials[0], trials[2])
    assert [(stray.trial.number, "none of the choices" in stray.reason) for stray in strays] == [(1, True)]
