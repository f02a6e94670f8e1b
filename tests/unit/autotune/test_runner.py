"""Trials through the real recorder, with a stand-in for the trainer."""

import signal
import sys
import threading
import time

import psutil
import pytest

from autotune.runner import RecordedRunner, Request
from autotune.telemetry import Failed, FailureKind, Telemetry
from dflash.contract.config import load_config
from dflash.contract.rundir import RunDir


@pytest.fixture
def run(tmp_path, data_dir, repository, monkeypatch):
    """Run the stand-in trainer with a fate and some knobs; returns (outcome, run path)."""
    monkeypatch.setenv("PYTHONPATH", str(repository))
    runner = RecordedRunner([sys.executable, str(data_dir / "programs/fake_trainer.py")])

    def run_once(fate="ok", *assignments):
        monkeypatch.setenv("FAKE_TRAINER", fate)
        run_path = (
            tmp_path / f"{fate}{len(list(tmp_path.iterdir()))}" / "trials/000/run"
        )  # nothing of it is there
        config = load_config(None, assignments)
        request = Request(values={}, config=config, seconds=1.0, run_path=run_path, number=0)
        return runner.run(request), run_path

    return run_once


def test_a_good_run_is_measured_and_diagnosed(run):
    outcome, run_path = run("ok", "transport.preset=pinned")
    assert isinstance(outcome, Telemetry)
    assert outcome.tokens_per_s == pytest.approx(20_000, rel=0.05)
    assert outcome.low <= outcome.tokens_per_s <= outcome.high
    assert (outcome.steps, outcome.supervised_tokens) == (30, 60_000)
    assert outcome.losses[:2] == (8.0, 7.9)
    assert outcome.verdict
    assert RunDir(run_path).findings_path.exists()
    assert load_config(run_path.with_name("config.toml")).transport.preset == "pinned"


@pytest.mark.parametrize(
    ("fate", "kind", "says"),
    [
        ("oom", FailureKind.out_of_memory, "Tried to allocate 2.00 GiB"),
        ("refused", FailureKind.refused, "no such data file"),
        ("segv", FailureKind.crash, "SIGSEGV"),
        ("nan", FailureKind.nan, "not finite"),
        ("terminated", FailureKind.crash, "SIGTERM, which this search did not send"),
        ("xid", FailureKind.driver_error, "unspecified launch failure"),
        ("silent", FailureKind.error, "the last words"),
        ("short", FailureKind.too_short, "at least 10 are needed"),
        ("used_up", FailureKind.data_used_up, "raise run.epochs or lower window.tokens"),
    ],
)
def test_failures_are_classified_with_their_reason(run, fate, kind, says):
    outcome, _ = run(fate)
    assert isinstance(outcome, Failed)
    assert outcome.kind is kind
    assert says in outcome.reason


def test_a_trial_that_hangs_is_ended(run, monkeypatch):
    monkeypatch.setattr("autotune.runner.start_limit_s", 1.0)
    outcome, _ = run("hang")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.timeout


def test_a_trial_that_gets_no_further_is_ended_and_nothing_of_it_is_left(run, monkeypatch):
    monkeypatch.setattr("autotune.run_watch.least_stall_s", 0.5)
    monkeypatch.setattr("autotune.run_watch.stall_windows", 0)
    outcome, run_path = run("stall")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.hang
    assert "no window ended for" in outcome.reason
    assert "after 5 windows" in outcome.reason
    assert not psutil.pid_exists(RunDir(run_path).manifest()["pids"]["trainer"])


@pytest.mark.parametrize("fate", ["xid", "xid_stays"])  # seen after the end, or while it still runs
def test_a_gpu_that_went_while_a_trial_failed_is_what_is_blamed(
    fate, data_dir, tmp_path, repository, monkeypatch
):
    class LostGpus:
        def find_lost(self):
            if RunDir(tmp_path / "trial/run").manifest()["status"] == "running":
                return None  # however often it is asked meanwhile
            return "GPU 1 (GPU-b): the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)"

    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("FAKE_TRAINER", fate)
    monkeypatch.setattr("autotune.run_watch.gpu_every_s", 0.0)
    runner = RecordedRunner([sys.executable, str(data_dir / "programs/fake_trainer.py")], LostGpus())
    (tmp_path / "trial").mkdir()
    request = Request(
        values={}, config=load_config(None), seconds=1.0, run_path=tmp_path / "trial/run", number=0
    )
    outcome = runner.run(request)
    assert outcome.kind is FailureKind.lost_gpu
    assert "fallen off the bus" in outcome.reason
    assert "unspecified launch failure" in outcome.reason


def test_ctrl_c_ends_the_run_before_it_is_passed_on(run, tmp_path):
    def interrupt_once_it_runs():
        while not list(tmp_path.rglob("run/hanging")):
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt_once_it_runs, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        run("hang")
    (run_path,) = tmp_path.rglob("run")
    assert not psutil.pid_exists(RunDir(run_path).manifest()["pids"]["trainer"])
