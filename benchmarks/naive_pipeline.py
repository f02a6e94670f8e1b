"""A first pipeline as people write it: a transformers model, SpecForge's drafter, two threads and a queue.

On one GPU both roles share it and nothing is copied; on two the states go by `.to(device)` or by `.cpu()`.
Knows nothing of our pipeline.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from benchmarks.drafter_case import Case
from benchmarks.peer_specforge import SpecForgeStep, on_device
from benchmarks.pipeline_run import Progress, held_gb, peaks_gb, reset_peaks, throughput
from dflash.target_shapes import random_config

queue_depth = 2


class PlainTarget:
    """A whole transformers body with hooks on the tapped layers, its states joined by `cat`."""

    def __init__(self, case: Case, place: torch.device) -> None:
        from transformers import AutoModel

        config = random_config(case.target.name.removeprefix("random:"))
        build: Any = AutoModel.from_config
        self._body = on_device(lambda: build(config, attn_implementation="sdpa"), place, case.dtype)
        self._body.eval().requires_grad_(False)
        self._taps = case.spec.taps
        self._caught: dict[int, Tensor] = {}
        for tap in self._taps:
            self._body.layers[tap].register_forward_hook(self._hook(tap))

    def _hook(self, tap: int) -> Callable[..., None]:
        def keep(_layer: Any, _inputs: Any, output: Any) -> None:
            self._caught[tap] = output if isinstance(output, Tensor) else output[0]

        return keep

    def forward(self, ids: Tensor) -> Tensor:
        """The tapped states of `ids` [rows, width]: [rows, width, F*H]."""
        with torch.no_grad():
            self._body(input_ids=ids, use_cache=False)
            return torch.cat([self._caught.pop(tap) for tap in self._taps], -1)


class NaivePipeline:
    """Built once, run in several ways."""

    def __init__(self, case: Case, target_place: torch.device, *, liger: bool) -> None:
        self._case, self._places = case, (target_place, case.device.torch_device)
        self._held = held_gb()
        self._target = PlainTarget(case, target_place)
        self._drafter = SpecForgeStep(case, liger=liger)
        rows = (case.shape.documents, case.shape.length)
        self._ids = case.batch.input_ids.view(rows).to(target_place)
        for _ in range(3):
            self._step(self._ids, self._target.forward(self._ids))
        for place in self._places:
            _settle(place)

    def _step(self, ids: Tensor, taps: Tensor) -> None:
        place = self._places[1]
        self._drafter.feed(ids.to(place), taps.to(place))
        self._drafter.train()
        self._drafter.complete()

    def run(self, way: str, batch_count: int) -> dict[str, Any]:
        """One row of the table."""
        channel: queue.Queue[tuple[Tensor, Tensor] | None] = queue.Queue(queue_depth)
        progress = Progress()
        reset_peaks()
        place = {"within": self._places[0], "peer": self._places[1], "host": torch.device("cpu")}[way]

        def produce() -> None:
            _use(self._places[0])
            try:
                for _ in range(batch_count):
                    taps = self._target.forward(self._ids)
                    channel.put((self._ids.to(place), taps.to(place)))
            finally:
                channel.put(None)

        def consume() -> None:
            _use(self._places[1])
            try:
                while (item := channel.get()) is not None:
                    self._step(*item)
                    _settle(self._places[1])
                    progress.window_done(self._case.batch.tokens)
            except BaseException:
                while channel.get() is not None:  # the target must not wait for room for ever
                    pass
                raise

        with ThreadPoolExecutor(2) as pool:
            work = [pool.submit(produce), pool.submit(consume)]
            while not work[1].done():
                progress.watch()
                wait(work[1:], timeout=0.1)
        for part in work:
            part.result()
        return {
            "name": f"naive, {way}",
            "changes": [],
            **throughput(progress.steady()),
            "peak_gb": peaks_gb(self._held),
            "rss_growth_gb": round(progress.rss_growth / 1e9, 2),
        }


def _settle(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def _use(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.set_device(place)
