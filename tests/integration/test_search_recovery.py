"""Searches in processes of their own, killed at arbitrary moments and started again by the same line."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import psutil
import pytest

from autotune.result import load_study
from autotune.storage import read_trials
from autotune.trial import TrialState
from benchmarks.in_order import InOrder


@pytest.fixture(autouse=True)
def no_trial_is_left(tmp_path):
    yield
    for process in trial_processes(tmp_path):
        process.kill()


def trial_processes(tmp_path):
    """Living processes that belong to a trial of the study."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get("DFLASH_RUN_DIR", "")
            if marked.startswith(str(tmp_path)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def finished(study_dir):
    return {t.number: t for t in read_trials(study_dir) if t.state is TrialState.finished}


def wait_for(process, word, count=1):
    for line in process.stdout:
        count -= line.startswith(word)
        if count == 0:
            return
    pytest.fail(f"the search ended first: {process.stderr.read()}")


@pytest.mark.slow
def test_search_killed_at_random_moments_loses_and_repeats_nothing(tmp_path, start):
    generator = random.Random(7)
    kills, studies = 0, ["study-0"]
    kept = {}
    while kills < 12:
        process = start(study=studies[-1])
        kill_at_random(process, generator)
        now = finished(tmp_path / studies[-1])
        assert {number: now.get(number) for number in kept} == kept, "a finished trial was lost or changed"
        kept = now
        if process.returncode == 0:  # it was quicker than we: go on killing another
            studies.append(f"study-{len(studies)}")
            kept = {}
        else:
            assert process.returncode == -signal.SIGKILL, process.stderr.read()
            kills += 1
    for study in studies:
        last = start("0.01", study)
        assert last.wait(60) == 0, last.stderr.read()
        check_whole(load_study(tmp_path / study, InOrder()))
    assert trial_processes(tmp_path) == []


def kill_at_random(process, generator):
    """At any moment from before the study is opened to the middle of the second trial from here."""
    lines = generator.randrange(4)
    if lines == 0:
        time.sleep(generator.uniform(0.0, 0.8))
    while lines and process.stdout.readline():
        lines -= 1
    time.sleep(generator.uniform(0.0, 0.12))
    process.kill()
    process.wait(30)


def check_whole(result):
    """Every configuration and every repeat that was asked for is there, and none twice."""
    measured = Counter(
        (t.values["transport.preset"], t.values["transport.depth"])
        for t in result.trials
        if t.state is TrialState.finished and t.repeat_of is None
    )
    assert set(measured.values()) == {1}, "a finished configuration was run again"
    assert "6 of 6 configurations tried" in result.stop
    assert "not done" not in result.stop
    repeats = Counter(t.repeat_of for t in result.trials if t.repeat_of is not None and t.state.is_over)
    assert set(repeats.values()) == {2}
    assert result.best is not None


def test_trial_of_a_killed_search_is_ended_and_run_once_more(tmp_path, start):
    first = start("60")
    wait_for(first, "started")
    while not trial_processes(tmp_path):
        time.sleep(0.01)
    (orphan,) = trial_processes(tmp_path)
    first.kill()
    first.wait(30)
    assert orphan.is_running(), "the stand-in must outlive its search, or the test proves nothing"
    second = start("0.01")
    assert second.wait(60) == 0, second.stderr.read()
    assert f"ended process {orphan.pid}" in second.stdout.read()
    assert trial_processes(tmp_path) == []
    trials = read_trials(tmp_path / "study")
    assert [t.state.value for t in trials[:2]] == ["killed", "finished"]
    assert trials[1].retry_of == 0


def test_second_search_on_a_study_is_refused_and_the_first_goes_on(tmp_path, start):
    first = start("60")
    wait_for(first, "started")
    second = start("0.01")
    assert second.wait(60) == 2
    assert f"pid {first.pid}" in second.stderr.read()
    assert first.poll() is None
    (trial,) = load_study(tmp_path / "study").trials  # a running study can be read
    assert trial.state is TrialState.running
    while not trial_processes(tmp_path):
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert read_trials(tmp_path / "study")[-1].state is TrialState.interrupted
    assert trial_processes(tmp_path) == []
