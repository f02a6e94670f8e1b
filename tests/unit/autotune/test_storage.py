"""Trials on disk: nothing is lost, whatever is cut off or damaged."""

import json
import subprocess
import sys

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.storage import TrialLog, journal_path, read_trials, trial_dir
from autotune.study_lock import study_lock
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


def test_a_trial_of_a_changed_space_is_kept_and_told_where_it_applies(tmp_path, space_of, trial_of):
    """Optuna's categorical choices may not change within a study: a changed space gets one of its own."""
    narrow, wide = (
        space_of(transport__preset=("host", "peer")),
        space_of(transport__preset=("host", "shared")),
    )
    log = TrialLog(tmp_path, narrow)
    host = trial_of(0, narrow.baseline, 100.0)
    peer = trial_of(1, narrow.baseline | {"transport.preset": "peer"}, 200.0)
    log.save(host)
    log.save(peer)
    changed = TrialLog(tmp_path, wide)
    assert changed.trials == (host, peer)
    assert changed.next_number == 2
    changed.save(trial_of(2, wide.baseline | {"transport.preset": "shared"}, 150.0))
    storage = JournalStorage(JournalFileBackend(str(journal_path(tmp_path))))
    second = optuna.load_study(study_name="dflash-tune 2", storage=storage)
    assert [t.value for t in second.get_trials()] == [100.0, 150.0]
    assert [t.value for t in optuna_trials(tmp_path)] == [100.0, 200.0]
    assert TrialLog(tmp_path, narrow).trials == read_trials(tmp_path) == TrialLog(tmp_path, wide).trials
    journal_path(tmp_path).unlink()
    assert len(TrialLog(tmp_path, wide).trials) == 3


def test_a_kill_between_the_first_two_records_makes_no_second_study(tmp_path, space):
    storage = JournalStorage(JournalFileBackend(str(journal_path(tmp_path))))
    storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "dflash-tune")
    TrialLog(tmp_path, space)
    assert [study.study_name for study in storage.get_all_studies()] == ["dflash-tune"]


hold_the_lock = """
import pathlib, sys
from autotune.study_lock import study_lock
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
