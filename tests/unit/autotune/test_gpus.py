"""GPU memory between trials, on played sensors and a played clock."""

import pytest

from autotune.gpus import GpuWatch, give_up_after_s
from dflash.contract.errors import DFlashError
from profiler.samplers.sensors import GpuDevice, GpuProcess, Unreadable

gigabyte = 10**9
lost = Unreadable("the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)", permanent=False)


class PlayedSensors:
    """Two GPUs; each read of one takes the next of its answers, the last one for good."""

    def __init__(self, *series):
        self.series = [list(answers) for answers in series]

    def devices(self):
        return tuple(
            GpuDevice(key=f"GPU-{i}", name="H200", index=i, memory_bytes=100 * gigabyte)
            for i in range(len(self.series))
        )

    def read(self, index, metrics):
        answers = self.series[index]
        return [answers.pop(0) if len(answers) > 1 else answers[0]]

    def processes(self, index):
        return [GpuProcess(1, 20 * gigabyte)]


@pytest.fixture
def watch_of():
    def make(*series, environment=None):
        now = [0.0]
        notices = []
        watch = GpuWatch(
            PlayedSensors(*series),
            notices.append,
            clock=lambda: now[0],
            sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
            environment=environment or {},
        )
        return watch, notices, now

    return make


def test_the_first_look_waits_for_nothing(watch_of):
    watch, notices, now = watch_of([5 * gigabyte])
    watch.settle()
    assert (notices, now) == ([], [0.0])


def test_memory_that_a_driver_hands_back_late_is_waited_for(watch_of):
    watch, notices, now = watch_of([gigabyte, *[50 * gigabyte] * 40, 2 * gigabyte])
    watch.settle()
    watch.settle()
    assert now[0] == pytest.approx(10)
    assert len(notices) == 1
    assert "GPU 0 holds 49.0 GB more than before held by process 1 (" in notices[0]


def test_two_percent_are_no_reason_to_wait(watch_of):
    watch, _, now = watch_of([gigabyte, 2.9 * gigabyte])
    watch.settle()
    watch.settle()
    assert now == [0.0]


def test_the_lowest_seen_is_what_counts(watch_of):
    """What a killed search had held is still there at the first look."""
    watch, _, now = watch_of([40 * gigabyte, gigabyte, 40 * gigabyte, gigabyte])
    watch.settle()
    watch.settle()
    watch.settle()
    assert now[0] > 0


def test_memory_that_stays_taken_ends_the_wait_with_its_reason(watch_of):
    watch, _, now = watch_of([gigabyte], [gigabyte, 30 * gigabyte])
    watch.settle()
    with pytest.raises(DFlashError, match=r"GPU 1 holds 29\.0 GB more") as caught:
        watch.settle()
    assert now[0] == pytest.approx(give_up_after_s, abs=1)
    assert "same line then goes on" in str(caught.value)


def test_what_cannot_be_read_is_not_waited_for(watch_of):
    watch, _, now = watch_of([gigabyte, Unreadable("no permission", permanent=True)], [None])
    watch.settle()
    watch.settle()
    assert now == [0.0]


def test_a_lost_gpu_is_named_and_other_silence_is_not(watch_of):
    watch, _, _ = watch_of([gigabyte], [lost])
    assert watch.find_lost() == "GPU 1 (GPU-1): the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)"
    watch, _, _ = watch_of([Unreadable("no permission", permanent=True)])
    assert watch.find_lost() is None


def test_gpus_that_cuda_does_not_show_are_nobodys_business_here(watch_of):
    watch, _, now = watch_of(
        [gigabyte], [gigabyte, 90 * gigabyte], environment={"CUDA_VISIBLE_DEVICES": "GPU-0"}
    )
    watch.settle()
    watch.settle()
    assert now == [0.0]
    hidden, _, _ = watch_of([gigabyte], [lost], environment={"CUDA_VISIBLE_DEVICES": "GPU-0"})
    assert hidden.find_lost() is None
