"""Trials on disk: nothing is lost, whatever is cut off or damaged."""

import json
import subprocess
import sys

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.storage import TrialLog, journal_path, read_trials, study_lock, trial_dir
from autotune.telemetry import FailureKind
from autotune.trial import TrialState
from dflash.contract.errors import RunError, UsageError


@pytest.fixture
def filled(tmp_path, space, trial_of):
    """A study of five trials, one of each fate."""
    log = TrialLog(tmp_path, space)
    point = space.configurations
    log.save(trial_of(0, point[0], state=TrialState.running, failure=None, reason=None))
    log.save(trial_of(0, point[0], 100.0))
    log.save(trial_of(1, point[1]))
    log.save(trial_of(2, point[2], 900.0, unhealthy="the loss is off"))
    log.save(trial_of(3, point[3], state=TrialState.killed, failure=None))
    log.save(trial_of(4, point[3], state=TrialState.running, failure=None, reason=None, retry_of=3))
    return log


def optuna_trials(study_dir):
    storage = JournalStorage(JournalFileBackend(str(journal_path(study_dir))))
    return optuna.load_study(study_name="dflash-tune", storage=storage).get_trials()


def test_trials_are_read_back_as_they_were_saved(tmp_path, space, filled):
    assert TrialLog(tmp_path, space).trials == filled.trials == read_trials(tmp_path)


def test_optuna_sees_failures_as_bad_scores_and_kills_as_no_answer(tmp_path, filled):
    told = optuna_trials(tmp_path)
    assert [t.state.name for t in told] == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL", "RUNNING"]
    assert [t.value for t in told] == [100.0, 0.0, 0.0, None, None]
    assert told[0].params == filled.trials[0].values


def test_a_trial_that_finished_just_before_a_kill_is_kept(tmp_path, space, trial_of):
    """The record reached trial.json, the journal did not get it."""
    log = TrialLog(tmp_path, space)
    log.save(trial_of(0, space.baseline, state=TrialState.running, failure=None, reason=None))
    done = trial_of(0, space.baseline, 100.0)
    (trial_dir(tmp_path, 0) / "trial.json").write_text(json.dumps(done.to_json()))
    assert read_trials(tmp_path) == (done,)
    assert TrialLog(tmp_path, space).trials == (done,)
    assert optuna_trials(tmp_path)[0].value == 100.0


def test_a_lost_journal_is_rebuilt_from_the_trial_directories(tmp_path, space, filled):
    journal_path(tmp_path).unlink()
    assert read_trials(tmp_path) == filled.trials
    rebuilt = TrialLog(tmp_path, space)
    assert rebuilt.trials == filled.trials
    assert [t.value for t in optuna_trials(tmp_path)] == [100.0, 0.0, 0.0, None, None]
    assert rebuilt.next_number == 5


def test_journal_cut_at_any_byte_loses_no_trial_and_can_be_written_again(tmp_path, space, filled, trial_of):
    whole = journal_path(tmp_path).read_bytes()
    later = trial_of(5, space.configurations[6], 50.0)
    for cut in [*range(0, len(whole), 97), len(whole) - 1]:
        journal_path(tmp_path).write_bytes(whole[:cut])
        log = TrialLog(tmp_path, space)
        assert log.trials[:5] == filled.trials
        log.save(later)
        assert TrialLog(tmp_path, space).trials == (*filled.trials, later)
        (trial_dir(tmp_path, 5) / "trial.json").unlink()


def test_a_damaged_journal_is_named_with_its_remedy(tmp_path, space, filled):
    lines = journal_path(tmp_path).read_bytes().splitlines(keepends=True)
    journal_path(tmp_path).write_bytes(b"".join([*lines[:2], b"{not json\n", *lines[3:]]))
    with pytest.raises(RunError, match="move it away"):
        TrialLog(tmp_path, space)


def test_a_damaged_record_is_named(tmp_path, filled):
    (trial_dir(tmp_path, 1) / "trial.json").write_text('{"number": 1}')
    with pytest.raises(RunError, match=r"001/trial\.json"):
        read_trials(tmp_path)


def test_a_dead_searchs_journal_lock_does_not_block(tmp_path, space, filled, monkeypatch):
    monkeypatch.setattr("autotune.storage.stale_lock_s", 0.0)
    lock = journal_path(tmp_path).with_name("journal.log.lock")
    lock.touch()
    TrialLog(tmp_path, space)
    assert not lock.exists()


hold_the_lock = """
import pathlib, sys
from autotune.storage import study_lock
with study_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_search_is_refused_with_the_first_ones_pid(tmp_path):
    command = [sys.executable, "-c", hold_the_lock, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"pid {holder.pid}") as caught, study_lock(tmp_path):
            pass
        assert caught.value.exit_code == 2
        holder.kill()
    with study_lock(tmp_path):
        pass  # the kernel let go of it


def test_a_study_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file"), study_lock(tmp_path / "file"):
        pass


def test_failure_kinds_survive(tmp_path, space, trial_of):
    TrialLog(tmp_path, space).save(trial_of(0, space.baseline, failure=FailureKind.timeout))
    assert read_trials(tmp_path)[0].failure is FailureKind.timeout
