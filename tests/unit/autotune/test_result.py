"""What trials amount to: verdict, recommendation and gain."""

import pytest

from autotune.effort import Effort
from autotune.identity import identify
from autotune.result import conclude, load_study
from benchmarks.in_order import InOrder
from dflash.contract.errors import RunError


@pytest.fixture
def concluded(tmp_path, space, machine, trial_of, measurement_of):
    """Conclude from the speeds of each configuration's runs, the starting configuration first."""

    def conclude_from(*runs, spread=0.001):
        trials = []
        for speeds in runs:
            values = space.baseline if not trials else space.configurations[len(trials) + 1]
            first = len(trials)
            for speed in speeds:
                number = len(trials)
                measured = measurement_of(speed, low=speed * (1 - spread), high=speed * (1 + spread))
                repeat_of = None if number == first else first
                trials.append(trial_of(number, values, speed, measurement=measured, repeat_of=repeat_of))
        return conclude(tmp_path, identify(space, machine, 12.0), space, trials, Effort(), InOrder())

    return conclude_from


def test_a_clear_gain_is_better(concluded):
    result = concluded([100, 101, 99], [150, 151, 149])
    assert (result.verdict, result.best.number) == ("better", 3)
    assert result.gain.low > 1.4


def test_a_gain_within_the_noise_recommends_the_start(concluded):
    result = concluded([100, 108, 94], [110, 96, 112])
    assert result.gain.mid > 1.02
    assert (result.verdict, result.best.number, result.fastest.number) == ("equal", 0, 3)


def test_a_sure_gain_below_the_tolerance_recommends_the_start(concluded):
    result = concluded([100, 100, 100], [101, 101, 101], spread=0.0001)
    assert result.gain.low > 1
    assert (result.verdict, result.best.number) == ("equal", 0)


def test_a_single_run_does_not_beat_what_was_confirmed(concluded):
    """105 once is no better than 108 that came down to 104: luck was not taken out of it yet."""
    result = concluded([100, 100, 100], [110, 100, 100], [108, 103, 103], [105])
    assert result.standings[0].trial.number == 9
    assert result.fastest.number == 6


def test_what_the_noise_does_not_tell_apart_is_named(concluded):
    assert concluded([100] * 3, [150, 152, 148], [149, 151, 148]).equals == (6,)
    assert concluded([100] * 3, [150, 152, 148], [120, 121, 119]).equals == ()


def test_no_trials_have_no_result_but_a_state(concluded):
    result = concluded()
    assert (result.verdict, result.best, result.gain) == ("none", None, None)
    assert "not done yet" in result.stop


def test_a_directory_without_a_study_is_said(tmp_path):
    with pytest.raises(RunError, match="not a study directory"):
        load_study(tmp_path)
