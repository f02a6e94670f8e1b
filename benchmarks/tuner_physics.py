"""How fast each configuration of a simulated problem really is: stage times, then a recurrence over batches.

Made up for this suite, and of another kind than any model a tuner has: batch efficiency curves, launches that
wait for the GIL, links that saturate, sockets, a recurrence of queues with depths. Everything is computed for
many configurations at once; a row is a configuration. Knows nothing of memory, noise or tuners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.tuner_boxes import Box, Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
presets = ("host", "shared", "pinned", "peer")
windows_warm, windows_timed = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Configurations, one a row. All rows have one split, one schedule and one budget."""

    targets: int
    drafters: int
    colocated: bool
    lockstep: bool
    budget: int
    preset: NDArray[np.str_]
    depth: Ints
    prefetch: Ints
    recomputes: Flags
    chunk: Ints  # blocks of logits at once; 0: all
    trims: Flags
    switch_ms: Floats  # how long a thread may keep the GIL

    def __len__(self) -> int:
        return len(self.depth)

    def of(self, preset: str) -> Flags:
        """Which rows use that transport."""
        return np.asarray(self.preset == preset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What no model knows, as factors a row: 1 where there is nothing."""

    target: Floats
    drafter: Floats
    copy: Floats


@dataclass(slots=True, kw_only=True)
class Stages:
    """Seconds of each stage's own work on one batch, one a row."""

    tokens: float  # of a batch
    batches: int  # of a window
    item_bytes: Floats
    load_s: Floats
    target_s: Floats
    drafter_s: Floats
    step_s: float
    target_copy_s: Floats  # on the target's own thread
    drafter_copy_s: Floats  # on the drafter's own thread
    moved_s: Floats  # besides, where a batch was taken by another drafter than it was meant for
    down_s: Floats  # beside the stages, onto the host
    link_s: Floats  # beside the stages, into the drafter
    far_down: Floats  # a target: how much longer its copies take
    far_link: Floats  # (target, drafter)
    sharing_gain: float  # how much more a GPU does with both roles on it; 1: nobody shares one


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a run of each row shows without noise; shares are of the time of a stage's threads."""

    tokens_per_s: Floats
    target_get: Floats
    target_put: Floats
    drafter_get: Floats
    load_put: Floats


def lay_batches(job: Job, columns: Columns) -> tuple[float, int]:
    """Tokens of a batch and batches of a window: documents do not fill a budget to the brim."""
    filled = columns.budget * max(1 - 0.5 * job.mean_length / columns.budget, 0.55)
    batches = max(int(np.ceil(job.window_tokens / filled)), columns.drafters)
    return job.window_tokens / batches, batches


def time_stages(box: Box, job: Job, columns: Columns, quirks: Quirks, fullness: Floats) -> Stages:
    """`fullness`: of the fullest drafter GPU, 0..1; near 1 the allocator starts to return and ask again."""
    tokens, batches = lay_batches(job, columns)
    rows = np.ones(len(columns))
    target_gpu = _on_gpu(tokens, job.target_rate, job.target_half, job.sag) * rows * quirks.target
    drafter_gpu = _on_gpu(tokens, job.drafter_rate, job.drafter_half, job.sag) * quirks.drafter
    drafter_gpu = drafter_gpu * (1 + job.recompute * columns.recomputes)
    blocks = tokens / 16 / np.maximum(columns.chunk, 1)
    drafter_gpu += np.where(columns.chunk > 0, job.chunk_s * blocks / 8, 0)
    drafter_gpu *= 1 + job.thrash * np.clip((fullness - 0.9) / 0.1, 0, 1) ** 2
    if not columns.colocated:
        tax = job.peer_tax * (columns.of("peer") | columns.of("shared")) + job.pinned_tax * columns.of(
            "pinned"
        )
        target_gpu, drafter_gpu = target_gpu * (1 + tax), drafter_gpu * (1 + tax)
    target_s, drafter_s = _with_python(box, job, columns, target_gpu, drafter_gpu)
    stages = Stages(
        tokens=tokens,
        batches=batches,
        item_bytes=np.asarray(tokens * job.token_bytes * (1 - job.trim_share * columns.trims)),
        load_s=tokens / (box.loader_rate * box.loaders) * rows,
        target_s=target_s,
        drafter_s=drafter_s,
        step_s=job.step_s + job.merge_s * (columns.drafters - 1),
        **{name: np.zeros(len(columns)) for name in _copies},
        far_down=np.ones(columns.targets),
        far_link=np.ones((columns.targets, columns.drafters)),
        sharing_gain=job.sharing_gain if columns.colocated else 1.0,
    )
    stages.target_s = stages.target_s + columns.trims * job.trim_s * tokens * job.token_bytes / 1e9
    if not columns.colocated:
        _time_copies(box, columns, quirks, stages)
    return stages


_copies = ("target_copy_s", "drafter_copy_s", "moved_s", "down_s", "link_s")


def _on_gpu(tokens: float, rate: float, half: float, sag: float) -> float:
    crowded = 1 + sag * max(np.log2(tokens / 16384), 0)
    return float(tokens / rate * (1 + (half / tokens) ** 0.9) * crowded)


def _with_python(
    box: Box, job: Job, columns: Columns, target_gpu: Floats, drafter_gpu: Floats
) -> tuple[Floats, Floats]:
    """Launching goes beside computing, so the longer of the two counts, with a soft corner between."""
    threads = columns.targets + columns.drafters + box.loaders
    python = np.array([job.target_launches, job.drafter_launches * 3]) * box.launch_s
    target_s, drafter_s = target_gpu, drafter_gpu
    hold = 1 + 0.6 * np.log10(np.maximum(columns.switch_ms, 0.1) / 0.1)
    for _ in range(3):  # the load of the GIL depends on the pace, and the pace on the load
        pace = 1 / np.maximum(target_s / columns.targets, drafter_s / columns.drafters)
        load = pace * python.sum()
        longer = (1 + box.convoy * (threads - 1) * np.minimum(load, 1.5) * hold) * np.maximum(load, 1)
        target_s = _longer_of(target_gpu, python[0] * longer)
        drafter_s = _longer_of(drafter_gpu, python[1] * longer)
    return target_s, drafter_s


def _longer_of(one: Floats, other: Floats) -> Floats:
    result: Floats = (one**4 + other**4) ** 0.25
    return result


def _time_copies(box: Box, columns: Columns, quirks: Quirks, stages: Stages) -> None:
    pace = 1 / np.maximum(stages.target_s / columns.targets, stages.drafter_s / columns.drafters)
    wanted = pace * stages.item_bytes * 2 / box.host_rate  # of what the host can do
    crowd = 1 + 0.6 * np.minimum(wanted, 3) ** 2
    size, slow = stages.item_bytes, quirks.copy
    host, pinned = columns.of("host"), columns.of("pinned")
    peer = columns.of("peer") | columns.of("shared")
    # Page faults of all threads take one lock.
    faults = 1 + 0.35 * (columns.targets - 1)
    stages.target_copy_s = np.where(host, size / box.pageable_down_rate * faults * slow, 0)
    stages.drafter_copy_s = np.where(host, size / box.pageable_up_rate * crowd * slow, 0)
    stages.down_s = np.where(pinned, size / box.pinned_rate * crowd * slow, 0)
    stages.link_s = np.where(pinned, size / box.pinned_rate * crowd * slow, 0)
    stages.link_s += np.where(peer, size / box.peer_rate * slow + 43e-6, 0)
    stages.moved_s = np.where(columns.of("shared"), size / box.peer_rate * slow + 43e-6, 0)
    sockets = [box.socket(gpu) for gpu in range(columns.targets + columns.drafters)]
    far = np.array([1 if at == 0 else 1 / box.far_share for at in sockets])
    stages.far_down = far[: columns.targets]
    across = np.array([[a != b for b in sockets[columns.targets :]] for a in sockets[: columns.targets]])
    stages.far_link = np.where(across, box.peer_rate / box.cross_rate, 1.0)


def run_batches(columns: Columns, stages: Stages, work: Floats) -> Shown:
    """Plays some windows. `work`: (batches, 3) factors of loading, forward and backward of each batch."""
    play = _Play(columns, stages)
    for number in range((windows_warm + windows_timed) * stages.batches):
        play.pass_batch(number, work[number % len(work)])
    return play.shown()


class _Play:
    """Clocks of every thread, a row a configuration; each batch moves those that it meets."""

    def __init__(self, columns: Columns, stages: Stages) -> None:
        self.columns, self.stages = columns, stages
        count = len(columns)
        batches = (windows_warm + windows_timed) * stages.batches
        self.rows = np.arange(count)
        self.target_free = np.zeros((count, columns.targets))
        self.drafter_free = np.zeros((count, columns.drafters))
        self.link_free = np.zeros((count, columns.drafters))
        self.down_free = np.zeros((count, columns.targets))
        self.loaded = np.zeros(count)
        self.begun = np.zeros((count, batches))  # when a target took each batch
        self.taken = np.zeros((count, columns.drafters, batches + 1))  # when drafters took theirs
        self.counts = np.zeros((count, columns.drafters), dtype=np.int64)
        self.taken_of_all = np.zeros((count, batches))
        self.ends: list[Floats] = []
        self.waits = {
            name: np.zeros(count) for name in ("target_get", "target_put", "drafter_get", "load_put")
        }
        self.one_queue = columns.of("host") | columns.of("shared")
        self.far_pinned = columns.of("pinned")
        self.far_peer = columns.of("peer") | columns.of("shared")

    def pass_batch(self, number: int, work: Floats) -> None:
        stages, rows = self.stages, self.rows
        ready = self._load(number, work[0])
        target = self.target_free.argmin(axis=1)
        free = self.target_free[rows, target]
        begin = np.maximum(free, ready)
        self.waits["target_get"] += begin - free
        self.begun[:, number] = begin
        if self.columns.colocated:
            begin = np.maximum(begin, self.drafter_free[rows, target])
        done = begin + stages.target_s * work[1] / stages.sharing_gain + stages.target_copy_s
        drafter = target if self.columns.colocated else self.drafter_free.argmin(axis=1)
        put = np.maximum(done, self._room(number, drafter))
        self.waits["target_put"] += put - done
        self.target_free[rows, target] = put
        self._draft(number, drafter, self._copy(target, drafter, put), work[2])
        if self.columns.colocated:  # the GPU is the drafter's until it is done
            self.target_free[rows, target] = np.maximum(put, self.drafter_free[rows, target])
        if self.columns.lockstep and (number + 1) % self.columns.targets == 0:
            self.target_free[:] = self.drafter_free.max(axis=1)[:, None]
        if (number + 1) % stages.batches == 0:
            end = self.drafter_free.max(axis=1) + stages.step_s
            self.drafter_free[:] = end[:, None]
            self.ends.append(end)

    def _load(self, number: int, work: float) -> Floats:
        """When the batch is ready; loaders wait while the queue to the targets is full."""
        earlier = number - self.columns.prefetch
        room = np.where(earlier >= 0, self.begun[self.rows, np.maximum(earlier, 0)], 0)
        self.waits["load_put"] += np.maximum(room - self.loaded, 0)
        self.loaded = np.maximum(self.loaded, room) + self.stages.load_s * work
        return self.loaded

    def _room(self, number: int, drafter: Ints) -> Floats:
        """When there is a place in the queue."""
        rows, depth = self.rows, self.columns.depth
        mine = self.counts[rows, drafter] - depth
        own = np.where(mine >= 0, self.taken[rows, drafter, np.maximum(mine, 0)], 0)
        earlier = number - depth
        shared = np.where(earlier >= 0, self.taken_of_all[rows, np.maximum(earlier, 0)], 0)
        return np.where(self.one_queue, shared, own)

    def _copy(self, target: Ints, drafter: Ints, put: Floats) -> Floats:
        """When the batch has arrived; each way carries one batch at a time."""
        stages, rows = self.stages, self.rows
        down = stages.down_s * np.where(self.far_pinned, stages.far_down[target], 1)
        self.down_free[rows, target] = np.maximum(put, self.down_free[rows, target]) + down
        at_host = np.where(down > 0, self.down_free[rows, target], put)
        link = stages.link_s * np.where(self.far_peer, stages.far_link[target, drafter], 1)
        self.link_free[rows, drafter] = np.maximum(at_host, self.link_free[rows, drafter]) + link
        return np.where(link > 0, self.link_free[rows, drafter], at_host)

    def _draft(self, number: int, drafter: Ints, arrived: Floats, work: float) -> None:
        stages, rows = self.stages, self.rows
        free = self.drafter_free[rows, drafter]
        begin = np.maximum(free, arrived)
        self.waits["drafter_get"] += begin - free
        self.taken[rows, drafter, self.counts[rows, drafter]] = begin
        self.counts[rows, drafter] += 1
        self.taken_of_all[:, number] = begin
        moved = np.where(drafter == number % self.columns.drafters, 0, stages.moved_s)
        own = stages.drafter_copy_s + moved + stages.drafter_s * work / stages.sharing_gain
        self.drafter_free[rows, drafter] = begin + own

    def shown(self) -> Shown:
        end = self.ends[-1]
        timed_s = end - self.ends[windows_warm - 1]
        shares = {name: wait / end for name, wait in self.waits.items()}
        return Shown(
            tokens_per_s=windows_timed * self.stages.batches * self.stages.tokens / timed_s,
            target_get=shares["target_get"] / self.columns.targets,
            target_put=shares["target_put"] / self.columns.targets,
            drafter_get=shares["drafter_get"] / self.columns.drafters,
            load_put=shares["load_put"],
        )
