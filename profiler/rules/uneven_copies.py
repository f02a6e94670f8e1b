"""Links that should be alike and are not: copies of one direction and path, device against device.

Siblings of one run are each other's yardstick. Rates come from copy spans, on the stages' own threads or
beside them, else from rates that the trainer told for each GPU. Knows nothing of why one is slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import pandas as pd

from profiler.capacity import Loads
from profiler.copy_times import host_paths
from profiler.timeline import Timeline
from profiler.waits import beside_stages

uneven_factor: Final = 1.5  # fastest over slowest: equal links of one run differ by a few per cent
least_bytes: Final = 10_000  # of a copy: smaller ones tell of latency, not of the link
Way = Literal["down", "up", "peer"]  # to host memory, from it, between devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction between two ends. Seconds over all its copies; None where only its rate was told."""

    name: str  # the device, or both of a peer copy: "cuda:0 to cuda:1"
    devices: tuple[str, ...]
    gb_per_s: float
    copies: float = 0.0
    seconds: float | None = None
    target_wait_s: float = 0.0  # that targets waited for it; copies on their own threads are such waits
    drafter_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGroup:
    """Links that should be alike, two or more."""

    way: Way
    path: str
    own: bool  # the copies sit on a stage's own thread
    links: tuple[Link, ...]

    @property
    def fastest(self) -> Link:
        return max(self.links, key=lambda link: link.gb_per_s)

    @property
    def factor(self) -> float:
        """The fastest over the slowest."""
        return self.fastest.gb_per_s / min(link.gb_per_s for link in self.links)

    @property
    def is_uneven(self) -> bool:
        return self.factor >= uneven_factor

    @property
    def slow(self) -> tuple[Link, ...]:
        """Links well below the fastest, the slowest first."""
        best = self.fastest.gb_per_s
        slow = [link for link in self.links if link.gb_per_s * uneven_factor <= best]
        return tuple(sorted(slow, key=lambda link: link.gb_per_s))

    @property
    def told_only(self) -> bool:
        """Whether only rates are known, and not whose time they cost."""
        return all(link.seconds is None for link in self.links)

    def excess_s(self, stage: str, *, of: str | None = None, threads: int = 1) -> float:
        """Seconds of a stage's waits that there would not be at the fastest link's rate.

        `of`: only those of the thread on that device. A link that leads elsewhere is waited for by all
        `threads` of the stage alike.
        """
        best, total = self.fastest.gb_per_s, 0.0
        for link in self.slow:
            waited_s = link.target_wait_s if stage == "target" else link.drafter_wait_s
            added_s = min(waited_s, (link.seconds or 0.0) * (1.0 - link.gb_per_s / best))
            if of is not None and self.way == "down":
                added_s /= threads
            elif of is not None and link.devices[-1] != of:
                added_s = 0.0
            total += added_s
        return total

    @property
    def extra_s(self) -> float | None:
        """What a copy over the slow links takes more than it would at the fastest one's rate."""
        seconds = sum(
            (link.seconds or 0.0) * (1.0 - link.gb_per_s / self.fastest.gb_per_s) for link in self.slow
        )
        copies = sum(link.copies for link in self.slow)
        return seconds / copies if copies and seconds else None


@lru_cache(maxsize=8)  # several rules ask for the same; a timeline does not change
def compare(timeline: Timeline) -> tuple[LinkGroup, ...]:
    """All groups of a run, uneven ones and others.

    Rates that were told of each GPU count where spans show no difference: in a run made of another trainer's
    metrics all threads of a stage have the same spans.
    """
    groups = tuple(_span_groups(timeline))
    if any(group.way == "down" and group.is_uneven for group in groups):
        return groups
    means = _told_rates(timeline)
    links = tuple(Link(name=str(k), devices=(str(k),), gb_per_s=float(v)) for k, v in means.items())
    if len(links) < 2:
        return groups
    others = (group for group in groups if group.way != "down")
    return (*others, LinkGroup(way="down", path="host", own=True, links=links))


def _told_rates(timeline: Timeline) -> pd.Series:
    """GB/s by GPU; none where they were told for less than half of the range."""
    told = timeline.series("d2h_gb_per_s")
    told = told[(told["key"] != "*") & (told["value"] > 0)]
    lo_s, hi_s = timeline.range_s
    if len(told) and told["t_s"].max() - told["t_s"].min() < 0.5 * (hi_s - lo_s):
        told = told[:0]
    return told.groupby("key", observed=True)["value"].median()


def _span_groups(timeline: Timeline) -> Iterator[LinkGroup]:
    copies = timeline.copies
    known = copies[(copies["gb_per_s"] > 0) & (copies["bytes"] >= least_bytes * copies["copies"])]
    found: dict[tuple[Way, str, str], list[Link]] = {}
    for row in known.to_dict("records"):
        way = _way(row["path"], row["src"], row["dst"])
        if way is None:
            continue
        ends = {"down": (row["src"],), "up": (row["dst"],), "peer": (row["src"], row["dst"])}[way]
        own = row["stage"] != "link"
        waits = {stage: row[f"{stage}_wait_s"] for stage in ("target", "drafter")}
        if own:
            waits[row["stage"]] = row["seconds"]
        link = Link(
            name=" to ".join(map(str, ends)),
            devices=tuple(map(str, ends)),
            gb_per_s=float(row["gb_per_s"]),
            copies=float(row["copies"]),
            seconds=float(row["seconds"]),
            target_wait_s=float(waits["target"]),
            drafter_wait_s=float(waits["drafter"]),
        )
        found.setdefault((way, str(row["path"]), str(row["stage"])), []).append(link)
    for (way, path, stage), links in found.items():
        if len(links) >= 2:
            yield LinkGroup(way=way, path=path, own=stage != "link", links=tuple(links))


def _way(path: object, src: object, dst: object) -> Way | None:
    if path == "peer":
        return "peer"
    if path in host_paths and dst in ("cpu", "host"):
        return "down"
    return "up" if path in host_paths and src in ("cpu", "host") else None


def host_groups(timeline: Timeline) -> tuple[LinkGroup, ...]:
    """Groups of links between devices and host memory."""
    return tuple(group for group in compare(timeline) if group.way != "peer")


def uneven(groups: Iterable[LinkGroup]) -> tuple[LinkGroup, ...]:
    """Those with a slow link."""
    return tuple(group for group in groups if group.is_uneven)


def excess_share(groups: Iterable[LinkGroup], loads: Loads, stage: str, *, own_only: bool = False) -> float:
    """Of a stage's time: what slow links add to what equal ones would take."""
    load = loads.target if stage == "target" else loads.drafter
    seconds = sum(group.excess_s(stage) for group in groups if group.own or not own_only)
    return seconds / (load.threads * load.range_s) if load.range_s else 0.0


def lost_to(groups: Iterable[LinkGroup], timeline: Timeline, loads: Loads) -> float | None:
    """Share of the throughput that slow links cost, where it is known whose time they take.

    A target that is held up leaves batches to its siblings. A drafter has its batches already, and at the end
    of a window the others wait for it: so drafters cost what the busiest of them is kept by.
    """
    chosen = tuple(groups)
    now, without = _busiest_drafter(chosen, timeline, loads)
    return loads.lost_share(
        target=excess_share(chosen, loads, "target"), drafter=now - without, busiest_drafter=now
    )


def _busiest_drafter(groups: tuple[LinkGroup, ...], timeline: Timeline, loads: Loads) -> tuple[float, float]:
    """How much of its time the busiest drafter is occupied, now and without what slow links add."""
    mine = timeline.devices[timeline.devices["stage"] == "drafter"]
    waits = mine[(mine["kind"] == "wait") & ~mine["name"].isin((*beside_stages, "device_wait"))]
    whole_s = loads.drafter.range_s
    shares = []
    for index, device in mine[["index", "device"]].drop_duplicates().itertuples(index=False):
        waited = float(waits.loc[waits["index"] == index, "seconds"].sum()) / whole_s
        threads = loads.drafter.threads
        added_s = [group.excess_s("drafter", of=str(device), threads=threads) for group in groups]
        shares.append((1.0 - waited, 1.0 - waited - sum(added_s) / whole_s))
    return max(now for now, _ in shares), max(max(without, 0.0) for _, without in shares)


def on_another_node(timeline: Timeline, group: LinkGroup) -> bool | None:
    """Whether slow links to host memory can come of buffers on another memory node; None: nobody says.

    Not where the host has one node, nor where a slow GPU hangs on the same node as the fastest. Logical
    devices have no nodes: their links are as they were declared to be, near and far.
    """
    if group.way == "peer":
        return False
    if timeline.emulated:
        return True
    if timeline.memory_nodes == 1:
        return False
    nodes = timeline.gpu_nodes
    near = nodes.get(group.fastest.devices[0])
    if near is not None and all(nodes.get(link.devices[0]) == near for link in group.slow):
        return False
    return None if timeline.memory_nodes is None else True
