"""Parts of stages are told apart from noise, from waits, and in words with units that fit."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.stage_changes import StageChange, compare_stages, tell_change
from profiler.stage_costs import Part, StageCosts

forward: Part = ("target", "work", "forward")
put: Part = ("target", "wait", "put q_hs")
copies: Part = ("drafter", "copy", "copy pageable")
backward: Part = ("drafter", "work", "backward")
get: Part = ("drafter", "wait", "get q_hs")


def costs(seconds: dict[Part, list[float]], *, batches: float = 10.0) -> StageCosts:
    """Ten blocks of 1,000 tokens; each part repeats its values over them."""
    return StageCosts(
        tokens=np.full(10, 1000.0),
        seconds={part: np.resize(values, 10).astype(float) for part, values in seconds.items()},
        range_s=100.0,
        threads={"target": 1, "drafter": 1},
        batches={"target": batches, "drafter": batches},
    )


def changes(a: StageCosts, b: StageCosts) -> dict[str, StageChange]:
    found, reason = compare_stages(a, b)
    assert reason is None
    return {change.part: change for change in found}


def test_a_difference_smaller_than_that_between_blocks_is_noise() -> None:
    noisy = changes(costs({forward: [5.0, 15.0]}), costs({forward: [5.5, 15.5]}))["forward"]
    assert not noisy.beyond_noise
    assert noisy.low < 0 < noisy.high
    steady = changes(costs({forward: [10.0, 10.1]}), costs({forward: [10.5, 10.6]}))["forward"]
    assert steady.beyond_noise
    assert steady.stage_share == pytest.approx(0.0498, abs=0.001)


def test_a_tiny_change_beyond_noise_is_not_told() -> None:
    change = changes(costs({forward: [10.0]}), costs({forward: [10.1]}))["forward"]
    assert change.beyond_noise
    assert not change.is_told


def test_only_a_change_in_the_direction_of_the_throughput_explains_it() -> None:
    found = changes(costs({forward: [5.0], put: [5.0]}), costs({forward: [8.0], put: [2.0]}))
    assert found["forward"].explains("slower")
    assert not found["forward"].explains("faster")
    assert not found["put q_hs"].explains("faster"), "a wait explains nothing"
    back = changes(costs({forward: [8.0]}), costs({forward: [5.0]}))["forward"]
    assert back.explains("faster")
    assert not back.explains("slower")


def test_the_stage_that_waits_least_comes_first() -> None:
    a = costs({forward: [2.0], put: [8.0], backward: [9.0], get: [1.0]})
    b = costs({forward: [7.0], put: [3.0], backward: [9.5], get: [0.5]})
    found, _ = compare_stages(a, b)
    assert [change.stage for change in found] == ["drafter", "drafter", "target", "target"]
    assert found[0].sets_pace


def test_a_part_of_one_run_only_is_compared_with_nothing() -> None:
    found = changes(costs({backward: [8.0]}), costs({backward: [8.0], copies: [2.0]}))
    assert found["copy pageable"].a_s_per_batch == 0.0
    assert found["copy pageable"].b_s_per_batch == pytest.approx(2.0)
    assert tell_change(found["copy pageable"]) == "the drafters' copies (pageable) grew from 0 to 2 s a batch"


def test_where_batches_became_larger_the_words_are_about_tokens() -> None:
    """Twice the budget, half the batches: a batch takes longer, a token less."""
    found = changes(costs({forward: [8.0]}, batches=10), costs({forward: [6.0]}, batches=5))
    assert tell_change(found["forward"]) == "the targets' forward shrank from 8 to 6 s for 1,000 tokens"
    unknown = changes(costs({forward: [0.08]}, batches=0), costs({forward: [0.06]}, batches=0))
    assert tell_change(unknown["forward"]) == "the targets' forward shrank from 80 to 60 ms for 1,000 tokens"


def test_too_few_blocks_are_no_basis() -> None:
    one = costs({forward: [1.0]})
    few = StageCosts(np.ones(4), {forward: np.ones(4)}, 4.0, {"target": 1}, {"target": 4.0})
    assert compare_stages(one, few) == ((), "too few steady windows in B")
    assert compare_stages(costs({}), costs({}))[1] == "no stage left spans in the steady windows"
