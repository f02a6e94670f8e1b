"""The kind of a failure, read off what PyTorch, CUDA and the driver say of it."""

import pytest

from autotune.failure_words import kind_in_words
from autotune.telemetry import FailureKind as Kind


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Kind.out_of_memory),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            Kind.out_of_memory,
        ),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", Kind.out_of_memory),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Kind.driver_error),
        ("RuntimeError: CUDA error: unspecified launch failure", Kind.driver_error),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Kind.driver_error),
        ("RuntimeError: NCCL Error 2: unhandled system error", Kind.driver_error),
        ("CUDA error: uncorrectable ECC error encountered", Kind.driver_error),
        ("NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception", Kind.driver_error),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", Kind.lost_gpu),
        ("GPU 1 (GPU-abc): the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)", Kind.lost_gpu),
        ("CUDA error: no CUDA-capable device is detected", Kind.lost_gpu),
        ("the loss or its gradient is not finite, training stops before the weights are harmed", Kind.nan),
        ("no window ended for 200 s after 12 windows", Kind.hang),
        ("there is no such data file", None),
        ("ended with exit code 1", None),
    ],
)
def test_words_tell_the_kind(words, kind):
    assert kind_in_words(words) is kind
