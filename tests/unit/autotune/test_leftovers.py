"""Ending what a dead search left running, and nothing else."""

import os
import subprocess
import time

import psutil
import pytest

from autotune.leftovers import end_leftovers


@pytest.fixture
def sleeper():
    """Start `sleep` with an environment; whatever is left is ended after the test."""
    started = []

    def start(**environment):
        process = subprocess.Popen(["sleep", "60"], env=os.environ | environment, start_new_session=True)
        started.append(process)
        while psutil.Process(process.pid).name() != "sleep":  # until exec, it still has our own environment
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
    assert ours.wait(5) == -9
    assert all(process.poll() is None for process in others)


def test_nothing_to_end(tmp_path):
    assert end_leftovers(tmp_path / "trials") == ()
