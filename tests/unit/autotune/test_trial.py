"""A trial's JSON and score."""

import json

import numpy as np

from autotune.telemetry import Cause, FailureKind
from autotune.trial import Prediction, Trial, TrialState


def test_trial_survives_strict_json(trial_of, measurement_of):
    cause = Cause(
        name="sync-d2h", summary="copies wait", remedy={"transport.preset": "peer", "transport.depth": 2}
    )
    measured = measurement_of(1.0, causes=(cause,), losses=(1.0, None), waits=(("drafter 0 get q_hs", 0.5),))
    for trial in (
        trial_of(0, {"transport.depth": 2}, 1.0, measurement=measured, unhealthy="the loss is off"),
        trial_of(1, {"transport.depth": 4}),
        trial_of(2, {"transport.depth": 4}, state=TrialState.running, failure=None, reason=None),
    ):
        assert Trial.from_json(json.loads(json.dumps(trial.to_json(), allow_nan=False))) == trial


def test_score_is_zero_for_what_may_not_win(trial_of):
    assert trial_of(0, {}, 5.0).score == 5.0
    assert trial_of(0, {}, 5.0, unhealthy="the loss is off").score == 0.0
    assert trial_of(0, {}, failure=FailureKind.timeout).score == 0.0


def test_numbers_of_other_libraries_are_numbers_on_disk(trial_of, measurement_of):
    measured = measurement_of(np.float64(5.0), steps=np.int64(20), losses=(np.float32(1.5),))
    told = trial_of(
        0, {"size": np.int64(4)}, 5.0, measurement=measured, predicted=Prediction(tokens_per_s=np.nan)
    )
    data = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert (data["values"]["size"], data["measurement"]["steps"]) == (4, 20)
    assert data["measurement"]["losses"] == [1.5]
    assert data["predicted"]["tokens_per_s"] is None
