"""Where each stage thread's time went: closing sums that add up to the range exactly.

Two views of one thread. `close_threads` is Python's: every host-clock span, what is left is "unaccounted".
`close_devices` is the device's: GPU-timed work first, then whatever the thread was doing while the device
idled; on logical devices, whose work is on the host clock, both are the same. Arithmetic is in whole
nanoseconds. Knows nothing of what is healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.run import missing_name

stages = ("prefetch", "target", "drafter")  # those that causes are known for, in the order of the data
beside = ("trainer", "link", missing_name)  # every other name is that of a stage with threads of its own
nested = ("compile",)  # spans inside others of their thread: their time is counted there
waits = (
    "get",
    "put",
    "window_turn",
    "window_wait",
    "copy_wait",
    "lock_wait",
    "device_wait",
    "barrier",
    "ended",
)
closing_columns = [
    "stage",
    "index",
    "device",
    "tid",
    "kind",
    "name",
    "channel",
    "path",
    "ns",
    "seconds",
    "share",
]
beside_stages = ("copy_wait", "lock_wait")  # waits that no other stage could end
_what = ["kind", "name", "channel", "path"]
_named = ["stage", "device", "clock", "name", "channel", "path"]
_of_spans = [*_named, "index", "tid", "batch", "tokens", "t_ns", "dur_ns"]
Nanoseconds = NDArray[np.int64]
_for_ever_ns = 2**62
_of_any_stage = {
    "copy_wait": "a copy",
    "lock_wait": "a lock of the compiler",
    "gil_wait": "the GIL",
    "device_wait": "the role on its device",
    "barrier": "the barrier",
}
_awaited = {
    ("prefetch", "put"): "targets",
    ("target", "get"): "prefetch",
    ("target", "put"): "drafters",
    ("target", "window_turn"): "the window before",
    ("drafter", "get"): "targets",
    ("drafter", "window_wait"): "the step",
}


def kind_of(name: str) -> str:
    """`work`, `copy`, `wait` (for a neighbour or a copy) or `gpu_wait` (for the own, then busy, device).

    A fifth kind, `gil_wait`, is no span: it is taken out of work by what the samples say.
    """
    if name in waits:
        return "wait"
    return name if name in ("copy", "gpu_wait") else "work"


def family_of(channel: str) -> str:
    """The kind of a channel: `q_hs.1` and `q_hs` are both `q_hs`."""
    return channel.partition(".")[0]


def name_of_part(kind: str, name: str, channel: str, path: str) -> str:
    """A row of a closing sum in words: "forward", "get q_pre", "copy pageable"."""
    detail = {"wait": channel, "copy": path}.get(kind, missing_name)
    return name if detail == missing_name else f"{name} {detail}"


def awaited(stage: str, name: str) -> str:
    """For whom a stage waits in the wait `name`, in words."""
    return _of_any_stage.get(name, _awaited.get((stage, name), name))


def thread_spans(events: pd.DataFrame) -> pd.DataFrame:
    """Spans of stage threads, with start_ns, end_ns, clock and what they are; unclipped.

    Spans that another stage emitted from a stage's thread (its `tid` tells) belong to that thread. Names are
    categories, of which long runs have few.
    """
    spans = events[(events["kind"] == "span") & (events["stage"] != "link") & ~events["name"].isin(nested)]
    spans = spans[_of_spans].astype(dict.fromkeys(_named, "category"))
    if "ended" not in spans["name"].cat.categories:
        spans["name"] = spans["name"].cat.add_categories("ended")
    own = spans[~spans["stage"].isin(beside)]
    threads = own.loc[own["clock"] == "host", ["stage", "index", "device", "tid"]].drop_duplicates()
    guests = spans[spans["stage"].isin(beside)].drop(columns=["stage", "index", "device"])
    sole = threads[~threads["tid"].duplicated(keep=False)]
    spans = pd.concat([own, guests.merge(sole, on="tid"), _ends(events, own)], ignore_index=True)
    spans["kind"] = _each(spans["name"], kind_of)
    spans["channel"] = _each(spans["channel"], family_of)
    return spans.assign(start_ns=spans["t_ns"], end_ns=spans["t_ns"] + spans["dur_ns"])


def _each(names: pd.Series, say: Callable[[str], str]) -> pd.Series:
    """`say` of every name, as categories."""
    said = [say(name) for name in names.cat.categories]
    kinds = list(dict.fromkeys(said))
    places = np.array([*map(kinds.index, said), -1])  # a name that is missing stays so
    codes = places[names.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(kinds, dtype=object)), index=names.index)


def _ends(events: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """An endless span `ended` for every stage thread that stopped: it neither works nor holds anybody up."""
    stops = events[(events["kind"] == "mark") & (events["name"] == "stop") & ~events["stage"].isin(beside)]
    stops = stops[own.columns].assign(name="ended", dur_ns=_for_ever_ns - stops["t_ns"])
    return stops.astype(own.dtypes.to_dict())


def close_threads(
    spans: pd.DataFrame, lo_ns: int, hi_ns: int, gil_waits: Mapping[int, float] | None = None
) -> tuple[pd.DataFrame, float]:
    """The closing sum of every thread over [lo_ns, hi_ns), and the seconds in which spans overlapped.

    Where two spans of a thread overlap, the earlier one keeps the time: the union is what is counted.
    `gil_waits`: the share of its time that each thread (by native id) waited for the GIL. It is taken out of
    the thread's work, of every part in proportion, and cannot be more than all work.
    """
    rows: list[dict[str, Any]] = []
    overlap_ns = 0
    for who, mine in _by_thread(_with_parts(spans[spans["clock"] == "host"])):
        start, end = clip(mine, lo_ns, hi_ns)
        own_start, own_end = separate(start, end)
        own_ns = own_end - own_start
        overlap_ns += int((end - start).sum() - own_ns.sum())
        taken_ns = _gil_within(mine, own_ns, own_ns, hi_ns - lo_ns, (gil_waits or {}).get(who["tid"], 0.0))
        rows += _close(who, mine, own_ns - taken_ns, hi_ns - lo_ns, int(taken_ns.sum()))
    return _closing_frame(rows, hi_ns - lo_ns), overlap_ns / 1e9


def close_devices(
    spans: pd.DataFrame, lo_ns: int, hi_ns: int, gil_waits: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """The closing sum of every device over [lo_ns, hi_ns): its work, then what its idle time went to.

    Of the time that the device idled while its thread was at work, the thread's own part of waiting for the
    GIL (see `close_threads`) was that.
    """
    rows: list[dict[str, Any]] = []
    spans = _with_parts(spans)
    on_gpu = spans[spans["clock"] == "gpu"]
    for who, mine in _by_thread(spans[spans["clock"] == "host"]):
        same = (on_gpu["stage"] == who["stage"]) & (on_gpu["index"] == who["index"])
        gpu = on_gpu[same].sort_values("start_ns", kind="stable")
        gpu_start, gpu_end = separate(*clip(gpu, lo_ns, hi_ns))
        start, end = separate(*clip(mine, lo_ns, hi_ns))
        idle_ns = (end - start) - _busy_within(start, end, gpu_start, gpu_end)
        waited = (gil_waits or {}).get(who["tid"], 0.0)
        taken_ns = _gil_within(mine, end - start, idle_ns, hi_ns - lo_ns, waited)
        both = pd.concat([gpu, mine])
        own_ns = np.concatenate([gpu_end - gpu_start, idle_ns - taken_ns])
        rows += _close(who, both, own_ns, hi_ns - lo_ns, int(taken_ns.sum()))
    return _closing_frame(rows, hi_ns - lo_ns)


def _gil_within(
    spans: pd.DataFrame, host_ns: Nanoseconds, counted_ns: Nanoseconds, range_ns: int, share: float
) -> Nanoseconds:
    """What of each span's `counted_ns` was waiting for the GIL, if the thread waited `share` of the range."""
    is_work = (spans["kind"] == "work").to_numpy()
    work_ns = int(host_ns[is_work].sum())
    part = min(share * range_ns / work_ns, 1.0) if work_ns else 0.0
    taken: Nanoseconds = np.where(is_work, np.floor(counted_ns * part), 0.0).astype(np.int64)
    return taken


def clip(spans: pd.DataFrame, lo_ns: int, hi_ns: int) -> tuple[Nanoseconds, Nanoseconds]:
    """Starts and ends of `spans` inside [lo_ns, hi_ns); a span outside becomes empty."""
    start = spans["start_ns"].to_numpy(dtype=np.int64).clip(lo_ns, hi_ns)
    end = spans["end_ns"].to_numpy(dtype=np.int64).clip(lo_ns, hi_ns)
    return start, end


def separate(start: Nanoseconds, end: Nanoseconds) -> tuple[Nanoseconds, Nanoseconds]:
    """Intervals sorted by start, made disjoint with the same union: the earlier one keeps shared time."""
    if len(start) == 0:
        return start, end
    covered = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    own_start = np.maximum(start, covered)
    return own_start, np.maximum(end, own_start)


def _busy_within(
    start: Nanoseconds, end: Nanoseconds, busy_start: Nanoseconds, busy_end: Nanoseconds
) -> Nanoseconds:
    """How much of each [start, end) the disjoint, sorted busy intervals cover."""
    if len(busy_start) == 0:
        return np.zeros_like(start)
    before = np.cumsum(busy_end - busy_start) - (busy_end - busy_start)

    def busy_until(t: Nanoseconds) -> Nanoseconds:
        last = np.maximum(np.searchsorted(busy_start, t, side="right") - 1, 0)
        within = (t.clip(max=busy_end[last]) - busy_start[last]).clip(min=0)
        until: Nanoseconds = before[last] + within
        return until

    return busy_until(end) - busy_until(start)


def _with_parts(spans: pd.DataFrame) -> pd.DataFrame:
    """`spans` with the number of their part, by which sums are made: once for all threads."""
    return spans.assign(part=spans.groupby(_what, observed=True, sort=False).ngroup())


def _by_thread(host: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Each thread and its spans, sorted by start."""
    order = {stage: i for i, stage in enumerate(stages)}
    keys = ["stage", "index", "device", "tid"]
    groups: dict[Any, pd.DataFrame] = dict(iter(host.groupby(keys, observed=True, sort=False)))
    for key in sorted(groups, key=lambda k: (order.get(k[0], len(order)), *k)):
        yield dict(zip(keys, key, strict=True)), groups[key].sort_values("start_ns", kind="stable")


def _close(
    who: dict[str, Any], spans: pd.DataFrame, own_ns: Nanoseconds, range_ns: int, gil_ns: int
) -> list[dict[str, Any]]:
    part, first, own_part = np.unique(spans["part"].to_numpy(), return_index=True, return_inverse=True)
    part_ns = np.bincount(own_part, weights=own_ns, minlength=len(part)).astype(np.int64)  # exact to 2**53
    told = [at for at in np.argsort(first) if part_ns[at] > 0]  # in the order of their first spans
    columns = {name: spans[name].iloc[first].tolist() for name in _what}
    rows = [
        {**who, **{name: values[at] for name, values in columns.items()}, "ns": int(part_ns[at])}
        for at in told
    ]
    if gil_ns:
        gil = {"kind": "gil_wait", "name": "gil_wait", "channel": missing_name, "path": missing_name}
        rows.append({**who, **gil, "ns": gil_ns})
    rest = range_ns - sum(row["ns"] for row in rows)
    nothing = {"kind": "unaccounted", "name": "unaccounted", "channel": missing_name, "path": missing_name}
    return [*rows, {**who, **nothing, "ns": rest}]


def _closing_frame(rows: list[dict[str, Any]], range_ns: int) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=closing_columns)
    frame["seconds"] = frame["ns"] / 1e9
    frame["share"] = frame["ns"] / range_ns if range_ns else np.nan
    return frame
