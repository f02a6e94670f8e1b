"""Runs of a simulated problem: what a real run would tell, with noise on all of it, or that memory ran out.

The noise of a run is drawn from the problem, the configuration and how often it has run before: whoever asks
for the same runs gets the same figures. Knows nothing of what is best, and tells nothing that a real run
would not.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autotune.telemetry import (
    Beside,
    CopyFigures,
    Failed,
    FailureKind,
    MemoryFigures,
    Outcome,
    StageFigures,
    Telemetry,
)
from benchmarks.tuner_memory import jitter_share

if TYPE_CHECKING:
    from autotune.runner import Request
    from benchmarks.tuner_suite import Group, Problem

paired_noise: Final = 0.01  # of a ratio within one process, standard error
figure_noise: Final = 0.02  # of a stage figure, besides that of the run
within_noise: Final = 0.008  # of a rate by what a run itself can see, standard error
hops: Final = {
    "host": ("pageable down", "pageable up"),
    "shared": ("peer", "move"),
    "pinned": ("pinned down", "pinned up"),
    "peer": ("peer",),
}


class SimulatedRunner:
    """Runs what it is asked. `paired`: it can interleave two configurations of one split in a process."""

    def __init__(self, problem: Problem, *, paired: bool = True) -> None:
        self._problem, self._paired = problem, paired
        self._runs: Counter[int] = Counter()
        self._places = {row: (group, at) for group in problem.groups for at, row in enumerate(group.rows)}

    def run(self, request: Request) -> Outcome:
        """One run of the configuration that is asked for."""
        return self.measure(request.values, request.beside, soak=request.soak)

    def measure(
        self, values: Mapping[str, Any], beside: Mapping[str, Any] | None = None, *, soak: bool = False
    ) -> Outcome:
        """The same for whoever has no study. A soak needs as much memory as a run may ever need."""
        row = self._problem.row(dict(values))
        draw = self._draw(row)
        group, at = self._places[row]
        memory = self._take_memory(group, at, 1.0 if soak else draw.random())
        out = [place for place, figures in memory.items() if _overflows(figures)]
        if out:
            return self._ran_out(out[0], memory)
        slower = self._slowness(draw)
        return self._tell(group, at, memory, slower, draw, self._compare(row, values, beside, draw))

    def _draw(self, row: int) -> np.random.Generator:
        problem = self._problem
        self._runs[row] += 1
        key = repr(sorted(problem.configurations[row].items())).encode()
        kind = zlib.crc32(problem.kind.encode())
        return np.random.default_rng([problem.seed, kind, zlib.crc32(key), self._runs[row]])

    def _slowness(self, draw: np.random.Generator) -> float:
        """How much longer everything takes in this run; now and then somebody else works on the machine."""
        usual = draw.normal(0, self._problem.noise)
        crowded = draw.uniform(0.07, 0.3) if draw.random() < self._problem.slow_share else 0.0
        return float(np.exp(usual + crowded))

    def _take_memory(self, group: Group, at: int, jitter: float) -> dict[str, MemoryFigures]:
        """Peaks of each place, beyond the limit too. `jitter`: 0 for the luckiest run, 1 for the other."""
        problem, columns = self._problem, group.columns
        gpus = columns.targets if columns.colocated else columns.targets + columns.drafters
        roles = ["target" if gpu < columns.targets else "drafter" for gpu in range(gpus)]
        places = [(f"cuda:{gpu}", role, problem.box.gpu_bytes) for gpu, role in enumerate(roles)]
        figures = {}
        for place, role, limit in [*places, ("host", "host", problem.box.host_bytes)]:
            need = float(getattr(group.need, role)[at])
            planned = need * problem.plan_bias[role] * float(np.exp(self._plan_error(group, at, role)))
            peak = need * (1 + jitter_share * jitter)
            figures[place] = MemoryFigures(peak_bytes=peak, limit_bytes=limit, planned_bytes=planned)
        return figures

    def _plan_error(self, group: Group, at: int, role: str) -> float:
        """What arithmetic gets wrong of this one: the same in every run."""
        draw = np.random.default_rng([self._problem.seed, group.rows[at], zlib.crc32(role.encode())])
        return float(draw.normal(0, 0.015))

    def _ran_out(self, place: str, memory: Mapping[str, MemoryFigures]) -> Failed:
        """What was taken when it failed lies below the limit; what would have been needed is not known."""
        known = {
            name: MemoryFigures(
                peak_bytes=min(each.peak_bytes, 0.97 * (each.limit_bytes or each.peak_bytes)),
                limit_bytes=each.limit_bytes,
                planned_bytes=each.planned_bytes,
            )
            for name, each in memory.items()
        }
        what = "the process was killed: host memory" if place == "host" else f"CUDA out of memory: {place}"
        return Failed(FailureKind.out_of_memory, f"{what} ran out during the first window", known)

    def _compare(
        self,
        row: int,
        values: Mapping[str, Any],
        beside: Mapping[str, Any] | None,
        draw: np.random.Generator,
    ) -> Beside | None:
        """The other half of an interleaved run: nothing where the other cannot run in the same process."""
        error = draw.normal(0, paired_noise)
        if beside is None or not self._paired or beside["pipeline.split"] != values["pipeline.split"]:
            return None
        other = self._problem.row(dict(beside))
        if self._problem.can_fail[other]:
            return None
        ratio = float(np.log(self._problem.rates[row] / self._problem.rates[other]) + error)
        return Beside(values=dict(beside), log_ratio=ratio, deviation=paired_noise)

    def _tell(
        self,
        group: Group,
        at: int,
        memory: Mapping[str, MemoryFigures],
        slower: float,
        draw: np.random.Generator,
        beside: Beside | None,
    ) -> Telemetry:
        job, stages = self._problem.job, group.stages
        own = float(np.exp(draw.normal(0, within_noise)))
        rate = float(group.shown.tokens_per_s[at]) / slower * own
        windows = max(int(60 * rate / job.window_tokens), 10)

        def noisy(figure: float) -> float:
            return float(figure * slower * np.exp(draw.normal(0, figure_noise)))

        return Telemetry(
            tokens_per_s=rate,
            low=rate * float(np.exp(-1.645 * within_noise)),
            high=rate * float(np.exp(1.645 * within_noise)),
            windows=windows,
            steps=windows + 2,
            supervised_tokens=windows * job.window_tokens // 3,
            losses=(),
            stages=_tell_stages(group, at, windows, noisy),
            copies=_tell_copies(group, at, noisy),
            step_s=noisy(stages.step_s),
            window_tokens=float(job.window_tokens),
            token_bytes=float(stages.item_bytes[at] / stages.tokens),
            memory=memory,
            startup_s=float(draw.uniform(20, 60)),
            beside=beside,
        )


def _overflows(figures: MemoryFigures) -> bool:
    return figures.limit_bytes is not None and figures.peak_bytes > figures.limit_bytes


def _tell_stages(group: Group, at: int, windows: int, noisy: Any) -> dict[str, StageFigures]:
    stages, shown, columns = group.stages, group.shown, group.columns
    per_thread = windows * stages.batches * stages.tokens / float(shown.tokens_per_s[at])
    count = windows * stages.batches

    def share(figure: float) -> float:
        return float(min(max(figure, 0.0), 0.99))

    def copied(seconds: float, threads: int) -> float:
        return share(seconds * count / threads / per_thread)

    gain = stages.sharing_gain  # two roles on one GPU: each is seen to take its share of the whole
    return {
        "prefetch": StageFigures(
            busy_s=noisy(float(stages.load_s[at])),
            tokens=stages.tokens,
            batches=count,
            put_wait_share=share(float(shown.load_put[at])),
        ),
        "target": StageFigures(
            busy_s=noisy(float(stages.target_s[at]) / gain),
            tokens=stages.tokens,
            batches=count,
            get_wait_share=share(float(shown.target_get[at])),
            put_wait_share=share(float(shown.target_put[at])),
            copy_share=copied(float(stages.target_copy_s[at]), columns.targets),
        ),
        "drafter": StageFigures(
            busy_s=noisy(float(stages.drafter_s[at]) / gain),
            tokens=stages.tokens,
            batches=count,
            get_wait_share=share(float(shown.drafter_get[at])),
            copy_share=copied(float(stages.drafter_copy_s[at]), columns.drafters),
        ),
    }


def _tell_copies(group: Group, at: int, noisy: Any) -> dict[str, CopyFigures]:
    stages = group.stages
    if group.columns.colocated:
        return {}
    size = float(stages.item_bytes[at])
    preset = str(group.columns.preset[at])
    seconds = {
        "pageable down": stages.target_copy_s[at],
        "pageable up": stages.drafter_copy_s[at],
        "pinned down": stages.down_s[at] * stages.far_down.mean(),
        "pinned up": stages.link_s[at],
        "peer": stages.link_s[at] * stages.far_link.mean(),
        "move": stages.moved_s[at],
    }
    return {hop: CopyFigures(bytes=size, seconds=noisy(float(seconds[hop]))) for hop in hops[preset]}
