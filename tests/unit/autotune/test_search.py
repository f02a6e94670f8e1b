"""Whole searches over a made-up machine: what wins, what fails, and how they go on."""

import json
import math
import os

import pytest

from autotune.result import load_study
from autotune.space import Dimension, SearchSpace
from autotune.storage import TrialLog
from autotune.study import judge
from autotune.telemetry import Failed, FailureKind
from autotune.trial import TrialState
from benchmarks.in_order import InOrder
from dflash.contract.config import load_config
from dflash.contract.errors import UsageError

flat = (8.0,) * 20


def speed(config):
    """Peer is thrice as fast as host, two targets 1.5 times as one; 4096 tokens need too much memory."""
    if config.pipeline.token_budget == 4096:
        return Failed(FailureKind.out_of_memory, "CUDA out of memory")
    rate = 1000.0 * {"host": 1, "shared": 2, "pinned": 2.5, "peer": 3}[config.transport.preset]
    return (
        rate
        * (1.5 if config.split.targets == 2 else 1.0)
        * (1.05 if config.pipeline.token_budget == 2048 else 1)
    )


def test_search_finds_and_writes_the_fastest(tmp_path, runner_of, searched, base_of):
    result, _ = searched(runner_of(speed, noise=0.01), trials=20)
    assert result.verdict == "better"
    assert dict(result.best.values) == {
        "pipeline.split": "2-1", "pipeline.token_budget": 2048, "transport.preset": "peer",
    }  # fmt: skip
    assert result.gain.low > 4
    best = load_config(result.best_toml)
    assert best == base_of().replacing(result.best.values)
    assert result.standing_of(result.best).runs == 3
    assert load_study(tmp_path / "study", InOrder()) == result


def test_trials_run_from_the_first_step_for_their_time(space, base_of, runner_of, searched):
    runner = runner_of(speed)
    searched(runner, trials=1, seconds=7.0)
    (config,) = runner.ran
    assert config.run.max_seconds == 7.0
    assert config.run.checkpoint_every == -1  # a trial's weights are of no use
    length = {"run.max_seconds": 0.0, "run.checkpoint_every": 1000, "run.evaluate_every": 100}
    assert config.values() | space.baseline | length == base_of().values()


def test_nothing_is_recommended_where_all_is_noise(runner_of, searched, base_of):
    result, _ = searched(runner_of(lambda config: 1000.0, noise=0.05), trials=6)
    assert result.verdict == "equal"
    assert result.best == result.start
    assert "Equal within the noise" in result.why[0] or "Nothing tried was faster" in result.why[0]
    assert load_config(result.best_toml) == base_of()


def test_equal_finalists_are_said(runner_of, searched):
    result, _ = searched(
        runner_of(lambda config: 1000.0 if config.transport.preset == "host" else 2000.0), trials=8
    )
    assert result.verdict == "better"
    assert len(result.equals) >= 1
    assert any("Within the noise as fast" in line for line in result.why)


def test_all_failed_has_no_best_and_a_table_of_reasons(runner_of, searched):
    reasons = iter(["out of memory", "out of memory", "no such kernel", "out of memory"])
    kinds = {"out of memory": FailureKind.out_of_memory, "no such kernel": FailureKind.error}

    def fail(config):
        reason = next(reasons, "no such kernel")
        return Failed(kinds[reason], reason)

    result, _ = searched(runner_of(fail), trials=4)
    assert (result.verdict, result.best, result.gain, result.best_toml) == ("none", None, None, None)
    assert result.failures == (("out of memory", 3), ("error: no such kernel", 1))


def test_failed_start_does_not_hide_what_runs(runner_of, searched):
    result, _ = searched(
        runner_of(
            lambda c: (
                100.0 if c.transport.preset != "host" else Failed(FailureKind.crash, "killed by SIGSEGV")
            )
        ),
        trials=6,
    )
    assert result.verdict == "better"
    assert result.gain is None
    assert "SIGSEGV" in result.why[0]


def test_faster_without_learning_never_wins(runner_of, searched, measurement_of):
    """C081: a drafter fed zeros is 40 % faster, and its loss does not follow the starting configuration's."""

    def zeros(config):
        return measurement_of(5000.0, losses=flat) if config.transport.preset == "shared" else 1000.0

    result, _ = searched(runner_of(zeros), trials=36, repeats=0)
    assert result.fastest.values["transport.preset"] != "shared"
    excluded = [t for t in result.trials if t.unhealthy]
    assert excluded
    assert all(t.values["transport.preset"] == "shared" for t in excluded)
    assert any("not that of the starting configuration" in reason for reason, _ in result.failures)


def test_c077_nan_infinity_none_and_unhealthy_never_win(
    data_dir, tmp_path, runner_of, searched, space_of, measurement_of
):
    """The recorded trials of the case, in a space that holds all of them."""
    rows = [
        json.loads(line)
        for line in (data_dir / "cases/tuner/c077_trials_with_nan_inf.jsonl").read_text().splitlines()
    ]
    told = [outcome_of(row, measurement_of) for row in rows]
    values = [
        {
            "split": f"{row['params']['n_target']}-1",
            "budget": row["params"]["budget"],
            "depth": row["params"]["hs_depth"],
        }
        for row in rows
    ]
    trials = [
        judge(blank(i, v), outcome, told[0].losses)
        for i, (v, outcome) in enumerate(zip(values, told, strict=True))
    ]
    assert [t.state.value for t in trials] == [
        "finished",
        "finished",
        "failed",
        "failed",
        "failed",
        "failed",
        "finished",
    ]
    assert trials[6].unhealthy is not None
    best = max(trials, key=lambda trial: trial.score)
    assert (best.number, best.tokens_per_s) == (1, 14800.0)
    assert all(math.isfinite(t.score) for t in trials)
    assert "no optimizer step" in trials[5].reason
    assert trials[2].failure is FailureKind.out_of_memory


def outcome_of(row, measurement_of):
    if "error" in row:
        return Failed(FailureKind.out_of_memory, row["error"])
    if row["tok_s"] is None:
        return Failed(FailureKind.too_short, "the throughput is not known")
    changes = {"steps": row.get("steps", 20)}
    if not row.get("loss_ok", True):
        changes["losses"] = flat
    return measurement_of(float(row["tok_s"]), **changes)


def blank(number, values):
    from autotune.trial import Trial

    return Trial(number=number, values=values, why="", run_path="", seconds=12.0, started_utc="")


def test_interrupted_search_stops_and_goes_on(runner_of, searched, tmp_path):
    answers = iter([1000.0, 1100.0, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        searched(runner_of(lambda config: next(answers)), trials=5)
    before = load_study(tmp_path / "study", InOrder())
    assert [t.state.value for t in before.trials] == ["finished", "finished", "interrupted"]
    runner = runner_of(speed)
    result, events = searched(runner, trials=5, repeats=0)
    assert "2 configurations tried, 3 left" in events[0].message
    assert [t.number for t in result.trials] == [0, 1, 2, 3, 4, 5]
    assert result.trials[3].retry_of == 2
    assert result.trials[3].values == result.trials[2].values
    assert len(runner.ran) == 3


def test_trials_count_over_all_invocations(runner_of, searched):
    searched(runner_of(speed), trials=4, repeats=0)
    idle = runner_of(speed)
    searched(idle, trials=4, repeats=0)
    assert idle.ran == []
    more = runner_of(speed)
    searched(more, trials=6, repeats=0)
    assert len(more.ran) == 2


def test_losses_are_not_compared_where_something_else_is_trained(
    runner_of, searched, base_of, measurement_of
):
    layers = Dimension("drafter.layers", (2, 5), changes_training=True)
    space = SearchSpace((layers, Dimension("transport.depth", (1, 2))), base_of("drafter.layers=2"), 2)

    def speed_of(config):
        other = config.drafter.layers == 5 or config.transport.depth == 1
        return measurement_of(1000.0, losses=tuple((4.0 if other else 8.0) - 0.1 * i for i in range(20)))

    result, _ = searched(runner_of(speed_of), space=space, trials=4, repeats=0)
    ill = {(t.values["drafter.layers"], t.values["transport.depth"]) for t in result.trials if t.unhealthy}
    assert ill == {(2, 1)}, "depth alone changes nothing that is trained"


def test_a_killed_trial_is_run_once_more(runner_of, searched, tmp_path, space, trial_of):
    searched(runner_of(speed), trials=1, repeats=0)
    running = {"state": TrialState.running, "failure": None, "reason": None}
    TrialLog(tmp_path / "study", space).save(
        trial_of(1, space.baseline | {"transport.preset": "pinned"}, **running)
    )
    result, _ = searched(runner_of(speed), trials=2, repeats=0)
    assert [t.state.value for t in result.trials] == ["finished", "killed", "finished"]
    assert (result.trials[2].retry_of, result.trials[2].values) == (
        1,
        space.baseline | {"transport.preset": "pinned"},
    )


def test_a_rerun_that_dies_too_is_not_run_a_third_time(runner_of, searched, tmp_path, space, trial_of):
    running = {"state": TrialState.running, "failure": None, "reason": None}
    searched(runner_of(speed), trials=1, repeats=0)
    point = space.baseline | {"pipeline.token_budget": 2048}
    log = TrialLog(tmp_path / "study", space)
    log.save(trial_of(1, point, **running | {"state": TrialState.killed}))
    log.save(trial_of(2, point, **running | {"state": TrialState.interrupted}, retry_of=1))
    log.save(trial_of(3, point, **running, retry_of=2))
    runner = runner_of(speed)
    result, _ = searched(runner, trials=4, repeats=0)
    assert result.trials[3].state is TrialState.failed
    assert "twice" in result.trials[3].reason
    assert space.point(point) not in {space.point(t.values) for t in result.trials[4:]}


def test_study_of_another_machine_is_refused_before_anything_runs(runner_of, searched, gpu_machine):
    searched(runner_of(speed), trials=1, repeats=0)
    runner = runner_of(speed)
    with pytest.raises(UsageError, match="other conditions"):
        searched(runner, machine=gpu_machine(3), trials=1)
    assert runner.ran == []


def test_result_is_strict_json(runner_of, searched):
    result, _ = searched(runner_of(speed), trials=6)
    text = json.dumps(result.to_json(), allow_nan=False)
    assert json.loads(text)["best"] == result.best.number


def test_network_disk_is_warned_of(runner_of, searched, monkeypatch):
    monkeypatch.setattr("autotune.search.network_filesystem", lambda path: "nfs4")
    _, events = searched(runner_of(speed), trials=1, repeats=0)
    assert "nfs4" in events[0].message


def test_a_changed_space_goes_on_with_what_still_applies(runner_of, searched, space_of):
    """C078: more budgets and another preset; nothing measured is measured again, nothing is mixed in."""
    narrow = space_of(
        pipeline__split=(), pipeline__token_budget=(1024, 2048), transport__preset=("host", "peer")
    )
    searched(runner_of(speed), space=narrow, trials=8, repeats=0)
    wide = space_of(
        pipeline__split=("1-1", "2-1"), pipeline__token_budget=(1024,), transport__preset=("host", "pinned")
    )
    runner = runner_of(speed)
    result, events = searched(runner, space=wide, trials=8, repeats=0)
    told = [event.message for event in events if event.kind in ("resumed", "notice")]
    assert "1 configurations tried, 3 left" in told[0]
    assert "3 earlier trials do not apply" in told[1]
    assert "pipeline.token_budget = 2048" in told[1]
    assert len(runner.ran) == 3
    assert [t.number for t in result.trials] == [0, 4, 5, 6]
    assert [stray.trial.number for stray in result.strays] == [1, 2, 3]
    assert result.best.values["transport.preset"] == "pinned"
    assert len(json.loads(json.dumps(result.to_json(), allow_nan=False))["not_applying"]) == 3
    back = runner_of(speed)
    again, _ = searched(back, space=narrow, trials=8, repeats=0)
    assert back.ran == []
    assert [t.number for t in again.trials] == [0, 1, 2, 3]


def test_budgets_of_time_are_told_when_a_search_goes_on(runner_of, searched, gpu_machine, monkeypatch):
    now = iter(range(0, 1_000_000, 60))
    monkeypatch.setattr("autotune.study.monotonic", lambda: next(now))  # every trial takes a minute
    searched(runner_of(speed), machine=gpu_machine(3), trials=2, repeats=0)
    _, events = searched(
        runner_of(speed), machine=gpu_machine(3), trials=9, repeats=0, minutes=3.5, gpu_hours=1.0
    )
    assert "7 left, 1.5 of 3.5 minutes left, 0.90 of 1 GPU-hours left" in events[0].message
    assert sum(event.kind == "started" for event in events) == 2


def test_time_of_a_killed_trial_counts_as_far_as_it_left_signs_of_life(
    tmp_path, runner_of, searched, space, trial_of
):
    searched(runner_of(speed), trials=1, repeats=0)
    running = {"state": TrialState.running, "failure": None, "reason": None}
    TrialLog(tmp_path / "study", space).save(
        trial_of(1, space.baseline | {"transport.preset": "peer"}, **running)
    )
    sign = tmp_path / "study/trials/001/run/events/trainer.arrow"
    sign.parent.mkdir(parents=True)
    sign.touch()
    began_s = (tmp_path / "study/trials/001/trial.json").stat().st_mtime
    os.utime(sign, (began_s + 40, began_s + 40))
    result, _ = searched(runner_of(speed), trials=2, repeats=0)
    assert result.trials[1].state is TrialState.killed
    assert result.trials[1].spent_s == pytest.approx(40, abs=1)


def test_a_study_is_rebuilt_from_its_trial_directories_alone(tmp_path, runner_of, searched, gpu_machine):
    before, _ = searched(runner_of(speed), trials=5, repeats=1)
    study = tmp_path / "study"
    for path in study.iterdir():
        if path.name != "trials":
            path.unlink()
    assert load_study(study, InOrder()).trials == before.trials
    with pytest.raises(UsageError, match="other conditions"):
        searched(runner_of(speed), machine=gpu_machine(3), trials=5, repeats=1)
    idle = runner_of(speed)
    after, _ = searched(idle, trials=5, repeats=1)
    assert idle.ran == []
    assert after == before


def test_a_space_where_nothing_fits_ends_with_reasons_and_no_best(tmp_path, runner_of, searched):
    stale = tmp_path / "study/best.toml"
    stale.parent.mkdir()
    stale.touch()

    def hungry(config):
        if config.transport.preset == "peer":
            return Failed(FailureKind.crash, "killed by SIGSEGV")
        return Failed(FailureKind.out_of_memory, f"CUDA out of memory at {config.pipeline.token_budget}")

    result, _ = searched(runner_of(hungry), trials=30)
    assert (result.verdict, result.best, result.fastest, result.best_toml) == ("none", None, None, None)
    assert not stale.exists()
    reasons = dict(result.failures)
    assert result.failures[0][0] == "out of memory"
    assert list(reasons.values()) == sorted(reasons.values(), reverse=True)
    assert "given up" not in result.stop, "smaller configurations may have fitted"
    assert len(result.trials) > 3
