"""The sentences that say why."""

from autotune.comparison import Interval
from autotune.explanation import explain
from autotune.telemetry import Cause


def test_changes_causes_and_waits_are_told(trial_of, measurement_of):
    before = measurement_of(
        100.0,
        causes=(
            Cause(name="sync-d2h", summary="copies take 85 %"),
            Cause(name="short-window", summary="few batches"),
        ),
        waits=(("drafter 0 get q_hs", 0.85), ("target 0 put q_hs", 0.30)),
    )
    after = measurement_of(
        300.0,
        causes=(Cause(name="short-window", summary="few batches"),),
        waits=(("drafter 0 get q_hs", 0.05), ("target 0 put q_hs", 0.29)),
    )
    start = trial_of(0, {"transport.preset": "host", "transport.depth": 2}, 100.0, measurement=before)
    fastest = trial_of(4, {"transport.preset": "peer", "transport.depth": 2}, 300.0, measurement=after)
    assert explain("better", fastest, start, Interval(3.0, 2.9, 3.1), (5, 7)) == [
        "Changed: transport.preset host → peer.",
        "No longer found: sync-d2h (copies take 85 %).",
        "What limits it now: short-window (few batches).",
        "Share of time: drafter 0 get q_hs 85% → 5%.",
        "Within the noise as fast: trials 5, 7.",
    ]


def test_a_failed_start_is_named_with_its_reason(trial_of):
    start = trial_of(0, {"transport.depth": 2})
    (sentence,) = explain("better", trial_of(1, {"transport.depth": 1}, 100.0), start, None, ())
    assert "CUDA out of memory" in sentence


def test_nothing_that_runs_is_said():
    assert "nothing is recommended" in explain("none", None, None, None, ())[0]
