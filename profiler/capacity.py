"""What each stage allows: how its time divides, what it could do alone, what a removed cost would give back.

All arithmetic is on measured time and tokens; nothing is assumed of hardware. Knows nothing of causes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from profiler.copy_times import host_paths
from profiler.device_places import DevicePlaces, places_of
from profiler.throughput import Throughput
from profiler.timeline import Timeline
from profiler.waits import beside_stages

seldom = 0.01  # of a stage's time: a wait that decides nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """How the devices of one stage spent the range on average: shares of time, 0 to 1, that add up to 1.

    `tokens_per_s` is what all threads of the stage worked off together; None when its spans carry no tokens.
    """

    stage: str
    threads: int
    range_s: float  # of one thread
    tokens_per_s: float | None
    batches: float
    busy: float  # work, on the GPU clock where there is one, and waiting for the own device
    host_copies: float  # own copies through host memory
    peer_copies: float  # own copies between devices
    copy_wait: float  # waiting for copies made elsewhere
    waits: Mapping[str, float]  # by name: "get q_hs", "put q_hs", "window_turn", "window_wait"
    unaccounted: float
    gil_wait: float = 0.0  # taken out of `busy`; 0 also where it was not sampled
    gpu_wait: float = 0.0  # part of `busy`: waiting for the own device, which by the GPU clock idled
    gather: float = 0.0  # part of `busy`: packing hidden states by the host, while the device idled
    lock_wait: float = 0.0  # waiting for a lock of the compiler or its autotuner
    held: float = 0.0  # part of `unaccounted`: while the other stage copies on the device that both share

    @property
    def copies(self) -> float:
        return self.host_copies + self.peer_copies + self.copy_wait

    @property
    def taken_up(self) -> float:
        """Share of time of which it is known that work or copies took it."""
        return self.busy + self.copies

    @property
    def waiting(self) -> float:
        """Share of time spent waiting for other stages."""
        return sum(self.waits.values())

    @property
    def occupied(self) -> float:
        """Share of time in which more input or more room would not have helped.

        A device that is busy for the role it is shared with is not free either.
        """
        return max(1.0 - self.waiting + self.wait("device_wait"), 0.0)

    @property
    def turn_wait(self) -> float:
        """Share of time spent waiting for a turn, by the schedule or on a shared device."""
        return self.wait("barrier") + self.wait("device_wait")

    def wait(self, name: str) -> float:
        """Share of time in one wait; 0 when it never waited so."""
        return self.waits.get(name, 0.0)

    def seconds_per_token(self, share: float) -> float | None:
        """What a share of the stage's time costs per token, all threads working in parallel."""
        return share / self.tokens_per_s if self.tokens_per_s else None

    @property
    def alone_tokens_per_s(self) -> float | None:
        """Tokens per second if the stage did nothing but its work."""
        return self.tokens_per_s / self.busy if self.tokens_per_s and self.busy > 0 else None


@dataclass(frozen=True, slots=True)
class Loads:
    """The stages of a run; prefetch is None when it left no spans.

    `device_work`: the share of time for which devices that both roles have are at work, by whichever role;
    known of logical ones, which do one thing at a time, and 0 elsewhere.
    """

    prefetch: StageLoad | None
    target: StageLoad
    drafter: StageLoad
    device_work: float = 0.0

    def lost_share(
        self,
        *,
        target: float = 0.0,
        drafter: float = 0.0,
        prefetch: float = 0.0,
        busiest_drafter: float | None = None,
    ) -> float | None:
        """Share of the throughput lost to costs that take these shares of the stages' time.

        The slowest stage sets the pace; with the costs removed, another may. The gain is set against all
        time of the slowest stage, its waits included: a removed cost gives back the time that it took, and
        no wait that has another reason; nor does it make more of a shared device than all of its time. None
        when a pace is unknown. `busiest_drafter`: how much of its time that drafter is occupied which holds
        the others up, instead of their mean.
        """
        held = self.drafter.occupied if busiest_drafter is None else busiest_drafter
        costs = [(self.target, self.target.occupied, target), (self.drafter, held, drafter)]
        if self.prefetch is not None and self.prefetch_pace:
            costs.append((self.prefetch, self.prefetch.occupied, prefetch))
        paces = [
            (now, without, load)
            for load, occupied, removed in costs
            if (now := load.seconds_per_token(occupied)) is not None
            and (without := load.seconds_per_token(max(occupied - removed, 0.0))) is not None
        ]
        if len(paces) < len(costs):
            return None
        now, _, slowest = max(paces, key=lambda pace: pace[0])
        whole = slowest.seconds_per_token(1.0)
        if not whole:
            return None
        without = max([self.device_work * whole, *(without for _, without, _ in paces)])
        return max(now - without, 0.0) / whole

    @property
    def prefetch_pace(self) -> tuple[float, ...]:
        """Seconds a token of prefetch; empty when it packed nothing in the range, so that it was no limit."""
        pace = None if self.prefetch is None else self.prefetch.seconds_per_token(self.prefetch.occupied)
        return () if pace is None else (pace,)

    @property
    def still_filling(self) -> bool:
        """Whether targets deliver clearly more than drafters use, so that the queue between them grows."""
        made, used = self.target.tokens_per_s, self.drafter.tokens_per_s
        return made is not None and used is not None and made > 1.1 * used

    @property
    def drafters_limit(self) -> bool:
        """Whether the drafters hold the targets up, or soon will, rather than the other way round.

        Where hardly anybody waits for the other, it is not those whose time is known to be less taken up.
        """
        room, input_ = self.target.wait("put q_hs"), self.drafter.wait("get q_hs")
        if self.still_filling:
            return True
        if room < seldom and self.drafter.taken_up < self.target.taken_up:
            return False
        return room > input_


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacities:
    """Tokens per second that each stage alone allows, and how near the pipeline comes to the least."""

    prefetch_alone: float | None
    targets_alone: float | None
    drafters_alone: float | None
    allowed_tokens_per_s: float | None  # by targets and drafters together
    limit: str | None  # the stage that allows least: prefetch, target, drafter, or shared device
    pipeline_efficiency: float | None  # tokens_per_s over that
    reason: str | None = None  # why something of it is unknown


@lru_cache(maxsize=8)  # every rule asks for the same; a timeline does not change
def measure_loads(timeline: Timeline) -> Loads | None:
    """How every stage spent the timeline's range. None when targets or drafters left no spans in it."""
    target, drafter = _load(timeline, "target"), _load(timeline, "drafter")
    if target is None or drafter is None:
        return None
    return Loads(_load(timeline, "prefetch"), target, drafter, _device_work(timeline, target, drafter))


def _device_work(timeline: Timeline, *roles: StageLoad) -> float:
    places = places_of(timeline)
    if not (timeline.emulated and places.all_shared):
        return 0.0
    return min(sum(load.busy * load.threads for load in roles) / places.both, 1.0)


def _load(timeline: Timeline, stage: str) -> StageLoad | None:
    mine = timeline.devices[timeline.devices["stage"] == stage]
    lo_ns, hi_ns = timeline.range_ns
    threads = len(mine[["index", "device", "tid"]].drop_duplicates())
    if threads == 0 or hi_ns <= lo_ns:
        return None
    total_ns = float(mine["ns"].sum())  # threads × range, since closing sums add up
    range_s = (hi_ns - lo_ns) / 1e9

    def share(mask: pd.Series) -> float:
        return float(mine.loc[mask, "ns"].sum()) / total_ns

    is_copy = mine["kind"] == "copy"
    is_wait = (mine["kind"] == "wait") & ~mine["name"].isin(beside_stages)
    on_host = mine["path"].isin(host_paths)
    waits: dict[str, float] = {}
    for name, channel, ns in mine.loc[is_wait, ["name", "channel", "ns"]].itertuples(index=False):
        key = f"{name} {channel}" if name in ("get", "put") else name
        waits[key] = waits.get(key, 0.0) + ns / total_ns
    unaccounted = share(mine["kind"] == "unaccounted")
    service = timeline.service[timeline.service["stage"] == stage]
    tokens = float(service["tokens"].sum())
    return StageLoad(
        stage=stage,
        threads=threads,
        range_s=range_s,
        tokens_per_s=tokens / range_s if tokens > 0 else None,
        batches=float(service["batches"].sum()),
        busy=share(mine["kind"].isin(["work", "gpu_wait"])),
        host_copies=share(is_copy & on_host),
        peer_copies=share(is_copy & ~on_host),
        copy_wait=share(mine["name"] == "copy_wait"),
        waits=waits,
        unaccounted=unaccounted,
        gil_wait=share(mine["kind"] == "gil_wait"),
        gpu_wait=share(mine["kind"] == "gpu_wait"),
        gather=share(mine["name"] == "gather"),
        lock_wait=share(mine["name"] == "lock_wait"),
        held=min(timeline.held.get(stage, 0.0), unaccounted),  # by the GPU's clock it may be at work still
    )


def measure_capacities(
    loads: Loads | None, throughput: Throughput, places: DevicePlaces | None = None
) -> Capacities:
    """What the stages alone allow on the same batches: work only, no waits, no copies on their own path.

    Where targets and drafters share devices (`places`) their times add there.
    """
    stages = (None, None, None) if loads is None else (loads.prefetch, loads.target, loads.drafter)
    prefetch, target, drafter = (None if load is None else load.alone_tokens_per_s for load in stages)
    allowed: float | None = None
    limit: str | None = None
    if loads is not None and target is not None and drafter is not None:
        allowed, limit = min(target, drafter), "target" if target <= drafter else "drafter"
        if places is not None and places.shared:
            shared = places.allowed(target / loads.target.threads, drafter / loads.drafter.threads)
            allowed, limit = shared, "shared device"
        if prefetch is not None and prefetch < allowed:
            limit = "prefetch"
    pace = throughput.tokens_per_s
    unknown = [
        name
        for name, value in (("prefetch", prefetch), ("targets", target), ("drafters", drafter))
        if value is None
    ]
    reasons = [f"no work with token counts was recorded for: {', '.join(unknown)}"] if unknown else []
    reasons += [throughput.reason] if throughput.reason else []
    return Capacities(
        prefetch_alone=prefetch,
        targets_alone=target,
        drafters_alone=drafter,
        allowed_tokens_per_s=allowed,
        limit=limit,
        pipeline_efficiency=pace / allowed if pace is not None and allowed else None,
        reason="; ".join(reasons) or None,
    )
