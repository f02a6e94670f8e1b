"""Gradients and weights between replicas travel behind the right moments. One GPU is enough."""

from __future__ import annotations

import pytest
import torch

from dflash.cuda import CudaDevice
from dflash.replica_link import ReplicaLink

pytestmark = pytest.mark.gpu
words = 1 << 20
millisecond = 2_000_000  # cycles, about
both_ways = pytest.mark.parametrize("through_host", [False, True])


def pair() -> tuple[CudaDevice, CudaDevice]:
    return CudaDevice(0), CudaDevice(torch.cuda.device_count() - 1)


@both_ways
def test_gradients_are_brought_when_they_are_whole(through_host: bool) -> None:
    leader, other = pair()
    link = ReplicaLink(leader, other, through_host=through_host)
    backward, summing = torch.cuda.Stream(other.torch_device), torch.cuda.Stream(leader.torch_device)
    wrong = []
    for tag in range(1, 21):
        with torch.cuda.stream(backward):
            gradient = torch.full((words,), -1.0, device=other.torch_device)
            torch.cuda._sleep(millisecond)
            gradient.fill_(tag)
            trained = other.record()
        brought, arrived = link.bring([gradient, None], trained)
        assert brought[1] is None
        with torch.cuda.stream(summing):
            arrived.order_stream()
            wrong.append((brought[0] != tag).sum())
            leader.record().wait()
    assert sum(int(count) for count in wrong) == 0


@both_ways
def test_weights_are_read_when_they_have_arrived_and_sent_when_they_are_new(through_host: bool) -> None:
    leader, other = pair()
    link = ReplicaLink(leader, other, through_host=through_host)
    stepping, training = torch.cuda.Stream(leader.torch_device), torch.cuda.Stream(other.torch_device)
    new = torch.zeros(words, device=leader.torch_device)
    own = torch.zeros(words, device=other.torch_device)
    torch.cuda.synchronize(leader.torch_device)
    torch.cuda.synchronize(other.torch_device)
    wrong = []
    for tag in range(1, 21):
        with torch.cuda.stream(stepping):
            torch.cuda._sleep(millisecond)
            new.fill_(tag)
            stepped = leader.record()
        settled = link.spread([new], [own], stepped)
        with torch.cuda.stream(training):
            settled.order_stream()
            wrong.append((own != tag).sum())
            other.record().wait()
    assert sum(int(count) for count in wrong) == 0


def test_bringing_does_not_wait_for_the_device() -> None:
    leader, other = pair()
    link = ReplicaLink(leader, other)
    backward = torch.cuda.Stream(other.torch_device)
    gradient = torch.ones(words, device=other.torch_device)
    link.bring([gradient], other.record())[1].wait()  # what the first copy costs
    with torch.cuda.stream(backward):
        torch.cuda._sleep(200 * millisecond)
        trained = other.record()
    _, arrived = link.bring([gradient], trained)
    assert not trained.done(), "it came back only when the backward had ended"
    arrived.wait()
    assert trained.done()
