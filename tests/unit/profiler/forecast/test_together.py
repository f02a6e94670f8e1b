"""Work side by side: each at a part of its pace, by who is at work."""

from __future__ import annotations

import pytest
import simpy

from profiler.forecast.together import Together


def ends(*works: tuple[float, str, float], gain: float = 1.0) -> dict[str, float]:
    """When each of (begin, stage, seconds of work) ends; two kinds of stages do `gain` times as much."""
    env = simpy.Environment()
    device = Together(env, lambda at_work: len(at_work) / (gain if len(set(at_work)) > 1 else 1.0))
    found = {}

    def one(begin_s: float, stage: str, seconds: float) -> simpy.events.ProcessGenerator:
        yield env.timeout(begin_s)
        yield device.work(stage, seconds)
        found[stage] = env.now

    for work in works:
        env.process(one(*work))
    env.run()
    return found


def test_alone_work_takes_its_time() -> None:
    assert ends((2.0, "target", 1.5)) == {"target": pytest.approx(3.5)}


def test_what_begins_meanwhile_slows_what_goes_on() -> None:
    # One second alone, then each at half of its pace until the shorter one is done.
    found = ends((0.0, "target", 3.0), (1.0, "drafter", 1.0))
    assert found == {"drafter": pytest.approx(3.0), "target": pytest.approx(4.0)}


def test_both_kinds_do_more_than_in_turns() -> None:
    found = ends((0.0, "target", 1.0), (0.0, "drafter", 1.0), gain=1.25)
    assert found == {"drafter": pytest.approx(1.6), "target": pytest.approx(1.6)}
