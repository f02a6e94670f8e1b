"""A run that hangs or loses its GPU is known by what it does not write, on a clock of the test's own."""

import pytest

from autotune.run_watch import RunWatch, gpu_every_s, least_stall_s, start_limit_s
from dflash.contract.events import open_events
from dflash.contract.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    """Write window ends, `spacing_s` apart, into a run's events; each call is a writer of its own."""
    written = []

    def write(count, spacing_s=1.0):
        log, probe = open_events(RunDir(tmp_path).events / f"trainer-{len(written)}.arrow")
        for _ in range(count):
            probe.mark("window", t_ns=int(len(written) * spacing_s * 1e9), window=len(written), tokens=1)
            written.append(1)
        probe.mark("other")
        log.close()

    return write


class PlayedGpus:
    def __init__(self, lost):
        self.lost, self.asked = lost, 0

    def find_lost(self):
        self.asked += 1
        return self.lost


def test_a_run_without_a_first_window_hangs_after_the_start_limit(tmp_path):
    watch = RunWatch(tmp_path, began_s=100.0)
    assert watch.look(100.0 + start_limit_s) is None
    assert "no window ended for 602 s from the start" in watch.look(102.0 + start_limit_s)


def test_a_run_that_gets_on_never_hangs(tmp_path, run):
    watch = RunWatch(tmp_path, began_s=0.0)
    for now_s in range(0, 3000, 150):
        run(1)
        assert watch.look(now_s) is None


def test_a_run_that_stops_getting_on_hangs(tmp_path, run):
    watch = RunWatch(tmp_path, began_s=0.0)
    run(12)
    assert watch.look(10.0) is None
    assert watch.look(9.0 + least_stall_s) is None
    reason = watch.look(12.0 + least_stall_s)
    assert "after 12 windows" in reason
    run(5)
    assert watch.look(50.0 + least_stall_s) == reason, "a verdict stands"


def test_long_windows_get_long_patience(tmp_path, run):
    watch = RunWatch(tmp_path, began_s=0.0)
    run(10, spacing_s=60.0)
    assert watch.look(600.0) is None
    assert watch.look(600.0 + 5 * least_stall_s) is None
    assert watch.look(600.0 + 20 * 60 + 5) is not None


def test_a_lost_gpu_is_asked_for_now_and_then(tmp_path):
    gpus = PlayedGpus(None)
    watch = RunWatch(tmp_path, began_s=0.0, gpus=gpus)
    for tenth in range(300):
        assert watch.look(tenth / 10) is None
    assert gpus.asked <= 30 / gpu_every_s
    gpus.lost = "GPU 0: fallen off the bus"
    assert watch.look(40.0) == "GPU 0: fallen off the bus"
