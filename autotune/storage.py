"""A study's trials on disk: Optuna's journal, and the same record in each trial's own directory.

STUDY_DIR/journal.log          Optuna study "dflash-tune" in journal storage; what Optuna's own tools read. A
                               space that was changed gets a study of its own ("dflash-tune 2"), with the
                               earlier trials that apply to it
STUDY_DIR/trials/NNN/          one directory a trial: trial.json, conditions.json, config.toml, run/

A record is written to trial.json first (whole or not at all), then to the journal. So whenever a search
dies, opening the study again finds every finished trial: the journal is brought up to the directories,
and is rebuilt from them when it is lost.

How trials are told to Optuna. A finished trial is COMPLETE with its tokens/s. A failed or unhealthy one
is COMPLETE with 0: told as FAIL, a searcher learns nothing and asks for the same configuration again and
again; NaN and None would become FAIL, and infinity would win. A killed or interrupted one is FAIL: it
says nothing of its configuration and shall be asked again.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import psutil
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState as OptunaState

from autotune.applying import base_values, translate
from autotune.identity import conditions_name
from autotune.journal_lock import JournalLock
from autotune.space import Space
from autotune.trial import Trial, TrialState
from autotune.trial_store import NumberedTrials
from dflash.contract.errors import RunError
from dflash.contract.rundir import write_json

study_name = "dflash-tune"
attribute = "trial"  # the user attribute that holds our record
space_attribute = "space"  # and of a study: the space that it is over
network_filesystems = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs")
)


class TrialLog(NumberedTrials):
    """The trials of one study, also of an earlier space, written by the search that holds the study's lock.

    `notice` is told what a user would want to know, such as that somebody else holds the journal.
    `conditions` (see identity.py) are kept with every trial, so that the trial directories alone say what
    they are worth.
    """

    def __init__(
        self,
        study_dir: Path,
        space: Space,
        notice: Callable[[str], None] = lambda message: None,
        conditions: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._dir, self._space, self._base = study_dir.resolve(), space, base_values(space)
        self._conditions = conditions
        self._distributions = {d.path: CategoricalDistribution(d.choices) for d in space.dimensions}
        self._optuna_ids: dict[int, int] = {}
        study_dir.mkdir(parents=True, exist_ok=True)
        _repair(journal_path(study_dir))
        self._storage = _open_journal(study_dir, notice)
        found = _find_study(self._storage, space)
        self._study_id = _create_study(self._storage, space) if found is None else found
        self._load()

    @property
    def root(self) -> Path:
        """The study's directory."""
        return self._dir

    def save(self, trial: Trial) -> None:
        """Add `trial`, or replace its earlier form. On return it is on the disk."""
        directory = trial_dir(self._dir, trial.number)
        directory.mkdir(parents=True, exist_ok=True)
        if self._conditions is not None and not (directory / conditions_name).exists():
            write_json(directory / conditions_name, self._conditions)
        write_json(directory / "trial.json", trial.to_json())
        self._tell(trial)

    def _load(self) -> None:
        self._trials = _told_trials(self._storage, journal_path(self._dir))
        known = dict(self._trials)
        for frozen in self._storage.get_all_trials(self._study_id, deepcopy=False):
            self._optuna_ids[frozen.user_attrs[attribute]["number"]] = frozen._trial_id
        self._trials |= {trial.number: trial for trial in read_directories(self._dir)}
        for number, trial in sorted(self._trials.items()):
            if number not in self._optuna_ids or known.get(number) != trial or self._is_open(trial):
                self._tell(trial)

    def _is_open(self, trial: Trial) -> bool:
        frozen = self._storage.get_trial(self._optuna_ids[trial.number])
        return trial.state is not TrialState.running and not frozen.state.is_finished()

    def _tell(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        values, _ = translate(trial.values, self._space, self._base)
        if values is None:  # of an earlier space: there is no room for it in this one's study
            return
        if trial.number not in self._optuna_ids:
            # Created as running with everything set, in one journal record: enqueue and ask would be
            # three, and a kill between them would leave a trial without a record.
            template = optuna.trial.create_trial(
                state=OptunaState.RUNNING,
                params=values,
                distributions=self._distributions,  # type: ignore[arg-type]  # dict is invariant
                user_attrs={attribute: trial.to_json()},
            )
            self._optuna_ids[trial.number] = self._storage.create_new_trial(self._study_id, template)
        optuna_id = self._optuna_ids[trial.number]
        if trial.state is TrialState.running or self._storage.get_trial(optuna_id).state.is_finished():
            return  # what Optuna calls finished it does not let anybody change
        self._storage.set_trial_user_attr(optuna_id, attribute, trial.to_json())
        state = OptunaState.COMPLETE if trial.state.is_over else OptunaState.FAIL
        self._storage.set_trial_state_values(optuna_id, state, [trial.score] if trial.state.is_over else None)


def read_trials(study_dir: Path) -> tuple[Trial, ...]:
    """All trials by number, without a lock and without writing; also while a search runs."""
    path = journal_path(study_dir)
    trials = _told_trials(_open_journal(study_dir), path) if path.exists() else {}
    trials |= {trial.number: trial for trial in read_directories(study_dir)}
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


def network_filesystem(path: Path) -> str | None:
    """The kind of network filesystem `path` lies on, or None for a local disk."""
    mounts = [p for p in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(p.mountpoint)]
    kind = max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else ""
    return kind if kind in network_filesystems else None


def _told_trials(storage: JournalStorage, path: Path) -> dict[int, Trial]:
    """The trials of every space that the journal tells of, by number."""
    return {
        trial.number: trial
        for study in storage.get_all_studies()
        for frozen in storage.get_all_trials(study._study_id, deepcopy=False)
        for trial in [_decode(frozen.user_attrs.get(attribute), path)]
    }


def _open_journal(study_dir: Path, notice: Callable[[str], None] = lambda message: None) -> JournalStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = journal_path(study_dir)
    try:
        return JournalStorage(JournalFileBackend(str(path), JournalLock(path, notice)))
    except (ValueError, KeyError, TypeError) as error:  # what a damaged record makes Optuna raise
        raise RunError(
            f"the study's journal is damaged: {error}",
            where=str(path),
            remedy="move it away: the next search rebuilds it from the trial directories",
        ) from None


def _find_study(storage: JournalStorage, space: Space) -> int | None:
    """Optuna's study of this space, which is one of its own: Optuna lets no choices change."""
    for study in storage.get_all_studies():
        study_id = study._study_id
        told = storage.get_study_user_attrs(study_id).get(space_attribute)
        if told is None and not storage.get_n_trials(study_id):  # a kill came between its two records
            storage.set_study_user_attr(study_id, space_attribute, _described(space))
            return study_id
        if told == _described(space):
            return study_id
    return None


def _create_study(storage: JournalStorage, space: Space) -> int:
    names = {study.study_name for study in storage.get_all_studies()}
    candidates = (study_name if i == 1 else f"{study_name} {i}" for i in itertools.count(1))
    name = next(name for name in candidates if name not in names)
    study_id = storage.create_new_study([StudyDirection.MAXIMIZE], name)
    storage.set_study_user_attr(study_id, space_attribute, _described(space))
    return study_id


def _described(space: Space) -> str:
    return json.dumps(space.describe(), default=str)


def _repair(path: Path) -> None:
    """Cut a record that a kill left half written.

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
