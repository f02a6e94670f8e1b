"""What a study teaches beside its winner, from hand-made trials and from a search."""

import json

import pytest

from autotune.lessons.taught import group_failed, learn
from autotune.telemetry import Failed, FailureKind


def test_failures_are_grouped_most_common_first(space, trial_of):
    spots = space.configurations
    trials = [
        trial_of(0, spots[0], 100.0),
        trial_of(1, spots[1], failure=FailureKind.crash, reason="ended by SIGSEGV\nmore"),
        trial_of(2, spots[2], reason="CUDA out of memory. Tried to allocate 2 GiB"),
        trial_of(3, spots[3], reason="CUDA out of memory. Tried to allocate 3 GiB"),
        trial_of(4, spots[4], 100.0, unhealthy="the loss rises"),
    ]
    memory, crash = group_failed(trials)
    assert (memory.reason, memory.trials) == ("out of memory", (2, 3))
    assert memory.example == "CUDA out of memory. Tried to allocate 2 GiB"
    assert (crash.reason, crash.count) == ("crash: ended by SIGSEGV", 1)


@pytest.fixture
def lessons(searched, runner_of):
    """Of a search where peer copies are worth 60 % and 2-1 runs out of memory."""

    def speed(config):
        if config.pipeline.split == "2-1":
            return Failed(FailureKind.out_of_memory, "CUDA out of memory")
        return 1000.0 * (1.6 if config.transport.preset == "peer" else 1.0)

    result, _ = searched(runner_of(speed, noise=0.005), trials=14, repeats=2)
    return result, learn(result)


def test_a_search_teaches_what_its_winner_is_made_of(lessons):
    result, told = lessons
    assert result.fastest.values["transport.preset"] == "peer"
    worth = next(worth for worth in told.knobs.knobs if worth.path == "transport.preset")
    assert worth.verdict == "faster"
    assert worth.ratio.mid == pytest.approx(1.6, rel=0.05)
    assert told.failed[0].reason == "out of memory"
    assert told.projections.reason == "none of its runs left a run directory"
    assert told.length.reason == "no run says how many tokens the data has"


def test_its_json_is_strict_and_names_everything(lessons):
    _, told = lessons
    data = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert set(data) == {
        "length",
        "knobs",
        "predictions",
        "trade_offs",
        "failed",
        "excluded",
        "stopped_early",
        "not_applying",
        "ruled_out",
        "projections",
        "next_steps",
    }
    assert set(data["knobs"]["knobs"][0]["ratio"]) == {"mid", "low", "high"}
