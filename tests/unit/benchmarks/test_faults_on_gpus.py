"""The page of faults on GPUs: what it plants in the allocator, and how it judges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import faults_on_gpus
from benchmarks.faults_on_gpus import (
    Pieces,
    after_forwards,
    block_bytes,
    healthy,
    quiet_batches,
    score,
    undone,
)

gigabyte = 1 << 30


class Gpu:
    """Stands for torch's allocator: gives a cached block that fits, else asks the driver, else frees all."""

    def __init__(self, total: int, used: int) -> None:
        self.total, self.used, self.limit = total, used, total
        self.cached: list[int] = []
        self.retries = 0

    def take_and_give_back(self, size: int) -> None:
        """A tensor that lives for a moment."""
        fitting = [block for block in self.cached if block >= size]
        if not fitting:
            if self.used + sum(self.cached) + size > self.limit:
                self.retries += 1
                self.cached.clear()
            assert self.used + size <= self.limit, "out of memory"
            self.cached.append(size)


@pytest.mark.parametrize(("blocks", "retries"), [(1, 67), (8, 541), (24, 1625)])
def test_every_block_but_the_first_makes_the_allocator_start_over(
    monkeypatch: pytest.MonkeyPatch, blocks: int, retries: int
) -> None:
    """Of 68 batches; after 256 blocks the cache is emptied, and the next one is a first one again."""
    gpu = Gpu(140 * gigabyte, 30 * gigabyte)

    def cap(share: float) -> None:
        gpu.limit = int(share * gpu.total)

    cuda: Any = SimpleNamespace(
        is_available=lambda: True,
        memory_reserved=lambda: gpu.used + sum(gpu.cached),
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(total_memory=gpu.total),
        set_per_process_memory_fraction=cap,
        empty_cache=gpu.cached.clear,
    )
    monkeypatch.setattr(faults_on_gpus.torch, "cuda", cuda)
    monkeypatch.setattr(faults_on_gpus.torch, "empty", lambda size, **_: gpu.take_and_give_back(size))
    pieces = Pieces(blocks)
    for batch in range(1, 100):
        pieces.act()
        assert gpu.retries == 0 or batch >= quiet_batches
    assert gpu.retries == retries
    assert gpu.limit == pytest.approx(30 * gigabyte + 1.5 * block_bytes, rel=1e-6)


def test_what_is_planted_acts_after_each_forward_and_goes_away() -> None:
    class Target:
        def forward(self, batch: int) -> int:
            return batch + 1

    target, said = Target(), []
    roles: Any = SimpleNamespace(targets={("cpu", 0): target})
    with undone(roles):
        after_forwards(SimpleNamespace(targets=[target]), lambda: said.append("after"))  # type: ignore[arg-type]
        assert (target.forward(1), said) == (2, ["after"])
    assert (target.forward(2), said) == (3, ["after"])


def test_a_run_is_right_by_its_cause_or_by_health_where_little_is_lost() -> None:
    def row(cause: str, pace: float | None, *named: str) -> dict[str, Any]:
        return {"planted": cause, "causes": [cause], "measured": pace, "named": list(named)}

    found = score(
        [
            row(healthy, 100.0, healthy),
            row(healthy, 104.0, "drafter-too-slow"),
            row("allocator-fragmentation", 51.0, "allocator-fragmentation", "gil-contention"),
            row("allocator-fragmentation", 51.0, healthy),
            row("per-step-scalar-sync", 99.0, healthy),
            row("per-step-scalar-sync", None),
        ]
    )
    assert [one["right"] for one in found["rows"]] == [True, False, True, False, True, None]
    assert found["rows"][2]["cost"] == pytest.approx(0.5)
    assert (found["right"], found["runs"]) == (3, 5)


def test_without_a_gpu_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(faults_on_gpus.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(faults_on_gpus.torch, "empty", lambda size, **_: taken.append(size))
    pieces = Pieces(1)
    for _ in range(2 * quiet_batches):
        pieces.act()
    assert taken == []
