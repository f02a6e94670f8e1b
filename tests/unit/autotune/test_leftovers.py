"""Ending what a dead search left running, and nothing else."""

import json
import os
import subprocess
import time

import psutil
import pytest

from autotune.leftovers import end_leftovers
from dflash.contract.processes import identify
from dflash.contract.rundir import clock_anchor


@pytest.fixture
def sleeper():
    """Start `sleep` with an environment; whatever is left is ended after the test."""
    started = []

    def start(**environment):
        process = subprocess.Popen(["sleep", "60"], env=os.environ | environment, start_new_session=True)
        started.append(process)
        # Until exec it has our own environment, and for a moment of it, with its new name already, none.
        while (
            psutil.Process(process.pid).name() != "sleep"
            or not environment.items() <= psutil.Process(process.pid).environ().items()
        ):
            time.sleep(0.005)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_only_processes_of_this_study_are_ended(tmp_path, sleeper):
    ours = sleeper(DFLASH_RUN_DIR=str(tmp_path / "trials" / "003" / "run"))
    others = [sleeper(), sleeper(DFLASH_RUN_DIR=str(tmp_path / "runs" / "x")), sleeper(DFLASH_RUN_DIR="")]
    assert end_leftovers(tmp_path / "trials") == (ours.pid,)
    assert ours.wait(60) == -9
    assert all(process.poll() is None for process in others)


def test_a_pid_that_was_anothers_at_an_earlier_look_is_ended(tmp_path, sleeper, monkeypatch):
    """psutil remembers the processes that it has seen, and would not kill under a remembered pid."""
    ours = sleeper(DFLASH_RUN_DIR=str(tmp_path / "trials" / "003" / "run"))
    (earlier,) = [process for process in psutil.process_iter() if process.pid == ours.pid]
    monkeypatch.setattr(earlier, "_ident", (ours.pid, 1.0))
    assert not earlier.is_running()
    assert end_leftovers(tmp_path / "trials") == (ours.pid,)
    assert ours.wait(60) == -9


def test_a_trainer_that_carries_no_mark_is_known_by_pid_start_and_boot(tmp_path, sleeper):
    trainer, other, over = sleeper(), sleeper(), sleeper()
    manifests = {
        "000": named(trainer),
        "001": named(other, start_ticks=1),  # its pid was used again
        "002": named(other, boot="of another boot"),
        "003": named(over, status="finished"),
    }
    for number, manifest in manifests.items():
        path = tmp_path / "trials" / number / "run" / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(manifest))
    assert end_leftovers(tmp_path / "trials") == (trainer.pid,)
    assert trainer.wait(60) == -9
    assert other.poll() is None
    assert over.poll() is None


def named(process, *, boot=None, status="running", **changes):
    clock = clock_anchor()
    return {
        "status": status,
        "processes": {"trainer": identify(process.pid) | changes},
        "clock": clock if boot is None else clock | {"boot_id": boot},
    }


def test_nothing_to_end(tmp_path):
    assert end_leftovers(tmp_path / "trials") == ()
