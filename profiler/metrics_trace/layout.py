"""Where each stage thread of a trace spent its time: batches laid out one after the other, as spans.

The waits of an interval are shares of its time, and are kept. A batch's copies and work are given in seconds;
they follow, and are cut where the waits leave less than that. What is left over stays uncovered.
Knows nothing of runs or of how spans are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

most_spans: Final = 20_000  # batches of one thread; beyond that, a span stands for several
most_moving: Final = 0.9  # of a drafter's time may go into moves, on average
counted_batches: Final = 10.0  # over which the growth of a queue tells the targets' pace
fits_within: Final = 1.05  # seconds may exceed their interval so much, as rounding and noise
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that a stage does for each batch. `column`: a share for a wait, else seconds a batch."""

    name: str
    column: str
    kind: str  # wait, copy, work
    channel: str | None = None
    path: str | None = None
    last: bool = False  # a wait after the work, not before it
    carries_tokens: bool = False
    only_away: bool = False  # only for batches taken from another drafter's device


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a batch at its place in time, seconds since the trace's start."""

    part: Part
    begin_s: float
    end_s: float
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """One batch, or the part of one that a gap or the end of the trace left whole."""

    number: int | None  # None: how many batches there were is unknown
    begin_s: float
    end_s: float
    away: bool | None  # None: not told, or not a drafter
    item_bytes: int | None
    pieces: tuple[Piece, ...]


target_parts: Final = (
    Part(name="get", column="q.pre.get_wait_frac", kind="wait", channel="q_pre"),
    Part(name="forward", column="target.fwd_s", kind="work", carries_tokens=True),
    Part(name="gather", column="target.pack_s", kind="work"),
    Part(name="copy", column="own_copy_s", kind="copy", path="host"),
    Part(name="put", column="q.hs.put_wait_frac", kind="wait", channel="q_hs", last=True),
)
drafter_parts: Final = (
    Part(name="get", column="q.hs.get_wait_frac", kind="wait", channel="q_hs"),
    Part(name="copy", column="drafter.h2d_s", kind="copy", path="host"),
    Part(name="copy", column="drafter.xdev_copy_s", kind="copy", path="peer", only_away=True),
    Part(name="backward", column="drafter.fwdbwd_s", kind="work", carries_tokens=True),
    Part(name="gpu_wait", column="drafter.scalar_sync_s", kind="work"),
    Part(name="optimizer", column="drafter.optim_s", kind="work"),
)
stage_parts: Final[Mapping[str, tuple[Part, ...]]] = {"target": target_parts, "drafter": drafter_parts}


def with_rates(rows: pd.DataFrame, targets: int, drafters: int) -> pd.DataFrame:
    """`rows` with the batches of one thread a second, `target_rate` and `drafter_rate`, and what follows."""
    length = rows["length_s"]
    drafted = (rows["tok_s"] / rows["budget"]).fillna(_per_second(rows["q.hs.consumed"], rows))
    drafted = drafted.groupby(rows["segment"]).transform(_bridged)
    made = _per_second(rows["q.hs.produced"], rows)
    if made.isna().all():
        made = drafted + _growth(rows["q.hs.depth"], drafted, rows)
    overlap = rows["target.d2h_overlap"]
    own_copy_s = rows["target.d2h_s"] * (1 - overlap)
    # A counter that its own interval has no time for is not believed; the throughput is.
    on_path_s = rows[["target.fwd_s", "target.pack_s"]].assign(copy=own_copy_s).sum(axis=1, min_count=1)
    room = 1 - rows[["q.pre.get_wait_frac", "q.hs.put_wait_frac"]].fillna(0).sum(axis=1)
    fits = ~(made / targets * on_path_s > fits_within * room)
    size = rows["target.d2h_s"] * rows["copies.d2h_gbps"] * 1e9
    return rows.assign(
        target_rate=made.where(fits & made.notna(), drafted) / targets,
        drafter_rate=drafted / drafters,
        own_copy_s=own_copy_s,
        link_copy_s=rows["target.d2h_s"] * overlap,
        item_bytes=size.where(size > 0),
        tokens_per_batch=rows["budget"].where(rows["tok_s"].notna()).fillna(rows["tok_s"] / drafted),
        end_s=rows["start_s"] + length,
    )


def _bridged(rates: pd.Series) -> pd.Series:
    """With unknown rates between known ones, and beside them: a reading that failed is no standstill."""
    return rates.interpolate(limit_direction="both")


def _per_second(total: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """A counter's rise in each interval; the first has the same as the second, a fall or a gap has none."""
    rise = total.diff().where(rows["segment"].diff() == 0)
    rate = (rise / rows["length_s"]).where(rise >= 0)
    return rate.bfill(limit=1)


def _growth(depth: pd.Series, drafted: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Batches a second by which the queue grew, over stretches of `counted_batches`; 0 where unknown.

    Depths are whole numbers, so shorter stretches would tell of steps instead of a pace.
    """
    done = (drafted.fillna(0) * rows["length_s"]).cumsum()
    stretch = [
        rows["segment"],
        (done // counted_batches).clip(upper=max(done.iloc[-1] // counted_batches - 1, 0)),
    ]
    before = depth.shift().where(rows["segment"].diff() == 0, depth)
    grown = depth.groupby(stretch).transform("last") - before.groupby(stretch).transform("first")
    growth = grown / rows["length_s"].groupby(stretch).transform("sum")
    return growth.clip(lower=-drafted).fillna(0.0)


@dataclass
class Layout:
    """Lays out one stage; afterwards `overfull` tells by how much the seconds exceeded the time."""

    stage: str
    rows: pd.DataFrame  # of `with_rates`
    _wanted_s: float = 0.0
    _given_s: float = 0.0
    _away: float = field(default=0.0)

    @property
    def overfull(self) -> float:
        """Seconds asked for over seconds there were, in batches that asked for too much; 1: all fitted."""
        return self._wanted_s / self._given_s if self._given_s else 1.0

    def batches(self) -> Iterator[BatchTime]:
        """The batches of one thread, in time order."""
        number = 0
        for _, rows in self.rows.groupby("segment", sort=True):
            means = _Means(rows)
            evenly = list(_boundaries(rows, f"{self.stage}_rate"))
            for begin_s, end_s, progress, away in self._by_home(means, evenly):
                yield self._batch(means, begin_s, end_s, progress, away, None if progress is None else number)
                number += 1

    def _by_home(
        self, means: _Means, evenly: list[tuple[float, float, float | None]]
    ) -> Iterator[tuple[float, float, float | None, bool | None]]:
        """The batches, and whether each comes from another device: then it takes longer, and others less.

        Boundaries move by the time for moves that is due, or was spent, beyond the mean.
        """
        at_s, owed_s = (evenly[0][0] if evenly else 0.0), 0.0
        for begin_s, end_s, progress in evenly:
            share = means.mean("drafter.wrong_home_frac", begin_s, end_s)
            away = self._is_away(share)
            move_s = means.mean("drafter.xdev_copy_s", begin_s, end_s) or 0.0
            if away is not None and share and progress is not None:
                owed_s += (share - away) * min(move_s * progress, most_moving * (end_s - begin_s) / share)
            least_s = at_s + (1 - most_moving) * (end_s - begin_s)
            until_s = end_s if end_s == evenly[-1][1] else min(max(end_s - owed_s, least_s), end_s)
            yield at_s, until_s, progress, away
            at_s = until_s

    def _batch(
        self,
        means: _Means,
        begin_s: float,
        end_s: float,
        progress: float | None,
        away: bool | None,
        number: int | None,
    ) -> BatchTime:
        parts = stage_parts[self.stage]
        seconds = [self._seconds(part, means, begin_s, end_s, progress, away) for part in parts]
        lengths = self._fit(parts, seconds, end_s - begin_s)
        tokens_each = means.mean("tokens_per_batch", begin_s, end_s)
        tokens = None if progress is None or tokens_each is None else round(progress * tokens_each)
        size = means.mean("item_bytes", begin_s, end_s)
        return BatchTime(
            number=number,
            begin_s=begin_s,
            end_s=end_s,
            away=away,
            item_bytes=None if size is None else round(size),
            pieces=tuple(_place(parts, lengths, begin_s, end_s, tokens)),
        )

    def _is_away(self, share: float | None) -> bool | None:
        """Whether the next batch is one of the `share` that come from another device, spread evenly."""
        if self.stage != "drafter" or share is None:
            return None
        before, self._away = self._away, self._away + share
        return int(self._away + 1e-9) > int(before + 1e-9)

    def _seconds(
        self,
        part: Part,
        means: _Means,
        begin_s: float,
        end_s: float,
        progress: float | None,
        away: bool | None,
    ) -> float:
        """How long the part takes in this batch; 0 where it is not told or not done."""
        mean = means.mean(part.column, begin_s, end_s)
        if mean is None or (part.only_away and away is False):
            return 0.0
        if part.kind == "wait":
            return means.total(part.column, begin_s, end_s)
        return mean * (progress or 0.0)

    def _fit(self, parts: Sequence[Part], seconds: Sequence[float], length_s: float) -> list[float]:
        """The seconds, cut to the batch's time: waits stay, then copies, then work."""
        wanted = sum(seconds)
        if wanted > fits_within * length_s:
            self._wanted_s += wanted
            self._given_s += length_s
        room, fitted = length_s, list(seconds)
        for kind in ("wait", "copy", "work"):
            mine = [i for i, part in enumerate(parts) if part.kind == kind]
            asked = sum(seconds[i] for i in mine)
            scale = min(1.0, room / asked) if asked > 0 else 1.0
            for i in mine:
                fitted[i] = seconds[i] * scale
            room = max(room - asked * scale, 0.0)
        return fitted


def _place(
    parts: Sequence[Part], lengths: Sequence[float], begin_s: float, end_s: float, tokens: int | None
) -> Iterator[Piece]:
    """The parts in order from the batch's begin, what comes last up to its end."""
    at_s = begin_s
    late_s = end_s - sum(length for part, length in zip(parts, lengths, strict=True) if part.last)
    for part, length in zip(parts, lengths, strict=True):
        if part.last:
            at_s = late_s
        if length > 0:
            ends_s = max(min(at_s + length, end_s), at_s)  # rounding may leave the place past the end
            yield Piece(part, at_s, ends_s, tokens if part.carries_tokens else None)
        at_s += length


def _boundaries(rows: pd.DataFrame, rate: str) -> Iterator[tuple[float, float, float | None]]:
    """Begin, end and size (in batches) of every batch in a segment; intervals where none can be counted."""
    edges = np.append(rows["start_s"].to_numpy(), rows["end_s"].iloc[-1])
    if rows[rate].isna().all():
        yield from ((float(a), float(b), None) for a, b in pairwise(edges))
        return
    done = np.append(0.0, np.cumsum(rows[rate].fillna(0).to_numpy() * np.diff(edges)))
    unit = max(1, int(np.ceil(done[-1] / most_spans)))
    counts = np.append(np.arange(0.0, done[-1], unit), done[-1])
    if len(counts) > 2 and counts[-1] - counts[-2] < 1e-9:
        counts = np.delete(counts, -2)
    rising = done + 1e-12 * np.arange(len(done))  # also where it stands still, so that it can be inverted
    times = np.interp(counts, rising, edges)
    times[0], times[-1] = edges[0], edges[-1]
    for (a, b), size in zip(pairwise(times), np.diff(counts), strict=True):
        if b > a:
            yield float(a), float(b), float(size)


class _Means:
    """Integrals of the columns of one segment over any stretch of it."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._edges = np.append(rows["start_s"].to_numpy(), rows["end_s"].iloc[-1])
        self._rows = rows
        self._sums: dict[str, tuple[Floats, Floats]] = {}

    def total(self, column: str, begin_s: float, end_s: float) -> float:
        """The integral of what is known of the column."""
        return self._between(self._of(column)[0], begin_s, end_s)

    def mean(self, column: str, begin_s: float, end_s: float) -> float | None:
        """The mean over the time for which the column is known; None when it never is."""
        known_s = self._between(self._of(column)[1], begin_s, end_s)
        return self.total(column, begin_s, end_s) / known_s if known_s > 0 else None

    def _of(self, column: str) -> tuple[Floats, Floats]:
        if column not in self._sums:
            values, seconds = self._rows[column].to_numpy(dtype=float), np.diff(self._edges)
            known = np.isfinite(values)
            sums = np.where(known, values, 0.0) * seconds, known * seconds
            self._sums[column] = tuple(np.append(0.0, np.cumsum(s)) for s in sums)  # type: ignore[assignment]
        return self._sums[column]

    def _between(self, sums: Floats, begin_s: float, end_s: float) -> float:
        low, high = np.interp((begin_s, end_s), self._edges, sums)
        return float(high - low)
