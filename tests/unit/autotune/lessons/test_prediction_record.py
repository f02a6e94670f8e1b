"""Predicted against measured: errors, coverage, and memory that was or was not foreseen."""

import pytest

from autotune.lessons.prediction_record import judge_predictions
from autotune.telemetry import FailureKind
from autotune.trial import Prediction, TrialState


@pytest.fixture
def predicted(space, trial_of):
    """Trial `number` with the prediction 100 (90 to 110), if nothing else is said."""

    def make(number, tokens_per_s=None, *, rate=100.0, low=90.0, high=110.0, fits=None, **changes):
        told = Prediction(tokens_per_s=rate, low=low, high=high, fits=fits)
        values = space.configurations[number % space.size]
        return trial_of(number, values, tokens_per_s, predicted=told, **changes)

    return make


def test_errors_and_coverage_are_of_first_runs(predicted):
    record = judge_predictions(
        [predicted(0, 100.0), predicted(1, 104.0), predicted(2, 130.0), predicted(3, 101.0, repeat_of=1)]
    )
    assert record.median_error == pytest.approx(0.04)
    assert record.worst_error == pytest.approx(0.30)
    assert (record.inside, record.judged) == (2, 3)
    assert [row.again for row in record.trials] == [False, False, False, True]
    assert record.coverage.mid == pytest.approx(2 / 3)
    assert record.coverage.low < 0.4
    assert record.coverage.high > 0.85


def test_memory_is_judged_by_the_chances_told(predicted):
    trials = [predicted(0, 100.0, fits=0.9), predicted(1, fits=0.3), predicted(2, 90.0, fits=0.8)]
    record = judge_predictions(trials)
    assert (record.out_of_memory, record.fits_judged) == (1, 3)
    assert record.out_of_memory_expected == pytest.approx(1.0)


def test_a_rate_that_may_not_be_compared_is_no_error(predicted, measurement_of):
    trials = [
        predicted(0, 500.0, unhealthy="the loss rises"),
        predicted(1, failure=FailureKind.crash),
        predicted(2, 50.0, measurement=measurement_of(50.0, stopped_early="far behind trial 0")),
        predicted(3, 50.0, state=TrialState.running, measurement=None),
    ]
    record = judge_predictions(trials)
    assert record.median_error is None
    assert record.coverage is None
    assert [row.number for row in record.trials] == [0, 1, 2]
    assert all(row.error is None for row in record.trials)


def test_a_prediction_without_an_interval_counts_as_an_error_only(predicted):
    record = judge_predictions([predicted(0, 110.0, low=None, high=None)])
    assert record.median_error == pytest.approx(0.1)
    assert (record.judged, record.coverage) == (0, None)


def test_no_predictions_say_so(space, trial_of):
    record = judge_predictions([trial_of(0, space.baseline, 100.0)])
    assert record.trials == ()
    assert record.reason == "no trial was predicted before it ran"
