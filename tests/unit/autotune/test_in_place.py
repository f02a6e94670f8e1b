"""Trials in a process that stays, which a program without models stands in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.in_place import InPlaceRunner
from autotune.runner import Request
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry
from dflash.contract.config import load_config
from dflash.contract.rundir import RunDir

Run = Callable[..., Outcome]


@pytest.fixture
def runner(data_dir: Path, repository: Path, tmp_path: Path, monkeypatch: Any) -> Iterator[InPlaceRunner]:
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("FAKE_FATE", str(tmp_path / "fate"))
    monkeypatch.delenv("FAKE_TRAINER", raising=False)
    with InPlaceRunner([sys.executable, str(data_dir / "programs/fake_server.py")], canary_every=3) as runner:
        yield runner


@pytest.fixture
def run(runner: InPlaceRunner, tmp_path: Path) -> Run:
    """Run with a fate and some knobs; the outcome."""

    def run_once(fate: str = "ok", *assignments: str, **how: Any) -> Outcome:
        (tmp_path / "fate").write_text(fate)
        number = len(list(tmp_path.glob("trial-*")))
        run_path = tmp_path / f"trial-{number}" / "run"
        run_path.parent.mkdir()
        config = load_config(None, ("transport.preset=pinned", *assignments))
        return runner.run(
            Request(values={}, config=config, seconds=2.0, run_path=run_path, number=number, **how)
        )

    return run_once


def trainer_pids(tmp_path: Path) -> list[int]:
    paths = sorted(tmp_path.glob("trial-*/run"), key=lambda path: int(path.parent.name[6:]))
    return [RunDir(path).manifest()["pids"]["trainer"] for path in paths]


def test_all_trials_of_a_split_run_in_one_process_and_leave_runs_of_their_own(
    run: Run, runner: InPlaceRunner, tmp_path: Path
) -> None:
    first, second = run("ok"), run("ok", "transport.preset=peer", "pipeline.token_budget=1024")
    assert isinstance(first, Telemetry)
    assert isinstance(second, Telemetry)
    assert second.tokens_per_s == pytest.approx(2 * first.tokens_per_s, rel=0.1)
    assert len(set(trainer_pids(tmp_path))) == 1
    assert runner.renewals == []
    process = json.loads((tmp_path / "trial-1/run-process.json").read_text())
    assert process["runs_before"] == 1
    assert RunDir(tmp_path / "trial-1/run").manifest()["status"] == "stopped"
    assert load_config(tmp_path / "trial-1/config.toml").pipeline.token_budget == 1024


@pytest.mark.parametrize(("fate", "kind"), [("oom", FailureKind.out_of_memory), ("segv", FailureKind.crash)])
def test_a_failure_is_its_trials_alone_and_takes_the_process_with_it(
    run: Run, runner: InPlaceRunner, tmp_path: Path, fate: str, kind: FailureKind
) -> None:
    run("ok")
    failed, after = run(fate), run("ok")
    assert isinstance(failed, Failed)
    assert failed.kind is kind
    assert isinstance(after, Telemetry)
    first, second, third = trainer_pids(tmp_path)
    assert first == second != third
    assert len(runner.renewals) == 1
    assert not psutil.pid_exists(first)


def test_a_request_that_was_refused_before_anything_was_touched_costs_no_process(
    run: Run, runner: InPlaceRunner, tmp_path: Path
) -> None:
    run("ok")
    assert isinstance(run("refused"), Failed)
    run("ok")
    assert len(set(trainer_pids(tmp_path))) == 1
    assert runner.renewals == []


def test_what_has_to_be_loaded_anew_renews_the_process(
    run: Run, runner: InPlaceRunner, tmp_path: Path
) -> None:
    changes = ("split=2-1", "target.compile=off", "drafter.seed=3")
    says = ("pipeline.split 1-1 → 2-1", "target.compile auto → off", "drafter.seed 0 → 3")
    for known in range(len(changes) + 1):
        run("ok", *changes[:known])
    assert len(set(trainer_pids(tmp_path))) == 4
    assert len(runner.renewals) == 3
    for said, reason in zip(says, runner.renewals, strict=True):
        assert said in reason


def test_memory_that_does_not_come_back_renews_the_process(run: Run, runner: InPlaceRunner) -> None:
    run("ok")
    run("fat")
    assert runner.renewals == []
    run("ok")
    (reason,) = runner.renewals
    assert "3.0% more of the memory of cuda:0" in reason


def test_a_canary_that_slows_down_renews_the_process(run: Run, runner: InPlaceRunner, tmp_path: Path) -> None:
    for _ in range(4):
        run("ok")
    assert (tmp_path / "trial-3/canary/run.json").exists() is False
    run("half")  # both looks at the canary before it have that fate as well
    (reason,) = runner.renewals
    assert reason.startswith("its first configuration is now 50.")
    assert reason.endswith("% slower")
    assert (tmp_path / "trial-4/canary/run.json").exists()
    assert (tmp_path / "trial-4/canary-again/run.json").exists()


def test_a_bad_moment_of_the_machine_costs_a_second_look_and_no_process(
    run: Run, runner: InPlaceRunner, tmp_path: Path
) -> None:
    for _ in range(4):
        run("ok")
    run("half-once")  # which the first look takes
    assert (tmp_path / "trial-4/canary-again/run.json").exists()
    assert runner.renewals == []


def test_a_canary_that_stays_as_it_was_changes_nothing(
    run: Run, runner: InPlaceRunner, tmp_path: Path
) -> None:
    for _ in range(5):
        run("ok")
    assert (tmp_path / "trial-4/canary/run.json").exists()
    assert not (tmp_path / "trial-4/canary-again").exists()
    assert runner.renewals == []


def test_a_fresh_process_is_fresh(run: Run, runner: InPlaceRunner, tmp_path: Path) -> None:
    run("ok")
    assert isinstance(run("ok", fresh=True), Telemetry)
    first, second = trainer_pids(tmp_path)
    assert first != second
    assert not psutil.pid_exists(first), "it would hold the memory that the fresh one needs"
    assert runner.renewals == ["a fresh process was asked for"]


def test_a_soak_is_asked_for_on_the_worst_documents(run: Run, tmp_path: Path) -> None:
    run("ok", soak=True, incumbent_low=1e9)
    assert RunDir(tmp_path / "trial-0/run").manifest()["notes"] == {"worst_case": True}


def test_a_hopeless_trial_is_stopped_and_says_so(run: Run, runner: InPlaceRunner) -> None:
    outcome = run("slow", incumbent_low=150.0)
    assert isinstance(outcome, Telemetry)
    assert outcome.stopped_early is not None
    assert "at most 100 tokens/s, the fastest has 150" in outcome.stopped_early
    assert outcome.tokens_per_s == pytest.approx(100.0)
    assert isinstance(run("ok"), Telemetry)
    assert runner.renewals == []


def test_two_configurations_in_turn_are_compared(run: Run, tmp_path: Path) -> None:
    beside = {"transport.preset": "peer"}  # twice as fast
    outcome = run("ok", beside=beside)
    assert isinstance(outcome, Telemetry)
    assert outcome.beside is not None
    assert outcome.beside.values == beside
    assert outcome.beside.log_ratio == pytest.approx(-0.693, abs=0.05)
    assert 0 < outcome.beside.deviation < 0.05
    assert outcome.tokens_per_s == pytest.approx(20_000, rel=0.05)
    began = [
        RunDir(tmp_path / "trial-0" / name).manifest()["clock"]["monotonic_ns"]
        for name in ("beside-1", "run", "again", "beside-2")
    ]
    assert began == sorted(began)


def test_a_hopeless_configuration_gets_no_further_turns(run: Run, tmp_path: Path) -> None:
    outcome = run("slow", beside={"transport.preset": "peer"}, incumbent_low=150.0)
    assert isinstance(outcome, Telemetry)
    assert outcome.stopped_early is not None
    assert outcome.beside is None
    assert not (tmp_path / "trial-0/again").exists()


def test_another_split_cannot_run_in_turn(run: Run, tmp_path: Path) -> None:
    outcome = run("ok", beside={"pipeline.split": "2-1"})
    assert isinstance(outcome, Telemetry)
    assert outcome.beside is None
    assert not (tmp_path / "trial-0/beside-1").exists()


def test_a_trial_that_hangs_is_ended_with_its_process(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ok")
    monkeypatch.setattr("autotune.runner.start_limit_s", 1.0)
    outcome = run("hang")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.timeout
    assert not psutil.pid_exists(trainer_pids(tmp_path)[0])


def test_ctrl_c_ends_the_process_before_it_is_passed_on(run: Run, tmp_path: Path) -> None:
    def interrupt_once_it_runs() -> None:
        while not list(tmp_path.glob("*/run/hanging")):
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt_once_it_runs, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        run("hang")
    assert not psutil.pid_exists(trainer_pids(tmp_path)[0])


def test_nothing_is_left_when_the_runner_is_closed(run: Run, runner: InPlaceRunner, tmp_path: Path) -> None:
    run("ok")
    runner.close()
    (pid,) = trainer_pids(tmp_path)
    assert not psutil.pid_exists(pid)


def test_a_process_that_dies_between_trials_is_replaced(
    run: Run, runner: InPlaceRunner, tmp_path: Path
) -> None:
    run("ok")
    process = psutil.Process(trainer_pids(tmp_path)[0])
    process.kill()
    process.wait(30)  # its socket is closed then
    assert isinstance(run("ok"), Telemetry)
    assert runner.renewals == ["it ended between trials"]


search = """
import sys, time
from pathlib import Path
from autotune.in_place import InPlaceRunner
from autotune.runner import Request
from dflash.contract.config import load_config

place = Path(sys.argv[2])
place.mkdir()
config = load_config(None, ("transport.preset=pinned",))
runner = InPlaceRunner([sys.executable, sys.argv[1]])
runner.run(Request(values={}, config=config, seconds=1.0, run_path=place / "run", number=0))
print("done", flush=True)
time.sleep(600)
"""


def test_a_search_that_is_killed_leaves_no_process(data_dir: Path, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "fate").write_text("ok")
    env = {**os.environ, "PYTHONPATH": str(repository), "FAKE_FATE": str(tmp_path / "fate")}
    program = [
        sys.executable,
        "-c",
        search,
        str(data_dir / "programs/fake_server.py"),
        str(tmp_path / "trial-0"),
    ]
    with subprocess.Popen(program, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        (pid,) = trainer_pids(tmp_path)
        assert psutil.pid_exists(pid)
        process.kill()
    deadline_s = time.monotonic() + 30
    while psutil.pid_exists(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
