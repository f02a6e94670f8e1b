"""Our pipeline run once: throughput with its interval, what stages reach alone, memory, exposed copies.

The target's random weights are made once a process, on its first GPU, and copied from there. Knows nothing of
the peers.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from unittest.mock import patch

import pandas as pd
import psutil
import torch

import dflash.held_parts
import dflash.target
from benchmarks.exposed_copies import exposed_copy_ns
from benchmarks.pipeline_settings import Setting, configure, documents_for
from benchmarks.target_case import build_body, std
from dflash.batch import Batch, HiddenStates
from dflash.contract.arrowlog import Row
from dflash.contract.events import Probe, silent
from dflash.contract.model_shapes import random_prefix
from dflash.devices import Device
from dflash.target_shapes import random_config
from dflash.target_weights import TargetWeights
from dflash.trainer import Trainer, prepare
from dflash.window import batches
from profiler.throughput import bootstrap_interval

warm_share = 0.3  # of the windows, at the start, that do not count
alone_steps = 6


@functools.cache
def _make_once(name: str, dtype: torch.dtype) -> TargetWeights:
    config = random_config(name.removeprefix(random_prefix))
    place = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    body: Any = build_body(config, place, dtype)
    embedding = body.get_input_embeddings().weight.detach()
    head = embedding if config.tie_word_embeddings else torch.empty_like(embedding).normal_(0.0, std)
    return TargetWeights(body, embedding, head, config)


def read_again(name: str, *, seed: int, dtype: torch.dtype, attention: str) -> TargetWeights:  # noqa: ARG001
    """Like `read_target` of a random shape; later calls give new modules around the same tensors."""
    weights = _make_once(name, dtype)
    shared = [*weights.body.parameters(), *weights.body.buffers(), weights.embedding, weights.head]
    return copy.deepcopy(weights, {id(tensor): tensor for tensor in shared})


@dataclass(slots=True)
class Progress:
    """Ends of windows, and the largest growth of this process's resident memory seen meanwhile."""

    ends_ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    process: psutil.Process = field(default_factory=psutil.Process)
    rss_before: int = field(init=False)
    rss_growth: int = 0

    def __post_init__(self) -> None:
        self.rss_before = self.process.memory_info().rss

    def window_done(self, tokens: int) -> None:
        """A window ends now."""
        self.ends_ns.append(time.monotonic_ns())
        self.tokens.append(tokens)

    def watch(self) -> None:
        """Look at the memory."""
        self.rss_growth = max(self.rss_growth, self.process.memory_info().rss - self.rss_before)

    def steady(self) -> pd.DataFrame:
        """Windows that count: tokens, seconds, and where they end."""
        ends = pd.Series(self.ends_ns, dtype="int64")
        frame = pd.DataFrame({"tokens": self.tokens, "end_ns": ends, "seconds": ends.diff() / 1e9})
        return frame.iloc[max(1, round(warm_share * len(frame))) :]


def throughput(windows: pd.DataFrame) -> dict[str, Any]:
    """Tokens per second with its 90 % interval."""
    low, high = bootstrap_interval(windows)
    return {
        "tokens_per_s": round(float(windows["tokens"].sum() / windows["seconds"].sum()), 1),
        "interval_90": [round(low, 1), round(high, 1)],
        "windows": len(windows),
    }


def prepare_run(setting: Setting, tokens: int, split: str, changes: Sequence[str], probe: Probe) -> Trainer:
    """A trainer over random documents, its weights from the cache."""
    config = configure(setting, split, changes)
    documents = documents_for(setting, tokens)
    with (
        patch.object(dflash.held_parts, "load_documents", lambda *_: documents),
        patch.object(dflash.target, "read_target", read_again),
    ):
        return prepare(config, probe=probe)


def run_ours(
    name: str, setting: Setting, batch_count: int, split: str, changes: Sequence[str]
) -> dict[str, Any]:
    """One row of the table."""
    events: list[Row] = []
    start_s, held = time.monotonic(), held_gb()
    trainer = prepare_run(setting, batch_count * setting.budget, split, changes, Probe(events, "trainer"))
    before = measure_alone(trainer, passes=2)
    progress = Progress()
    trainer.window_done = lambda window, _figures: progress.window_done(window.tokens)
    ready_s = time.monotonic() - start_s
    reset_peaks()
    trainer.run(progress.watch)
    peaks = peaks_gb(held)
    # Again, since clocks fall as GPUs grow warm.
    after = measure_alone(trainer, passes=1)
    alone = {role: (before[role] + after[role]) / 2 for role in before}
    windows = progress.steady()
    row = throughput(windows)
    bound = alone_bound(trainer, alone)
    return {
        "name": name,
        "setting": setting.name,
        "split": split,
        "changes": list(changes),
        **row,
        "alone": {key: round(value, 1) for key, value in alone.items()},
        "bound_tokens_per_s": round(bound, 1),
        "efficiency": round(row["tokens_per_s"] / bound, 4),
        "exposed_copy_share": round(exposed_share(events, windows), 5),
        "peak_gb": peaks,
        "rss_growth_gb": round(progress.rss_growth / 1e9, 2),
        "ready_s": round(ready_s, 1),
        "prepared": trainer.prepared.describe(),
    }


def reset_peaks() -> None:
    """Count the largest allocation of each GPU from now on."""
    for index in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(index)


def held_gb() -> list[float]:
    """What is allocated on each GPU now: the weights that runs copy, and what earlier runs left."""
    return [torch.cuda.memory_allocated(i) / 1e9 for i in range(torch.cuda.device_count())]


def peaks_gb(held: Sequence[float]) -> list[float]:
    """Largest allocation of each GPU since the last reset, over what was `held` before the run."""
    return [round(torch.cuda.max_memory_allocated(i) / 1e9 - before, 2) for i, before in enumerate(held)]


def measure_alone(trainer: Trainer, passes: int) -> dict[str, float]:
    """Tokens per second of one target and of one drafter with nothing else running, on the run's batches.

    The last of `passes` counts: the first ever compiles and allocates.
    """
    stream = batches(trainer.documents, trainer.config, layout=trainer.layout)
    work = list(islice(map(trainer.group.leader.plan, stream), alone_steps))
    ends = {
        id(batch)
        for batch, after in zip(work, [*work[1:], None], strict=True)
        if after is None or after.window is not batch.window
    }
    target, group = trainer.targets[0], trainer.group
    device, leader = trainer.devices.targets[0], trainer.group.leader

    def forward(batch: Batch) -> None:
        target.forward(batch)

    def step(batch: Batch) -> None:
        leader.train(HiddenStates(batch=batch, taps=taps[: batch.tokens]))
        if id(batch) in ends:
            group.complete(batch.window, [], silent)

    with device.active():
        forwards = rate(forward, work, device, passes)
    longest = max(work, key=lambda batch: batch.tokens)
    with device.active():
        taps = target.forward(longest).to(leader.device.torch_device)
    with leader.device.active():
        steps = rate(step, work, leader.device, passes)
    return {"target": forwards, "drafter": steps}


def rate(call: Callable[[Batch], None], work: Sequence[Batch], device: Device, passes: int) -> float:
    """Tokens per second over `work` in the last of some passes."""
    seconds = 0.0
    for _ in range(passes):
        device.record().wait()
        start_s = time.monotonic()
        for batch in work:
            call(batch)
        device.record().wait()
        seconds = time.monotonic() - start_s
    return sum(batch.tokens for batch in work) / seconds


def alone_bound(trainer: Trainer, alone: dict[str, float]) -> float:
    """Tokens per second that stages alone allow: the slower role, or both in turn on devices they share."""
    targets, drafters = trainer.devices.targets, trainer.devices.drafters
    places = {device.name for device in trainer.devices.all}
    if len(places) == len(targets) + len(drafters):
        return min(len(targets) * alone["target"], len(drafters) * alone["drafter"])
    return len(places) / (1 / alone["target"] + 1 / alone["drafter"])


def exposed_share(events: Sequence[Row], windows: pd.DataFrame) -> float:
    """Share of the counted time in which a stage stood still because bytes were on their way."""
    end_ns, seconds = int(windows["end_ns"].iloc[-1]), float(windows["seconds"].sum())
    return exposed_copy_ns(events, end_ns - round(seconds * 1e9), end_ns) / 1e9 / seconds
