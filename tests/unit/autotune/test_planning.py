"""The order of runs that a search makes, driven through by hand-made outcomes."""

from dataclasses import replace

import pytest

from autotune.effort import Effort
from autotune.history import History, dependable_runs, find_contenders
from autotune.planning import describe_progress, stretches
from autotune.planning import plan_next as plan
from autotune.searcher import Stop
from autotune.telemetry import FailureKind
from autotune.trial import TrialState
from benchmarks.in_order import InOrder
from dflash.contract.errors import UsageError


def plan_next(space, trials, effort):
    return plan(InOrder(), History(space, tuple(trials), effort))


def describe_stop(space, trials, effort):
    return describe_progress(History(space, tuple(trials), effort), plan_next(space, trials, effort))


def carry_on(space, trials, effort, trial_of, outcome, limit=60):
    """Do what the searcher asks until it is done; `outcome(task)` is a speed or trial fields."""
    while not isinstance(task := plan_next(space, trials, effort), Stop):
        assert len(trials) < limit, "the search does not end"
        given = outcome(task)
        fields = given if isinstance(given, dict) else {"tokens_per_s": given}
        trials.append(
            trial_of(
                len(trials),
                task.values,
                repeat_of=task.repeat_of,
                retry_of=task.retry_of,
                seconds=task.seconds,
                **fields,
            )
        )
    return trials


@pytest.mark.parametrize(
    "wrong", [{"trials": 0}, {"repeats": -1}, {"seconds": float("nan")}, {"tolerance": 1.0}]
)
def test_impossible_effort_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Effort(**wrong)


def test_contenders_are_repeated_in_mirrored_order(space, trial_of):
    speeds = iter([100.0, 300.0, 50.0, 200.0])
    trials = carry_on(
        space,
        [],
        Effort(trials=4, repeats=2),
        trial_of,
        lambda task: next(speeds, 100.0 + 100 * (task.repeat_of or 0)),
    )
    assert [t.repeat_of for t in trials] == [None] * 4 + [1, 3, 0, 0, 3, 1]


def test_nothing_is_repeated_where_there_is_nothing_to_compare(space_of, trial_of):
    space = space_of(pipeline__split=(), pipeline__token_budget=(), transport__preset=("host",))
    trials = carry_on(space, [], Effort(), trial_of, lambda task: 100.0)
    assert len(trials) == 1
    assert "the space is exhausted" in describe_stop(space, trials, Effort())


def test_exhausted_space_stops_and_says_so(space_of, trial_of):
    space = space_of(
        pipeline__split=(),
        pipeline__token_budget=(1024, 2048, 4096),
        transport__preset=("host", "pinned", "peer"),
    )
    effort = Effort(trials=20, repeats=0)
    trials = carry_on(space, [], effort, trial_of, lambda task: 100.0)
    assert len(trials) == 9
    assert describe_stop(space, trials, effort) == "9 of 9 configurations tried, the space is exhausted"


def test_killed_trial_is_run_again_before_anything_else(space, trial_of):
    killed = trial_of(1, space.configurations[5], state=TrialState.killed, failure=None, repeat_of=None)
    trials = [trial_of(0, space.baseline, 100.0), killed]
    task = plan_next(space, trials, Effort())
    assert (task.values, task.retry_of) == (killed.values, 1)
    again = trial_of(2, killed.values, 100.0, retry_of=1)
    assert plan_next(space, [*trials, again], Effort()).retry_of is None


def test_interrupted_repeat_stays_a_repeat(space, trial_of):
    trials = [trial_of(0, space.baseline, 1.0), trial_of(1, space.configurations[5], 2.0)]
    trials.append(trial_of(2, trials[1].values, state=TrialState.interrupted, failure=None, repeat_of=1))
    task = plan_next(space, trials, Effort())
    assert (task.repeat_of, task.retry_of) == (1, 2)


def test_start_with_too_few_windows_is_given_more_time_and_so_are_all_others(space, trial_of):
    enough = 12 * 2.5**2

    def outcome(task):
        return 100.0 if task.seconds >= enough else {"failure": FailureKind.too_short}

    trials = carry_on(space, [], Effort(trials=3, repeats=0), trial_of, outcome)
    assert [t.seconds for t in trials] == [12, 30, 75, 75, 75]


def test_a_start_that_used_up_its_data_gets_no_more_time(space, trial_of):
    failure = {"failure": FailureKind.data_used_up, "reason": "5 whole windows were seen"}
    trials = carry_on(space, [], Effort(trials=8), trial_of, lambda task: failure)
    assert [t.seconds for t in trials] == [12, 12, 12]


def test_stretching_the_start_has_an_end(space, trial_of):
    trials = carry_on(
        space,
        [],
        Effort(trials=3),
        trial_of,
        lambda task: {"failure": FailureKind.too_short, "reason": f"{task.seconds}"},
    )
    start = [t for t in trials if t.values == space.baseline]
    assert len(start) == 1 + stretches


def test_a_repeat_with_too_few_windows_is_given_more_time(space, trial_of):
    trials = [trial_of(0, space.baseline, 1.0), trial_of(1, space.configurations[5], 2.0)]
    short = {"failure": FailureKind.too_short, "seconds": 12.0, "repeat_of": 1}
    trials.append(trial_of(2, trials[1].values, **short))
    task = plan_next(space, trials, Effort())
    assert (task.repeat_of, task.retry_of, task.seconds) == (1, 2, 30.0)
    assert 1 in dependable_runs(trials)
    trials.append(trial_of(3, trials[1].values, 2.1, seconds=30.0, repeat_of=1, retry_of=2))
    assert plan_next(space, trials, Effort()).retry_of is None
    assert len(dependable_runs(trials)[1]) == 3


def test_a_configuration_whose_repeats_stay_too_short_is_dropped_in_the_end(space, trial_of):
    def outcome(task):
        return (
            {"failure": FailureKind.too_short}
            if task.repeat_of == 1
            else 1.0 + (task.values != space.baseline)
        )

    trials = carry_on(space, [], Effort(trials=2, repeats=1), trial_of, outcome)
    repeats = [t for t in trials if t.repeat_of == 1]
    assert len(repeats) == 1 + stretches
    assert [t.seconds for t in repeats] == sorted({t.seconds for t in repeats})
    assert 1 not in dependable_runs(trials)


class Doubter(InOrder):
    """Knows how likely a gap is, and does not say so when it stops."""

    def gap_chance(self, history):
        return 0.24


def test_whatever_ends_a_search_the_chance_of_a_gap_is_told(space, trial_of):
    trials = (trial_of(0, space.baseline, 1.0), trial_of(1, space.configurations[5], 2.0))
    spent = (Effort(trials=2, repeats=0), Effort(minutes=1e-9))
    aged = tuple(replace(trial, spent_s=30.0) for trial in trials)
    for effort in spent:
        stop = plan(Doubter(), History(space, aged, effort))
        assert isinstance(stop, Stop)
        assert stop.gap_probability == 0.24
        assert plan(InOrder(), History(space, aged, effort)).gap_probability is None


def test_search_gives_up_when_all_fail_alike(space, trial_of):
    effort = Effort(trials=8)
    trials = carry_on(
        space, [], effort, trial_of, lambda task: {"failure": FailureKind.refused, "reason": "no such data"}
    )
    assert len(trials) == 3
    assert "given up" in describe_stop(space, trials, effort)


def test_configuration_whose_repeat_fails_is_no_contender(space, trial_of):
    trials = [trial_of(i, space.configurations[i + 1], 100.0 + i) for i in range(3)]
    trials.insert(0, trial_of(9, space.baseline, 50.0))
    assert [t.number for t in find_contenders(space, trials)] == [2, 1, 9]
    trials.append(trial_of(10, trials[3].values, repeat_of=2))
    assert [t.number for t in find_contenders(space, trials)] == [1, 0, 9]


def test_abandoned_repeat_is_not_held_against_its_configuration(space, trial_of):
    trials = [trial_of(0, space.baseline, 50.0), trial_of(1, space.configurations[3], 100.0)]
    trials.append(trial_of(2, trials[1].values, repeat_of=1, failure=FailureKind.abandoned))
    assert [t.number for t in find_contenders(space, trials)] == [1, 0]
