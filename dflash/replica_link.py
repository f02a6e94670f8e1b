"""Copies between the leader's device and another replica's: gradients there, weights back, beside the stages.

Between two GPUs they run on streams of their own and behind events only, so that gradients arrive while
another replica's backward still runs, and weights while the next window's states do. A pair whose peer copies
are not right goes through host memory, while the caller waits. Knows nothing of sums, steps or windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dflash.cuda import open_stream
from dflash.devices import Device, Moment


class ReplicaLink:
    """One pair. Used by one thread at a time."""

    def __init__(self, leader: Device, other: Device, *, through_host: bool = False) -> None:
        self._leader, self._other = leader, other
        self._apart = leader is not other and not leader.emulated  # logical devices share one memory
        self._through_host = through_host and self._apart
        beside = self._apart and not through_host
        self._down = _Lane(other, leader) if beside else None
        self._up = _Lane(leader, other) if beside else None

    def bring(self, tensors: Sequence[Tensor | None], after: Moment) -> tuple[list[Tensor | None], Moment]:
        """`tensors` of the other replica on the leader's device, and when they are there.

        Where they need no copy they are returned as they are. Keep both until what reads them has ended.
        """
        if not self._apart:
            return list(tensors), after
        place = self._leader.torch_device
        if self._down is not None:
            with self._down.behind(after):
                return [_copy(tensor, place) for tensor in tensors], self._other.record()
        after.wait()
        with self._other.active():
            on_host = [None if tensor is None else tensor.cpu() for tensor in tensors]
        return [_copy(tensor, place) for tensor in on_host], self._leader.record()

    def spread(self, new: Sequence[Tensor], own: Sequence[Tensor], after: Moment) -> Moment:
        """Overwrite the other replica's tensors `own` with the leader's `new`; when that is done."""
        if self._up is not None:
            with self._up.behind(after):
                for old, fresh in zip(own, new, strict=True):
                    old.copy_(fresh, non_blocking=True)
                return self._leader.record()
        after.wait()
        with self._other.active():
            for old, fresh in zip(own, new, strict=True):
                old.copy_(fresh.cpu() if self._through_host else fresh)
            return self._other.record()


class _Lane:
    """A stream at each end; a peer copy runs on the source's, and makes each wait for the other."""

    def __init__(self, src: Device, dst: Device) -> None:
        self._src, self._dst = open_stream(src.torch_device), open_stream(dst.torch_device)

    @contextmanager
    def behind(self, moment: Moment) -> Iterator[None]:
        """Inside, both streams are current, the source's device too; nothing starts before `moment`."""
        with torch.cuda.stream(self._dst), torch.cuda.stream(self._src):
            moment.order_stream()
            yield


def _copy(tensor: Tensor | None, place: torch.device) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor, device=place).copy_(tensor, non_blocking=True)
