"""What each configuration of a simulated problem needs of every GPU and of the host, by role.

Knows nothing of speed. All configurations of one call have one split, schedule and budget; a row is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.tuner_boxes import GB, Box, Job
from benchmarks.tuner_physics import Columns, Floats

jitter_share = 0.015  # of what a run needs: at most so much more, by how its blocks happen to fall


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes at the peak, a row a configuration, without the jitter of a run."""

    target: Floats  # of a target's GPU; with both roles on one GPU all of it
    drafter: Floats
    host: Floats

    def shares(self, box: Box) -> Floats:
        """Of the limits, the most that any place needs: above 1 it cannot run."""
        gpu = np.maximum(self.target, self.drafter) / box.gpu_bytes
        return np.maximum(gpu, self.host / box.host_bytes)


def find_need(job: Job, columns: Columns, activations: float) -> Need:
    """`activations`: factor of everything that grows with a batch but the hidden states."""
    rows = np.ones(len(columns))
    item = columns.budget * job.token_bytes * (1 - job.trim_share * columns.trims)
    host, shared, pinned, peer = (columns.of(name) for name in ("host", "shared", "pinned", "peer"))
    lost = 1 + job.fragments
    target = job.target_bytes + columns.budget * job.target_token_bytes * activations * lost * rows
    queued_at_home = np.ceil(columns.depth / columns.drafters)
    target = target + item * (1 + pinned)
    kept = np.where(columns.recomputes, 0.45, 1.0) * job.drafter_token_bytes
    blocks = columns.budget / 16
    logits = np.where(columns.chunk > 0, np.minimum(columns.chunk / blocks, 1.0), 1.0) * job.logit_token_bytes
    drafter = job.drafter_bytes + columns.budget * (kept + logits) * activations * lost
    held = 1.0 * host + 2.0 * pinned + (queued_at_home + 2) * shared + (columns.depth + 1) * peer
    drafter = drafter + item * held
    if columns.colocated:  # what is handed over is not copied
        target = drafter = target + drafter - item
    staged = pinned * (columns.depth * columns.drafters + columns.targets)
    staged = staged + 1.3 * host * (columns.depth + columns.targets)
    base = 12 * GB + 1.5 * GB * (columns.targets + columns.drafters)
    return Need(target=target, drafter=drafter, host=np.asarray(base + item * staged))


def settle_activations(
    box: Box, job: Job, groups: Mapping[object, Columns], wanted_share: float
) -> tuple[float, float]:
    """The factor at which about `wanted_share` of all configurations need too much, and the true share."""

    def out_share(activations: float) -> float:
        shares = [find_need(job, columns, activations).shares(box) for columns in groups.values()]
        return float((np.concatenate(shares) > 1).mean())

    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if out_share(middle) < wanted_share else (low, middle)
    return low, out_share(low)
