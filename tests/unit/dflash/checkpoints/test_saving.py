"""Checkpoints are written in turn, the newest kept, and a full disk costs no more than it must (C100)."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

from dflash.checkpoints.files import remove_leftovers
from dflash.checkpoints.reading import find_checkpoint
from dflash.checkpoints.saving import CheckpointWriter
from dflash.contract.errors import DFlashError
from dflash.replicas import ReplicaGroup
from tests.small_checkpoints import make_group, make_writer, no_file_larger_than, step


def listed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_each_is_named_after_its_steps_and_written_once(tmp_path: Path) -> None:
    writer, group = make_writer(tmp_path, "run.keep_checkpoints=2"), make_group()
    writer.save(group, last=True)
    assert not list(tmp_path.iterdir())  # nothing was trained
    for count in (1, 2, 3):
        step(group)
        writer.save(group, last=False)
        assert writer.newest == tmp_path / f"step-{count}"
    written_ns = (tmp_path / "step-3").stat().st_mtime_ns
    writer.save(group, last=True)
    assert (tmp_path / "step-3").stat().st_mtime_ns == written_ns
    assert listed(tmp_path) == ["step-2", "step-3"]
    manifest = find_checkpoint(str(tmp_path)).manifest
    assert manifest.position.step == manifest.optimizer_updates == group.optimizer.steps_done == 3


def test_a_full_disk_is_warned_about_and_the_next_turn_tries_again(tmp_path: Path) -> None:
    warnings: list[str] = []
    writer, group = make_writer(tmp_path, warn=warnings.append), make_group()
    for _ in range(2):
        step(group)
        writer.save(group, last=False)
    step(group)
    # Room for the weights, not for the three times as large optimizer state behind them.
    with no_file_larger_than(2 * (tmp_path / "step-2/model.safetensors").stat().st_size):
        writer.save(group, last=False)
    (warning,) = warnings
    assert "cannot be written" in warning
    assert str(tmp_path / "step-3") in warning
    assert listed(tmp_path) == ["step-1", "step-2"]
    assert find_checkpoint(str(tmp_path)).path.name == "step-2"
    step(group)
    writer.save(group, last=False)
    assert listed(tmp_path) == ["step-2", "step-4"]
    assert len(warnings) == 1


@pytest.mark.parametrize("last", [True, False])
def test_the_run_ends_when_the_next_fails_too_or_it_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    writer, group = make_writer(tmp_path), make_group()
    step(group)
    writer.save(group, last=False)

    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dflash.checkpoints.saving.save_file", refuse)
    step(group)
    if not last:
        writer.save(group, last=False)
        step(group)
    with pytest.raises(DFlashError, match="No space left on device") as caught:
        writer.save(group, last=last)
    assert caught.value.exit_code == 1
    assert "--resume" in str(caught.value.remedy)
    assert listed(tmp_path) == ["step-1"]


def test_a_run_that_starts_cleans_its_directory(tmp_path: Path) -> None:
    (tmp_path / ".step-3.12").mkdir()
    make_writer(tmp_path).clean()
    assert listed(tmp_path) == []


def start_saving(writer: CheckpointWriter, group: ReplicaGroup) -> int:
    """The pid of a process that makes steps and saves each until it is killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child does without this process's threads
        pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            while True:
                step(group)
                writer.save(group, last=False)
        finally:
            os._exit(1)
    return pid


def test_c099_killed_at_any_moment_of_saving_the_newest_loads_and_leftovers_are_known(tmp_path: Path) -> None:
    draws, killed_while_saving, group = random.Random(99), 0, make_group()
    for number in range(20):
        directory = tmp_path / str(number)
        pid = start_saving(make_writer(directory), group)
        at_least, until_s = draws.randint(1, 2), time.monotonic() + 60
        while not (directory / f"step-{at_least}").exists() and time.monotonic() < until_s:
            time.sleep(0.001)
        time.sleep(draws.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        found = find_checkpoint(str(directory), older=False)
        assert found.read_optimizer()
        assert found.manifest.optimizer_updates == found.manifest.position.step >= at_least
        leftovers = [name for name in listed(directory) if not name.startswith("step-")]
        assert all(name.startswith(".step-") for name in leftovers)
        killed_while_saving += bool(leftovers)
        assert remove_leftovers(directory) == leftovers
    assert killed_while_saving >= 2
