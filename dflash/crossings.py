"""One direction of a link with buffers at both ends, ready to copy, to be timed and to be checked.

Two kinds: on GPUs (streams and event pairs) and on logical devices (paced links). Knows nothing of what is
measured with them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dflash.cuda import open_stream
from dflash.devices import Moment
from dflash.links import Link

word_bytes = 8
_chunk_words = 1 << 22  # 32 MB: what filling and comparing need beside the buffers
_multiplier = 2654435761


class Crossing(Protocol):
    """A source and a destination of `copy_bytes` each."""

    copy_bytes: int

    def begin(self, copies: int) -> None:
        """Start that many copies, one after the other. Does not wait, where the path allows."""

    def end(self) -> float:
        """Wait for what `begin` started; the seconds from its start to its end."""

    def wrong_words(self) -> int:
        """Words of the destination that are not those of the source's pattern."""


def fill(source: Tensor, destination: Tensor, seed: int) -> None:
    """A pattern of its own in every word of `source`; zeros, which are not of it, in `destination`."""
    for start, part in _chunks(source):
        part.copy_(_pattern(start, part, seed))
    destination.zero_()


def count_wrong(destination: Tensor, seed: int) -> int:
    """Words that `fill` with that seed did not make, found where they lie, without another copy."""
    return sum(int((part != _pattern(start, part, seed)).sum()) for start, part in _chunks(destination))


def _chunks(words: Tensor) -> list[tuple[int, Tensor]]:
    return [(start, words[start : start + _chunk_words]) for start in range(0, len(words), _chunk_words)]


def _pattern(start: int, like: Tensor, seed: int) -> Tensor:
    numbers = torch.arange(start + 1, start + 1 + len(like), dtype=torch.int64, device=like.device)
    return numbers * _multiplier + seed


class CudaCrossing:
    """Between GPUs, or a GPU and host memory. Copies run on a stream of their own, timed by an event pair.

    A copy between GPUs runs on the source's stream and makes both streams wait for each other, so both are
    side streams: two crossings never share one.
    """

    def __init__(self, source: Tensor, destination: Tensor, seed: int) -> None:
        self.copy_bytes = source.nbytes
        self._source, self._destination, self._seed = source, destination, seed
        ends = [end.device for end in (destination, source) if end.device.type == "cuda"]
        self._streams = [open_stream(device) for device in ends]  # the source's last: it is the current one
        fill(source, destination, seed)
        self._settle()
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def begin(self, copies: int) -> None:
        """See Crossing."""
        carrying = self._streams[-1]
        with torch.cuda.stream(self._streams[0]), torch.cuda.stream(carrying):
            self._start.record(carrying)
            for _ in range(copies):
                self._destination.copy_(self._source, non_blocking=True)
            self._stop.record(carrying)

    def end(self) -> float:
        """See Crossing."""
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) / 1e3

    def wrong_words(self) -> int:
        """See Crossing."""
        self._settle()
        return count_wrong(self._destination, self._seed)

    def _settle(self) -> None:
        for stream in self._streams:
            torch.cuda.synchronize(stream.device)


class LogicalCrossing:
    """Over a paced link, on the link's own thread."""

    def __init__(self, source: Tensor, destination: Tensor, seed: int, link: Link) -> None:
        self.copy_bytes = source.nbytes
        self._source, self._destination, self._seed, self._link = source, destination, seed, link
        self._times_ns: list[tuple[int, int]] = []
        self._last: Moment | None = None
        fill(source, destination, seed)

    def begin(self, copies: int) -> None:
        """See Crossing."""
        self._times_ns.clear()
        for _ in range(copies):
            self._last = self._link.submit(self._copy, self.copy_bytes, ended=self._note)

    def end(self) -> float:
        """See Crossing."""
        assert self._last is not None
        self._last.wait()
        return (self._times_ns[-1][1] - self._times_ns[0][0]) / 1e9

    def wrong_words(self) -> int:
        """See Crossing."""
        return count_wrong(self._destination, self._seed)

    def _copy(self) -> None:
        self._destination.copy_(self._source)

    def _note(self, start_ns: int, end_ns: int) -> None:
        self._times_ns.append((start_ns, end_ns))
