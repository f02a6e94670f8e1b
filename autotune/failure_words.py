"""The kind of a failure from its words, as PyTorch, CUDA, the driver and our own watch put it.

Knows nothing of exit codes or processes.
"""

from __future__ import annotations

import re
from typing import Final

from autotune.telemetry import FailureKind
from dflash.contract.errors import ran_out_of_memory

hang_words: Final = "no window ended for"  # as run_watch.py puts it, and the next
foreign_words: Final = "which this search did not send"

_lost: Final = (
    r"fallen off the bus|GPU_IS_LOST|GPU is lost|no CUDA-capable device"
    r"|Xid[^\n]{0,40}\b(?:79|119|120|154)\b"
)
_driver: Final = (
    r"\bXid\b|CUDA (?:driver )?error|cudaError|CUDA_ERROR|CUDNN_STATUS|cuDNN error|CUBLAS_STATUS|NVML_ERROR"
    r"|NCCL error|ncclSystemError|ncclUnhandledCudaError|uncorrectable ECC|illegal memory access"
    r"|unspecified launch failure|driver/library version mismatch"
)
_nan: Final = r"(?:loss|gradient)[^\n]{0,40}(?:is|was) not finite|\bloss (?:is|=) nan\b"

# In this order: a card that is gone makes the driver complain too, and either may spoil the loss.
_words: Final = (
    (FailureKind.lost_gpu, _lost),
    (FailureKind.hang, hang_words),
    (FailureKind.driver_error, _driver),
    (FailureKind.nan, _nan),
    (FailureKind.crash, foreign_words),
)
_matchers: Final = tuple((kind, re.compile(words, re.IGNORECASE)) for kind, words in _words)


def kind_in_words(reason: str) -> FailureKind | None:
    """The kind that the words of a failure tell; None where they tell none."""
    found = [kind for kind, words in _matchers if words.search(reason)]
    if FailureKind.lost_gpu not in found and ran_out_of_memory(reason):
        return FailureKind.out_of_memory
    return found[0] if found else None
