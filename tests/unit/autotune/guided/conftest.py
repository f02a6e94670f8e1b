"""A made-up machine whose truth is not the model's: soft maxima, bent costs, roughness, an edge of memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.effort import Effort
from autotune.free_space import FreeSpace
from autotune.guided.searcher import GuidedSearcher
from autotune.runner import Request
from autotune.study import Study
from autotune.telemetry import (
    Beside,
    CopyFigures,
    Failed,
    FailureKind,
    MemoryFigures,
    Outcome,
    StageFigures,
    Telemetry,
    Values,
)

window = 131_072.0
limit = 80e9
choices: dict[str, tuple[Any, ...]] = {
    "pipeline.split": ("1-3", "2-2", "3-1", "2-1", "1-1", "colocated-4"),
    "pipeline.token_budget": (4096, 8192, 16384, 32768),
    "transport.preset": ("host", "shared", "pinned", "peer"),
    "transport.depth": (1, 2, 4),
    "pipeline.prefetch_depth": (2, 8),
}
baseline = {
    "pipeline.split": "2-2",
    "pipeline.token_budget": 4096,
    "transport.preset": "host",
    "transport.depth": 2,
    "pipeline.prefetch_depth": 8,
}


class Box:
    """One machine, by its seed. `rough`: how much single configurations differ for no reason."""

    def __init__(self, seed: int, *, rough: float = 0.0, noise: float = 0.03, telemetry: bool = True) -> None:
        draw = np.random.default_rng(seed)
        self.seed, self.rough, self.noise, self.telemetry = seed, rough, noise, telemetry
        self.forward_s = float(draw.uniform(2e-5, 6e-5))
        self.backward_s = self.forward_s * float(draw.uniform(0.3, 1.6))
        self.fixed_tokens = float(draw.uniform(1500, 6000))
        self.bytes_per_s = {
            "host": 3e9,
            "shared": 40e9,
            "pinned": 20e9,
            "peer": float(draw.uniform(20e9, 90e9)),
        }
        self.sharpness = float(draw.uniform(8, 14))
        self.activation = float(draw.uniform(0.5, 1.3)) * limit / 32768
        self.space = FreeSpace(choices, baseline, allowed=self._allowed)
        self.asked: list[Values] = []

    def _allowed(self, values: Values) -> bool:
        together = values["pipeline.split"].startswith("colocated")
        return not together or values["transport.preset"] == "peer"

    def _stages(self, values: Values) -> dict[str, float]:
        tokens = float(values["pipeline.token_budget"])
        bend = tokens + self.fixed_tokens * (1 - math.exp(-tokens / 5000))
        return {
            "tokens": tokens,
            "target": self.forward_s * bend,
            "drafter": self.backward_s * bend,
            "copy": tokens * 51_200 / self.bytes_per_s[values["transport.preset"]],
            "step": 0.05 * window * self.backward_s,
        }

    def rate(self, values: Values) -> float:
        """The truth, tokens/s."""
        first, _, second = values["pipeline.split"].partition("-")
        at, own = self._stages(values), 0.0
        batches = window / at["tokens"]
        if values["transport.preset"] == "host":
            own = at["copy"]
        if first == "colocated":
            work = batches / int(second) * (at["target"] + at["drafter"]) + at["step"]
            times = [0.95 * work]
        else:
            t, d = int(first), int(second)
            times = [
                batches / t * (at["target"] + own),
                batches / d * (at["drafter"] + own) + at["step"],
                batches * at["copy"] / min(t, d) * (values["transport.preset"] != "host"),
            ]
        seconds = sum(time**self.sharpness for time in times) ** (1 / self.sharpness)
        seconds *= 1 + 0.04 / values["transport.depth"]
        return window / seconds * (1 + self.rough * (2 * self._hash(values) - 1))

    def _hash(self, values: Values) -> float:
        text = repr((self.seed, tuple(values[path] for path in self.space.paths))).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big") / 2**48

    def peaks(self, values: Values) -> dict[str, float]:
        """What each GPU would hold, bytes."""
        first, _, second = values["pipeline.split"].partition("-")
        tokens, depth = values["pipeline.token_budget"], values["transport.depth"]
        target = 0.3 * limit + 0.4 * self.activation * tokens
        drafter = 0.2 * limit + self.activation * tokens + 51_200 * tokens * depth
        if first == "colocated":
            return {f"cuda:{i}": target + drafter for i in range(int(second))}
        return {f"cuda:{i}": target for i in range(int(first))} | {
            f"cuda:{int(first) + i}": drafter for i in range(int(second))
        }

    def fits(self, values: Values) -> bool:
        return max(self.peaks(values).values()) <= limit

    @property
    def best(self) -> float:
        """The highest rate of what fits."""
        return max(self.rate(values) for values in self.space.configurations if self.fits(values))

    def run(self, request: Request) -> Outcome:
        values = request.values
        self.asked.append(dict(values))
        if not self.fits(values):
            return Failed(FailureKind.out_of_memory, "CUDA out of memory")
        times = sum(self.space.point(values) == self.space.point(other) for other in self.asked)
        draw = np.random.default_rng([self.seed, int(self._hash(values) * 2**40), times])
        rate = self.rate(values) * math.exp(self.noise * draw.standard_normal())
        extra: dict[str, Any] = {}
        if self.telemetry:
            extra = self._figures(values, draw)
        if request.beside is not None:
            ratio = math.log(self.rate(values) / self.rate(request.beside)) + 0.01 * draw.standard_normal()
            extra["beside"] = Beside(values=request.beside, log_ratio=ratio, deviation=0.01)
        return Telemetry(tokens_per_s=rate, low=rate * 0.98, high=rate * 1.02, **extra)

    def _figures(self, values: Values, draw: np.random.Generator) -> dict[str, Any]:
        at = self._stages(values)
        jitter = lambda: float(1 + 0.03 * draw.standard_normal())  # noqa: E731
        hops = {"host": ("pageable down", "pageable up"), "pinned": ("pinned down", "pinned up")}
        names = hops.get(values["transport.preset"], ("peer",))
        return {
            "stages": {
                stage: StageFigures(busy_s=at[stage] * jitter(), tokens=at["tokens"], batches=30)
                for stage in ("target", "drafter")
            },
            "copies": {
                hop: CopyFigures(bytes=at["tokens"] * 51_200, seconds=at["copy"] * jitter()) for hop in names
            },
            "step_s": at["step"] * jitter(),
            "window_tokens": window,
            "token_bytes": 51_200.0,
            "memory": {
                place: MemoryFigures(peak_bytes=peak, limit_bytes=limit)
                for place, peak in self.peaks(values).items()
            },
        }


@pytest.fixture
def box() -> Callable[..., Box]:
    return Box


@pytest.fixture
def study() -> Callable[..., Study]:
    """A study of a box with the guided searcher."""

    def make(box: Box, searcher: GuidedSearcher | None = None, **effort: Any) -> Study:
        given = {"trials": 30, "repeats": 2, **effort}
        return Study(box.space, searcher or GuidedSearcher(), box.run, effort=Effort(**given))

    return make
