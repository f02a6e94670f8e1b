"""cuDNN for long documents: as the variable-length kernel has it, within its limits, from several threads."""

import itertools
import threading

import pytest
import torch

from dflash import dense_attention, target_attention
from dflash.dense_attention import DenseKernel, Row, attend_by_length, attend_with_cudnn
from dflash.target_attention import attend_documents

cuda = torch.device("cuda", 0)
# Both kernels round to bfloat16, 3 digits; what sees a neighbour or a wrong head is off by tens of percent.
tolerance = 1e-2
others = target_attention._variable_length


def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_hopper(), reason="needs a GPU of the Hopper generation or later"),
]


def row_of(*lengths: int, heads: int = 32, key_heads: int = 8, width: int = 128) -> Row:
    generator = torch.Generator(cuda).manual_seed(sum(lengths))
    query, key, value = (
        torch.randn(sum(lengths), h, width, generator=generator, device=cuda, dtype=torch.bfloat16)
        for h in (heads, key_heads, key_heads)
    )
    starts = [0, *itertools.accumulate(lengths)]
    return Row(
        query=query,
        key=key,
        value=value,
        starts=torch.tensor(starts, dtype=torch.int32, device=cuda),
        host_starts=starts,
        scale=width**-0.5,
    )


def by_varlen(row: Row) -> torch.Tensor:
    return others(*row.tensors, row.starts, row.longest(), row.scale)


def apart(found: torch.Tensor, row: Row) -> float:
    expected = by_varlen(row).float()
    assert found.shape == expected.shape
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("lengths", "plans"),
    [
        ([8192], 1),
        ([2048] * 4, 1),
        ([100, 3000, 700, 4000, 392], 2),
        ([1500, 548], 1),
        ([548, 1500], 1),
        ([5], 0),
    ],
)
def test_dense_and_variable_length_attention_agree(lengths: list[int], plans: int) -> None:
    kernel, row = DenseKernel(attend_with_cudnn), row_of(*lengths)
    assert apart(attend_by_length(row, kernel, others), row) < tolerance
    assert kernel.failure is None
    assert len(getattr(kernel._threads, "plans", ())) == plans


@pytest.mark.parametrize(
    ("heads", "key_heads", "width"), [(4, 2, 32), (16, 8, 128), (12, 12, 64), (8, 1, 64)]
)
def test_targets_of_many_shapes_get_it(heads: int, key_heads: int, width: int) -> None:
    kernel = DenseKernel(attend_with_cudnn)
    row = row_of(1200, 30, 1024, heads=heads, key_heads=key_heads, width=width)
    assert apart(attend_by_length(row, kernel, others), row) < tolerance
    assert kernel.failure is None


def test_the_operator_uses_it_though_sdpa_may_not() -> None:
    row = row_of(1500, 20)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as a run does
    try:
        host_starts = torch.tensor(row.host_starts)
        found = attend_documents(*row.tensors, row.starts, host_starts, row.scale)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert apart(found, row) < tolerance
    assert dense_attention.cudnn.failure is None
    assert dense_attention.cudnn.serves(row.kind, others)


def test_past_the_limit_of_plans_documents_go_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_attention, "most_plans", 2)
    kernel = DenseKernel(attend_with_cudnn)
    for length in (1024, 1280, 1536, 1792, 1024):
        row = row_of(length, 10)
        found = attend_by_length(row, kernel, others)
        assert apart(found, row) < tolerance
        assert torch.equal(found, by_varlen(row)) or length in (1024, 1280)
    assert len(kernel._threads.plans) == 2


def test_two_threads_attend_at_once() -> None:
    """Each on a stream and with plans of its own; the first one tries the kernel out."""
    kernel, rows = DenseKernel(attend_with_cudnn), (row_of(1500, 20, 2048), row_of(30, 2048, 2048, 1100))
    torch.cuda.synchronize()
    found: list[float] = []
    gate = threading.Barrier(2)

    def work(row: Row) -> None:
        with torch.cuda.stream(torch.cuda.Stream(cuda)):
            gate.wait()
            found.extend([apart(attend_by_length(row, kernel, others), row) for _ in range(20)])

    threads = [threading.Thread(target=work, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert max(found) < tolerance
    assert kernel.failure is None
