"""Failures sorted by what the recording says of them."""

import pytest

from autotune.measurement import classify_failure, measure_run
from autotune.telemetry import Failed, FailureKind


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", FailureKind.out_of_memory),
        (
            137,
            "killed by SIGKILL: out of memory (the kernel killed 1 process(es))",
            FailureKind.out_of_memory,
        ),
        (
            1,
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
            FailureKind.out_of_memory,
        ),
        (137, "killed by SIGKILL", FailureKind.crash),
        (139, "killed by SIGSEGV", FailureKind.crash),
        (124, "time limit of 9 s", FailureKind.timeout),
        (2, "there is no such data file", FailureKind.refused),
        (1, "ended with exit code 1", FailureKind.error),
        (255, "ended with exit code 255", FailureKind.error),
    ],
)
def test_failures_have_a_kind(code, reason, kind):
    assert classify_failure(code, reason) is kind


def test_a_run_that_left_nothing_is_no_measurement(tmp_path):
    outcome = measure_run(tmp_path)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.no_measurement
    assert "run.json" in outcome.reason
