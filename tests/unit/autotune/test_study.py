"""The loop in memory: any runner, any names, and nothing that a runner does ends the study but Ctrl-C."""

import math
import random
from functools import partial

import pytest

from autotune.default_searcher import default_searcher
from autotune.effort import Effort
from autotune.free_space import FreeSpace
from autotune.runner import Request
from autotune.searcher import Stop, Task
from autotune.storage import TrialLog
from autotune.study import Study
from autotune.telemetry import Failed, FailureKind, MemoryFigures, StageFigures, Telemetry
from autotune.trial import TrialState
from autotune.trial_store import MemoryStore
from benchmarks.in_order import InOrder
from dflash.contract.errors import DFlashError, UsageError


@pytest.fixture
def letters():
    """Nine points of names that mean nothing to us."""
    return FreeSpace({"colour": ["red", "green", "blue"], "size": [1, 2, 3]})


class Listed:
    """Proposes what it was given, then stops."""

    def __init__(self, *tasks):
        self.tasks = tasks

    def next(self, history):
        done = len(history.trials)
        return self.tasks[done] if done < len(self.tasks) else Stop("the list is at its end")


def test_a_function_to_a_number_is_enough(letters):
    study = Study(
        letters, InOrder(), lambda request: 100.0 * request.values["size"], effort=Effort(trials=20)
    )
    end = study.run()
    assert end.recommended.values["size"] == 3
    assert study.recommendation == end.recommended
    assert end.stop.reason == "the space is exhausted"


def test_each_point_is_run_once_but_for_repeats(letters):
    """C073: 20 trials in a space of 9 are 9."""
    study = Study(letters, InOrder(), lambda request: 100.0, effort=Effort(trials=20, repeats=0))
    end = study.run()
    assert len(end.trials) == 9
    assert len({letters.point(trial.values) for trial in end.trials}) == 9


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (math.nan, FailureKind.nan, "nan"),
        (math.inf, FailureKind.no_measurement, "inf"),
        (0.0, FailureKind.no_measurement, "0.0"),
        (-5.0, FailureKind.no_measurement, "-5"),
        (None, FailureKind.no_measurement, "returned nothing"),
        (Telemetry(tokens_per_s=None), FailureKind.no_measurement, "no numbers"),
        (Telemetry(tokens_per_s="NaN"), FailureKind.no_measurement, "no numbers"),
        (Failed("out_of_memory", "told by name"), FailureKind.out_of_memory, "by name"),
        (Failed("out of memory", "told in words"), FailureKind.out_of_memory, "in words"),
        (Failed("earthquake", "told otherwise"), FailureKind.error, "otherwise"),
        ("fast", FailureKind.no_measurement, "'fast'"),
        (Telemetry(tokens_per_s=5.0, steps=0), FailureKind.no_measurement, "no optimizer step"),
        (Telemetry(tokens_per_s=5.0, low=math.nan), FailureKind.no_measurement, "nan"),
        (Telemetry(tokens_per_s=5.0, losses=(1.0, math.nan)), FailureKind.nan, "at step 1"),
        (Failed(FailureKind.hang, "no window for 60 s"), FailureKind.hang, "no window"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), FailureKind.out_of_memory, "2 GiB"),
        (MemoryError(), FailureKind.out_of_memory, "MemoryError"),
        (
            ZeroDivisionError("division by zero"),
            FailureKind.error,
            "ZeroDivisionError: division by zero (test_study.py, line",
        ),
        (DFlashError("it broke", where="here"), FailureKind.error, "it broke"),
    ],
)
def test_nonsense_and_exceptions_are_failed_trials_with_a_reason(letters, answer, kind, says):
    def run(request):
        if request.number == 1:
            if isinstance(answer, Exception):
                raise answer
            return answer
        return 100.0

    study = Study(letters, InOrder(), run, effort=Effort(trials=4, repeats=0))
    end = study.run()
    trial = end.trials[1]
    assert (trial.state, trial.failure) == (TrialState.failed, kind)
    assert says in trial.reason
    assert len(end.trials) == 4
    assert end.failures[0][1] == 1
    assert end.recommended.number != 1


def test_ctrl_c_passes_and_the_trial_is_run_again(letters):
    store = MemoryStore()

    def interrupted(request):
        if request.number == 2:
            raise KeyboardInterrupt
        return 100.0

    with pytest.raises(KeyboardInterrupt):
        Study(letters, InOrder(), interrupted, effort=Effort(trials=4, repeats=0), store=store).run()
    end = Study(letters, InOrder(), lambda r: 100.0, effort=Effort(trials=4, repeats=0), store=store).run()
    assert [t.state.value for t in end.trials] == ["finished"] * 2 + ["interrupted"] + ["finished"] * 2
    assert end.trials[3].retry_of == 2


def test_telemetry_is_kept_and_its_nonsense_is_not_known(letters):
    told = Telemetry(
        tokens_per_s=100.0,
        stages={
            "target": StageFigures(busy_s=1.0, tokens=10.0),
            "drafter": StageFigures(busy_s=math.nan, tokens=1.0),
        },
        memory={"cuda:0": MemoryFigures(peak_bytes=1e9, limit_bytes=math.inf)},
        step_s=math.inf,
    )
    (trial,) = Study(letters, InOrder(), lambda r: told, effort=Effort(trials=1)).run().trials
    assert set(trial.measurement.stages) == {"target"}
    assert trial.measurement.memory == {}
    assert trial.measurement.step_s is None


def test_the_request_says_all_that_a_runner_needs(letters):
    asked = []

    def run(request):
        asked.append(request)
        return Telemetry(tokens_per_s=100.0, low=98.0, high=102.0)

    first = Task(values=letters.baseline, why="first")
    beside = Task(
        values={"colour": "red", "size": 2}, why="", beside=letters.baseline, fresh=True, seconds=3.0
    )
    Study(letters, Listed(first, beside), run, effort=Effort(seconds=7.0)).run()
    assert isinstance(asked[0], Request)
    assert (asked[0].seconds, asked[0].incumbent_low, asked[0].config) == (7.0, None, None)
    assert (asked[1].seconds, asked[1].beside, asked[1].fresh) == (3.0, letters.baseline, True)
    assert asked[1].incumbent_low == pytest.approx(98.0, rel=1e-3)
    assert asked[1].run_path.is_absolute()


def test_a_proposal_outside_the_space_is_an_error_of_the_searcher(letters):
    study = Study(letters, Listed(Task(values={"colour": "pink", "size": 1}, why="")), lambda r: 1.0)
    with pytest.raises(DFlashError, match="cannot run"):
        study.run()


def test_no_searcher_spends_more_configurations_than_the_effort(letters):
    tasks = [Task(values=values, why="") for values in letters.configurations]
    end = Study(letters, Listed(*tasks), lambda r: 1.0, effort=Effort(trials=5)).run()
    assert len(end.trials) == 5


def test_a_lost_gpu_ends_the_study_and_its_trial_is_made_again_once(letters):
    store = MemoryStore()
    lost = Failed(FailureKind.lost_gpu, "Xid 79: GPU has fallen off the bus")
    effort = Effort(trials=3, repeats=0)
    study = Study(letters, InOrder(), lambda r: lost if r.number == 1 else 100.0, effort=effort, store=store)
    end = study.run()
    assert len(end.trials) == 2
    assert "Xid 79" in end.stop.reason
    again = Study(letters, InOrder(), lambda r: lost if r.number == 2 else 100.0, effort=effort, store=store)
    assert again.run().trials[2].retry_of == 1
    end = Study(letters, InOrder(), lambda r: 100.0, effort=effort, store=store).run()
    assert [t.failure for t in end.trials[1:3]] == [FailureKind.lost_gpu] * 2
    assert [t.retry_of for t in end.trials] == [None, None, 1, None]


def test_no_opinion_of_a_searcher_recommends_what_may_not_win(letters):
    class Wrong(InOrder):
        def recommend(self, history):
            return history.trials[0]

    def run(request):
        return Failed(FailureKind.crash, "SIGSEGV") if request.number == 0 else 50.0

    study = Study(letters, Wrong(), run, effort=Effort(trials=3, repeats=0))
    assert study.run().recommended.number != 0


def test_a_space_of_other_names_is_kept_on_disk_and_goes_on_there(letters, tmp_path):
    def search(run):
        effort = Effort(trials=5, repeats=0)
        return Study(letters, InOrder(), run, effort=effort, store=TrialLog(tmp_path, letters)).run()

    def interrupted(request):
        if request.number == 3:
            raise KeyboardInterrupt
        return 10.0 * request.values["size"]

    with pytest.raises(KeyboardInterrupt):
        search(interrupted)
    asked = []
    end = search(lambda request: asked.append(request) or 1.0)
    assert len(asked) == 2
    assert [trial.state.value for trial in end.trials] == ["finished"] * 3 + ["interrupted"] + [
        "finished"
    ] * 2
    assert end.recommended.tokens_per_s == max(trial.score for trial in end.trials) > 1.0


def test_three_that_do_not_fit_are_no_reason_to_give_up_but_three_that_crash_alike_are(letters):
    tasks = [Task(values={"colour": "red", "size": size}, why="") for size in (3, 2)]
    tasks += [Task(values={"colour": "blue", "size": size}, why="") for size in (3, 1)]

    def run(kind, request):
        return 10.0 if request.values["size"] == 1 else Failed(kind, "as it did before")

    hungry = Study(letters, Listed(*tasks), partial(run, FailureKind.out_of_memory)).run()
    assert hungry.recommended.number == 3
    broken = Study(letters, Listed(*tasks), partial(run, FailureKind.crash)).run()
    assert (len(broken.trials), broken.recommended) == (3, None)
    assert "given up" in broken.stop.reason
    assert broken.failures == (("crash: as it did before", 3),)


def test_budgets_of_time_count_over_all_invocations(letters, monkeypatch):
    now = iter(range(0, 100_000, 30))
    monkeypatch.setattr("autotune.study.monotonic", lambda: next(now))  # each run takes 30 s
    store = MemoryStore()
    effort = Effort(trials=9, repeats=0, minutes=1.5)
    study = Study(letters, InOrder(), lambda r: 100.0, effort=effort, store=store)
    assert [study.step() is None for _ in range(2)] == [False, False]
    end = Study(letters, InOrder(), lambda r: 100.0, effort=effort, store=store).run()
    assert len(end.trials) == 3
    assert end.stop.reason == "the 1.5 minutes are spent"
    gpus = Effort(trials=9, repeats=0, gpu_hours=0.1)
    end = Study(letters, InOrder(), lambda r: 100.0, effort=gpus, store=store, gpus=3).run()
    assert len(end.trials) == 4
    assert "0.1 GPU-hours" in end.stop.reason
    with pytest.raises(UsageError, match="GPU"):
        Study(letters, InOrder(), lambda r: 100.0, effort=gpus)


def test_time_of_trials_that_no_longer_apply_is_spent_all_the_same(letters, monkeypatch):
    now = iter(range(0, 100_000, 60))
    monkeypatch.setattr("autotune.study.monotonic", lambda: next(now))  # each run takes a minute
    store = MemoryStore()
    Study(letters, InOrder(), lambda r: 1.0, effort=Effort(trials=3, repeats=0), store=store).run()
    smaller = FreeSpace({"colour": ["yellow", "white", "black"], "size": [1, 2, 3]})
    effort = Effort(trials=9, repeats=0, minutes=5)
    study = Study(smaller, InOrder(), lambda r: 1.0, effort=effort, store=store)
    assert study.trials == ()
    assert [trial.number for trial in study.run().trials] == [3, 4]


def test_a_simulated_machine_is_searched_in_memory():
    """Noise, a region without memory, our names; nothing is written anywhere."""
    draw = random.Random(1)
    budgets, splits = [8192, 16384, 32768, 65536], ["1-1", "2-1", "3-1", "2-2"]
    space = FreeSpace(
        {
            "pipeline.split": splits,
            "pipeline.token_budget": budgets,
            "transport.preset": ["host", "peer"],
            "transport.depth": [1, 2, 4],
        },
        baseline={
            "pipeline.split": "1-1",
            "pipeline.token_budget": 8192,
            "transport.preset": "host",
            "transport.depth": 2,
        },
        allowed=lambda values: values["pipeline.split"] != "2-2" or "no room for two drafters",
    )

    def run(request):
        split, budget = request.values["pipeline.split"], request.values["pipeline.token_budget"]
        if budget * request.values["transport.depth"] > 140_000:
            return Failed(FailureKind.out_of_memory, "CUDA out of memory")
        rate = (
            5000.0 * int(split[0]) * budget**0.1 * (2 if request.values["transport.preset"] == "peer" else 1)
        )
        return Telemetry(tokens_per_s=rate * draw.gauss(1, 0.03))

    study = Study(space, default_searcher(), run, effort=Effort(trials=20, repeats=1))
    best = study.run().recommended
    assert best.values["transport.preset"] == "peer"
    assert best.values["pipeline.split"] == "3-1"
    assert space.setting(best.values).targets == 3
    assert all(space.why_not(trial.values) is None for trial in study.trials)
