"""A trial's JSON and score."""

import json

from autotune.telemetry import Cause, FailureKind
from autotune.trial import Trial, TrialState


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
