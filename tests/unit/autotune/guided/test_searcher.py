"""The guided searcher on made-up machines: what it may never do, and that it finds what there is to find."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from autotune.effort import Effort
from autotune.free_space import FreeSpace
from autotune.guided.model import Parts
from autotune.guided.searcher import GuidedSearcher
from autotune.history import History
from autotune.runner import Request
from autotune.searcher import Stop
from autotune.study import Study
from autotune.telemetry import Beside, Cause, Failed, FailureKind, Telemetry
from autotune.trial import Trial

tolerance = 0.02


def regret_after(box: Any, study: Study, runs: int) -> float:
    """How far the recommendation lies below the best after so many runs; 1 where it cannot run."""
    for _ in range(runs):
        if study.step() is None:
            break
    found = study.recommendation
    if found is None or not box.fits(found.values):
        return 1.0
    return 1.0 - box.rate(found.values) / box.best


def failures(box: Any) -> int:
    return sum(not box.fits(values) for values in box.asked)


def test_it_finds_what_there_is_to_find(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    boxes = [box(seed) for seed in range(4)]
    regrets = [regret_after(each, study(each), 9) for each in boxes]
    assert sum(regret <= tolerance for regret in regrets) >= 3, regrets
    assert sum(map(failures, boxes)) <= 5


def test_it_finds_it_on_rough_ground(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    regrets = [regret_after(each, study(each), 20) for each in [box(seed, rough=0.04) for seed in range(3)]]
    assert sum(regret <= 2 * tolerance for regret in regrets) >= 2, regrets


def test_it_needs_no_telemetry(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    boxes = [box(seed, telemetry=False) for seed in range(3)]
    regrets = [regret_after(each, study(each), 20) for each in boxes]
    assert sum(regret <= 2 * tolerance for regret in regrets) >= 2, regrets


def test_the_physics_pays(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    blind = GuidedSearcher(Parts(physics=False))
    with_it = [regret_after(each, study(each), 6) for each in map(box, range(3))]
    without = [regret_after(each, study(each, blind), 6) for each in map(box, range(3))]
    assert sum(with_it) < 0.6 * sum(without), (with_it, without)


def test_the_memory_model_saves_trials(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    careful, careless = list(map(box, range(3))), list(map(box, range(3)))
    for each in careful:
        regret_after(each, study(each), 8)
    for each in careless:
        regret_after(each, study(each, GuidedSearcher(Parts(memory=False))), 8)
    assert sum(map(failures, careful)) < 0.6 * sum(map(failures, careless))


def test_nothing_is_asked_twice_but_to_measure_it_again(
    box: Callable[..., Any], study: Callable[..., Study]
) -> None:
    machine = box(3, rough=0.03, noise=0.08)
    search = study(machine)
    regret_after(machine, search, 14)
    firsts = Counter(
        search_point(machine, trial.values) for trial in search.trials if trial.repeat_of is None
    )
    assert max(firsts.values()) == 1
    assert any(trial.repeat_of is not None for trial in search.trials)
    for trial in search.trials:
        if trial.repeat_of is not None:
            assert search.trials[trial.repeat_of].values == trial.values


def search_point(machine: Any, values: Any) -> tuple[Any, ...]:
    return tuple(machine.space.point(values))


def test_nothing_that_dominates_a_starved_configuration_is_asked(
    box: Callable[..., Any], study: Callable[..., Study]
) -> None:
    starved: list[dict[str, Any]] = []
    for seed in range(2):
        machine = box(seed)
        starved.clear()
        search = study(machine, GuidedSearcher(Parts(memory=False)))  # so that it happens often
        for _ in range(10):
            trial = search.step()
            if trial is None:
                break
            assert not any(asks_no_less(trial.values, other) for other in starved), trial
            if trial.failure is FailureKind.out_of_memory:
                starved.append(dict(trial.values))


def asks_no_less(values: Any, other: Any) -> bool:
    same = all(values[path] == other[path] for path in ("pipeline.split", "transport.preset"))
    more = all(values[path] >= other[path] for path in ("pipeline.token_budget", "transport.depth"))
    return same and more


def test_a_new_searcher_proposes_the_same(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    machine = box(1, rough=0.02)
    search = study(machine)
    regret_after(machine, search, 9)
    history = search.history
    for seen in range(len(history.trials)):
        told = History(history.space, history.trials[:seen], history.effort)
        fresh, again = GuidedSearcher().next(told), GuidedSearcher().next(told)
        assert fresh == again
        assert not isinstance(fresh, Stop)
        assert dict(fresh.values) == dict(history.trials[seen].values)


def test_it_ends_by_itself_and_stays_at_its_end(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    machine = box(2)
    search = study(machine, trials=200)
    end = search.run()
    assert end.stop.gap_probability is not None
    assert end.stop.gap_probability < 0.1
    assert len(end.trials) < 40
    assert isinstance(GuidedSearcher().next(search.history), Stop)
    assert end.recommended is not None
    assert machine.rate(end.recommended.values) > 0.96 * machine.best


def test_what_failed_is_not_asked_again_nor_recommended(box: Callable[..., Any]) -> None:
    machine = box(4)
    broken = ("shared", "peer")

    def run(request: Request) -> Any:
        if request.values["transport.preset"] in broken:
            return Failed(FailureKind.crash, "ended by a signal")
        return machine.run(request)

    search = Study(machine.space, GuidedSearcher(), run, effort=Effort(trials=20))
    for _ in range(20):
        search.step()
    points = [machine.space.point(trial.values) for trial in search.trials if trial.repeat_of is None]
    assert len(points) == len(set(points))
    assert search.recommendation is not None
    assert search.recommendation.values["transport.preset"] not in broken


def test_a_space_that_never_fits_is_left_with_a_reason() -> None:
    space = FreeSpace({"size": (1, 2, 3)})
    starved = Failed(FailureKind.out_of_memory, "CUDA out of memory")
    end = Study(space, GuidedSearcher(), lambda request: starved, effort=Effort(trials=20)).run()
    assert end.recommended is None
    assert len(end.trials) == 3


def test_a_space_of_one_is_soon_over() -> None:
    end = Study(FreeSpace({"only": ("this",)}), GuidedSearcher(), lambda r: 100.0, effort=Effort()).run()
    assert end.recommended is not None
    assert len({tuple(trial.values.items()) for trial in end.trials}) == 1


@pytest.mark.parametrize("named", [True, False])
def test_bare_numbers_over_any_names_will_do(named: bool) -> None:
    names = ("pipeline.token_budget", "kind") if named else ("size", "kind")
    space = FreeSpace({names[0]: tuple(2**i for i in range(8)), names[1]: ("a", "b", "c", "d")})
    worth = {"a": 1.0, "b": 1.3, "c": 0.8, "d": 1.1}

    def rate(values: Any) -> float:
        return 1000.0 * worth[values["kind"]] * (1 - 0.05 * abs(values[names[0]].bit_length() - 6))

    search = Study(space, GuidedSearcher(), lambda r: rate(r.values), effort=Effort(trials=14, repeats=0))
    end = search.run()
    assert end.recommended is not None
    assert rate(end.recommended.values) >= 0.97 * 1300.0


def test_every_proposal_says_why_and_what_was_expected(
    box: Callable[..., Any], study: Callable[..., Study]
) -> None:
    machine = box(0)
    search = study(machine)
    regret_after(machine, search, 6)
    first, *others = search.trials
    assert first.why == "the starting configuration"
    for trial in others:
        assert trial.predicted is not None
        assert trial.predicted.low is not None
        assert trial.predicted.low < trial.predicted.tokens_per_s < trial.predicted.high
        assert 0.0 <= trial.predicted.fits <= 1.0
    assert "fits" in others[1].why


def test_who_runs_again_does_so_beside_another_unless_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = FreeSpace({"pipeline.token_budget": tuple(2**i for i in range(10))}, {"pipeline.token_budget": 1})

    def paired(pair_s: float) -> tuple[list[bool], list[bool]]:
        now, slower = [0.0], itertools.cycle((0.0, 0.06, -0.05, 0.03, -0.04))

        def run(request: Request) -> Telemetry:
            now[0] += 14.0 if request.beside is None else pair_s
            rate = float(request.values["pipeline.token_budget"]) ** 0.01  # who leads is open for long
            seen = rate * math.exp(next(slower))
            if request.beside is None:
                return Telemetry(tokens_per_s=seen)
            ratio = math.log(rate / float(request.beside["pipeline.token_budget"]) ** 0.01)
            return Telemetry(
                tokens_per_s=seen, beside=Beside(values=request.beside, log_ratio=ratio, deviation=0.01)
            )

        monkeypatch.setattr("autotune.study.monotonic", lambda: now[0])
        trials = Study(space, GuidedSearcher(), run, effort=Effort(trials=10)).run().trials
        again = [trial for trial in trials if trial.repeat_of is not None]
        return [trial.beside is not None for trial in trials], [trial.beside is not None for trial in again]

    _, again = paired(28.0)
    assert again
    assert all(again)
    every, _ = paired(60.0)
    assert sum(every) == 1


def test_runs_of_one_split_are_held_against_each_other(
    box: Callable[..., Any], study: Callable[..., Study]
) -> None:
    machine = box(0)
    search = study(machine)
    regret_after(machine, search, 10)
    paired = [trial for trial in search.trials if trial.beside is not None]
    assert paired
    for trial in paired:
        assert trial.beside["pipeline.split"] == trial.values["pipeline.split"]
        assert dict(trial.beside) != dict(trial.values)


def sick(changes: dict[str, Any]) -> Callable[[Request], Telemetry]:
    """A machine on which diagnosis would change that about every run; nothing is worth anything."""

    def run(request: Request) -> Telemetry:
        causes = (Cause(name="slow-copies", summary="as seen", remedy=changes),)
        return Telemetry(tokens_per_s=1000.0, low=990.0, high=1010.0, causes=causes)

    return run


def started(changes: dict[str, Any], runs: int) -> list[Trial]:
    choices = {"split": ("1-1", "2-1"), "budget": (1, 2, 4), "preset": ("host", "pinned", "peer")}
    space = FreeSpace(choices, {"split": "1-1", "budget": 1, "preset": "host"})
    search = Study(space, GuidedSearcher(), sick(changes), effort=Effort(trials=8))
    for _ in range(runs):
        search.step()
    return list(search.trials)


def test_what_diagnosis_would_change_is_tried_next_and_once() -> None:
    trials = started({"preset": "peer"}, 6)
    assert trials[1].values == {"split": "1-1", "budget": 1, "preset": "peer"}
    assert trials[1].why == "the remedy for slow-copies in trial 0"
    assert sum("remedy" in trial.why for trial in trials) == 1


def test_a_remedy_outside_of_the_space_is_left_alone() -> None:
    for changes in ({"preset": "carrier pigeon"}, {"another.knob": 3}):
        assert not any("remedy" in trial.why for trial in started(changes, 3))
