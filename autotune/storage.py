"""A study's trials on disk: Optuna's journal, and the same record in each trial's own directory.

STUDY_DIR/journal.log          Optuna study "dflash-tune" in journal storage; what Optuna's own tools read
STUDY_DIR/trials/NNN/          one directory a trial: trial.json, config.toml, run/
STUDY_DIR/lock                 held by the one search that may write

A record is written to trial.json first (whole or not at all), then to the journal. So whenever a search
dies, opening the study again finds every finished trial: the journal is brought up to the directories,
and is rebuilt from them when it is lost.

How trials are told to Optuna. A finished trial is COMPLETE with its tokens/s. A failed or unhealthy one
is COMPLETE with 0: told as FAIL, a searcher learns nothing and asks for the same configuration again and
again; NaN and None would become FAIL, and infinity would win. A killed or interrupted one is FAIL: it
says nothing of its configuration and shall be asked again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import optuna
import psutil
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import TrialState as OptunaState

from autotune.space import SearchSpace
from autotune.trial import Trial, TrialState
from dflash.contract.errors import RunError, UsageError
from dflash.contract.rundir import write_json

study_name = "dflash-tune"
attribute = "trial"  # the user attribute that holds our record
network_filesystems = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs")
)
stale_lock_s = 2.0  # Optuna holds its lock for milliseconds; one this old at opening is a dead search's


class TrialLog:
    """The trials of one study, read and written by the search that holds the study's lock."""

    def __init__(self, study_dir: Path, space: SearchSpace) -> None:
        self._dir, self._space = study_dir, space
        self._distributions = {d.path: CategoricalDistribution(d.choices) for d in space.dimensions}
        self._trials: dict[int, Trial] = {}
        self._optuna_ids: dict[int, int] = {}
        _repair(journal_path(study_dir))
        self._storage = _open_journal(study_dir)
        self._study_id = _create_study(self._storage)
        self._load()

    @property
    def root(self) -> Path:
        """The study's directory."""
        return self._dir

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, by number."""
        return tuple(self._trials[number] for number in sorted(self._trials))

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return max(self._trials, default=-1) + 1

    def save(self, trial: Trial) -> None:
        """Add `trial`, or replace its earlier form. On return it is on the disk."""
        directory = trial_dir(self._dir, trial.number)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "trial.json", trial.to_json())
        self._tell(trial)

    def _load(self) -> None:
        for frozen in self._storage.get_all_trials(self._study_id, deepcopy=False):
            trial = _decode(frozen.user_attrs.get(attribute), journal_path(self._dir))
            self._trials[trial.number] = trial
            self._optuna_ids[trial.number] = frozen._trial_id
        for trial in read_directories(self._dir):
            if self._trials.get(trial.number) != trial or self._is_open(trial):
                self._tell(trial)

    def _is_open(self, trial: Trial) -> bool:
        frozen = self._storage.get_trial(self._optuna_ids[trial.number])
        return trial.state is not TrialState.running and not frozen.state.is_finished()

    def _tell(self, trial: Trial) -> None:
        if trial.number not in self._optuna_ids:
            # Created as running with everything set, in one journal record: enqueue and ask would be
            # three, and a kill between them would leave a trial without a record.
            template = optuna.trial.create_trial(
                state=OptunaState.RUNNING,
                params=dict(trial.values),
                distributions=self._distributions,  # type: ignore[arg-type]  # dict is invariant
                user_attrs={attribute: trial.to_json()},
            )
            self._optuna_ids[trial.number] = self._storage.create_new_trial(self._study_id, template)
        optuna_id = self._optuna_ids[trial.number]
        if trial.state is not TrialState.running:
            self._storage.set_trial_user_attr(optuna_id, attribute, trial.to_json())
            state = OptunaState.COMPLETE if trial.state.is_over else OptunaState.FAIL
            self._storage.set_trial_state_values(
                optuna_id, state, [trial.score] if trial.state.is_over else None
            )
        self._trials[trial.number] = trial


def read_trials(study_dir: Path) -> tuple[Trial, ...]:
    """All trials by number, without a lock and without writing; also while a search runs."""
    trials = {trial.number: trial for trial in read_directories(study_dir)}
    path = journal_path(study_dir)
    if path.exists():
        storage = _open_journal(study_dir)
        for study in storage.get_all_studies():
            for frozen in storage.get_all_trials(study._study_id, deepcopy=False):
                trial = _decode(frozen.user_attrs.get(attribute), path)
                trials.setdefault(trial.number, trial)
    return tuple(trials[number] for number in sorted(trials))


def read_directories(study_dir: Path) -> tuple[Trial, ...]:
    """The trials that have a trial.json, by number."""
    paths = sorted((study_dir / "trials").glob("*/trial.json"))
    trials = [_decode(_read_json(path), path) for path in paths]
    return tuple(sorted(trials, key=lambda trial: trial.number))


def trial_dir(study_dir: Path, number: int) -> Path:
    """Where trial `number` keeps what is its own."""
    return study_dir / "trials" / f"{number:03d}"


def journal_path(study_dir: Path) -> Path:
    """Optuna's journal of the study."""
    return study_dir / "journal.log"


@contextmanager
def study_lock(study_dir: Path) -> Iterator[None]:
    """Hold the study for writing. Raises UsageError with the holder's pid when another search has it.

    The kernel lets go of the lock when its holder dies, however it dies.
    """
    path = study_dir / "lock"
    try:
        study_dir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise RunError(f"the study directory cannot be used: {error}", where=str(study_dir)) from None
    with file:
        _take_lock(file, study_dir)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _take_lock(file: IO[str], study_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise UsageError(
            "another search is using this study",
            where=str(study_dir),
            found=f"a search with pid {file.read().strip() or 'unknown'}",
            remedy="wait for it, stop it, or use another --study-dir; reading a running study needs no lock",
        ) from None
    except OSError as error:
        raise RunError(
            f"the study directory cannot be locked: {error}",
            where=str(study_dir),
            remedy="put the study on a local disk",
        ) from None


def network_filesystem(path: Path) -> str | None:
    """The kind of network filesystem `path` lies on, or None for a local disk."""
    mounts = [p for p in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(p.mountpoint)]
    kind = max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else ""
    return kind if kind in network_filesystems else None


def _open_journal(study_dir: Path) -> JournalStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = str(journal_path(study_dir))
    try:
        return JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))
    except (ValueError, KeyError, TypeError) as error:  # what a damaged record makes Optuna raise
        raise RunError(
            f"the study's journal is damaged: {error}",
            where=path,
            remedy="move it away: the next search rebuilds it from the trial directories",
        ) from None


def _create_study(storage: JournalStorage) -> int:
    studies = {study.study_name: study._study_id for study in storage.get_all_studies()}
    if study_name in studies:
        return studies[study_name]
    return storage.create_new_study([StudyDirection.MAXIMIZE], study_name)


def _repair(path: Path) -> None:
    """Cut a record that a kill left half written, and take away a dead search's lock.

    Optuna would otherwise append to the half record and never read past it again.
    """
    if not path.exists():
        return
    with path.open("rb+") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)
            os.fsync(file.fileno())
    lock = path.with_name(path.name + ".lock")
    with suppress(FileNotFoundError):
        wait_s = stale_lock_s - (time.time() - lock.stat().st_mtime)
        time.sleep(min(max(wait_s, 0.0), stale_lock_s))
        lock.unlink()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"a trial's record cannot be read: {error}", where=str(path)) from None


def _decode(data: Any, path: Path) -> Trial:
    try:
        return Trial.from_json(data)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"not a trial's record: {error!r}", where=str(path)) from None
