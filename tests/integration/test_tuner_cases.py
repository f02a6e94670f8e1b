"""Known troubles of tuners, each with the outcome that it must have here.

C071 (a lock held, two searches), C073 (the same again), C077 (NaN, infinity, none), C078 (the space changed)
and C081 (faster, not learning) are told by tests/unit/autotune/; here are those that need processes.
"""

from __future__ import annotations

import sys

import psutil

from autotune.default_searcher import default_searcher
from autotune.effort import Effort
from autotune.machine import Machine
from autotune.runner import RecordedRunner
from autotune.search import SearchPlan, search
from autotune.space import Dimension, SearchSpace
from autotune.storage import read_trials
from autotune.trial import TrialState
from dflash.contract.config import load_config


def test_c074_trials_are_those_in_all_and_what_is_left_is_said(tmp_path, start):
    first = start("0.01,0.01,0.01,0.01,60", trials=10)  # it does not get past the fifth, however late we are
    ended = 0
    for line in first.stdout:
        ended += line.startswith("ended")
        if ended == 4:
            break
    first.kill()
    first.wait(30)
    finished = [t for t in read_trials(tmp_path / "study") if t.state is TrialState.finished]
    again = start("0.01", trials=10)
    said, error = again.communicate(timeout=120)
    assert again.returncode == 0, error
    assert "4 configurations tried, 6 left" in said
    trials = read_trials(tmp_path / "study")
    firsts = [t for t in trials if t.repeat_of is None and t.state is TrialState.finished]
    assert len(firsts) == 10
    assert trials[:4] == tuple(finished)


def test_c075_a_killed_trial_is_said_and_made_once_more(tmp_path, start):
    first = start("60", trials=6)
    for line in first.stdout:
        if line.startswith("started"):
            break
    first.kill()
    first.wait(30)
    (running,) = read_trials(tmp_path / "study")
    assert running.state is TrialState.running
    again = start("0.01", trials=6)
    said, error = again.communicate(timeout=120)
    assert again.returncode == 0, error
    killed, rerun, *_ = read_trials(tmp_path / "study")
    assert (killed.state, killed.reason) == (TrialState.killed, "the search died during it")
    assert (rerun.state, rerun.retry_of, rerun.values) == (TrialState.finished, 0, killed.values)
    assert "0 configurations tried, 6 left" in said


def test_c079_one_that_runs_out_of_memory_spoils_nothing_for_the_others(
    tmp_path, data_dir, repository, monkeypatch
):
    """It leaks a thread, half a gigabyte and a child of its own session; the next ones do not notice."""
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("FAKE_TRAINER", "hungry")
    budgets = Dimension("pipeline.token_budget", (1024, 2048, 4096))
    presets = Dimension("transport.preset", ("host", "peer"))
    knobs = ["window.tokens=4096", "data.max_length=256", "pipeline.split=1-1", "transport.preset=host"]
    base = load_config(None, [*knobs, "pipeline.token_budget=1024"])
    plan = SearchPlan(
        study_dir=tmp_path / "study",
        space=SearchSpace((budgets, presets), base, 2),
        machine=Machine(cpu="a cpu", cpus=2),
        effort=Effort(trials=6, repeats=1, seconds=1.0),
        searcher=default_searcher(),
    )
    runner = RecordedRunner([sys.executable, str(data_dir / "programs/fake_trainer.py")])
    result = search(plan, runner, lambda event: None)
    failed = [t for t in result.trials if t.state is TrialState.failed]
    assert failed
    assert {t.failure.value for t in failed} == {"out of memory"}
    assert all(t.values["pipeline.token_budget"] == 2048 for t in failed), "a bigger budget was asked for"
    leaked = [int((result.run_path(t) / "leaked").read_text()) for t in failed]
    assert not any(psutil.pid_exists(pid) for pid in leaked)
    at_peer = [t for t in result.trials if t.values["transport.preset"] == "peer" and t.is_candidate]
    assert min(t.number for t in failed) < max(t.number for t in at_peer)
    rates = [t.tokens_per_s for t in at_peer]
    assert max(rates) / min(rates) < 1.02
    assert result.best.values == {"pipeline.token_budget": 1024, "transport.preset": "peer"}
