"""Simulated tuning problems for whole searches: machines and jobs by seed, and what configurations do there.

    problem = Problem("hard", 3)
    study = Study(problem.space(), searcher, problem.runner())

A problem's physics is its own (tuner_physics, tuner_memory): no tuner's model is used here. `normal` problems
have what a good model could know; `hard` ones besides have roughness and cliffs that none knows. Seeds of the
held-out sets are never looked at while a tuner is being built. Knows nothing of tuners or of scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.tuner_boxes import Box, Job, draw_box, draw_job, tuned_host
from benchmarks.tuner_memory import Need, find_need, jitter_share, settle_activations
from benchmarks.tuner_physics import Columns, Floats, Quirks, Shown, Stages, presets, run_batches, time_stages
from benchmarks.tuner_quirks import draw_cliffs, find_quirks

if TYPE_CHECKING:
    from autotune.free_space import FreeSpace
    from benchmarks.tuner_runner import SimulatedRunner

Values = dict[str, Any]
development: Final = range(60)  # seeds to build tuners with
held_out: Final = range(9000, 9020)  # seeds to judge them by, once
held_out_next: Final = range(
    9100, 9120
)  # the same for the search after the one that was judged by the former
sets: Final = {
    "normal": ("normal", development),
    "hard": ("hard", development),
    "heldout-normal": ("normal", held_out),
    "heldout-hard": ("hard", held_out),
    "second-heldout-normal": ("normal", held_out_next),
    "second-heldout-hard": ("hard", held_out_next),
}
split, budget, preset, depth, prefetch = (
    "pipeline.split",
    "pipeline.token_budget",
    "transport.preset",
    "transport.depth",
    "pipeline.prefetch_depth",
)
schedule, recompute, chunk, trim, switch = (
    "pipeline.schedule",
    "drafter.checkpointing",
    "objective.chunk_blocks",
    "transport.trim",
    "pipeline.switch_interval_ms",
)
further: Final[dict[str, tuple[Any, ...]]] = {  # each problem has one or two of them
    schedule: ("overlapped", "lockstep"),
    recompute: ("none", "layers"),
    chunk: (0, 128),
    trim: (False, True),
    switch: (0.1, 5.0),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Configurations of one split, budget and schedule, with what is known of them; `rows` of the problem."""

    rows: list[int]
    columns: Columns
    stages: Stages
    shown: Shown
    need: Need


class Problem:
    """One machine with one job, and its configurations. `kind`: normal or hard."""

    def __init__(self, kind: str, seed: int) -> None:
        if kind not in ("normal", "hard"):
            raise ValueError(f"{kind!r} is no kind of problem; there are normal and hard ones")
        self.kind, self.seed = kind, seed
        draw = np.random.default_rng([seed, 771])
        self.gpus = (4, 8)[seed % 2]
        self.box: Box = draw_box(draw, self.gpus)
        self.job: Job = draw_job(draw, self.box)
        self.box = tuned_host(draw, self.box, self.job)
        self.choices = self._choose_knobs(draw)
        self.noise = draw.uniform(0.03, 0.05)  # relative deviation of runs of one configuration
        self.slow_share = draw.uniform(0.02, 0.06)  # of runs that share the machine with somebody
        self.plan_bias = {place: draw.uniform(0.88, 1.08) for place in ("target", "drafter", "host")}
        self.cliffs = draw_cliffs(draw, self.choices) if kind == "hard" else ()
        self._out_share = draw.uniform(0.10, 0.20)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.seed}"

    @cached_property
    def configurations(self) -> tuple[Values, ...]:
        """All that are allowed."""
        every = (
            dict(zip(self.choices, point, strict=True)) for point in itertools.product(*self.choices.values())
        )
        return tuple(values for values in every if self.why_not(values) is None)

    @cached_property
    def rows(self) -> dict[tuple[Any, ...], int]:
        """The number of each configuration by its point."""
        return {tuple(values.values()): number for number, values in enumerate(self.configurations)}

    def row(self, values: Values) -> int:
        """The number of a configuration."""
        return self.rows[tuple(values[path] for path in self.choices)]

    def why_not(self, values: Values) -> str | None:
        """Why a combination is none, or None."""
        _, drafters, colocated = parse_split(values[split])
        if colocated and values[preset] != "peer":
            return "nothing is copied, so transport.preset makes no difference: peer stands for all"
        if values[budget] * drafters > self.job.window_tokens:
            return "a window holds less than one budget for each drafter"
        return None

    def nearest(self, values: Values) -> Values:
        """`values` where allowed, else without what rules them out: for tuners that cannot be told."""
        changed = {**values, preset: "peer"} if parse_split(values[split])[2] else dict(values)
        for smaller in sorted(self.choices[budget], reverse=True):
            if smaller <= values[budget] and self.why_not({**changed, budget: smaller}) is None:
                return {**changed, budget: smaller}
        raise ValueError(f"{values} is far from all that is allowed")

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The physics of everything, computed once."""
        together: dict[Any, list[int]] = {}
        for number, values in enumerate(self.configurations):
            together.setdefault((values[split], values[budget], values.get(schedule)), []).append(number)
        columns = {
            key: lay_columns([self.configurations[row] for row in rows]) for key, rows in together.items()
        }
        activations, _ = settle_activations(self.box, self.job, columns, self._out_share)
        groups = []
        for key, rows in together.items():
            mine = columns[key]
            need = find_need(self.job, mine, activations)
            fullness = np.maximum(need.target * mine.colocated, need.drafter) / self.box.gpu_bytes
            stages = time_stages(self.box, self.job, mine, self._quirks(mine, rows), fullness)
            shown = run_batches(mine, stages, self._work(stages))
            groups.append(Group(rows, mine, stages, shown, need))
        return tuple(groups)

    @cached_property
    def rates(self) -> Floats:
        """Tokens/s of each configuration without noise, also of those that need more memory than there is."""
        return self._gather(group.shown.tokens_per_s for group in self.groups)

    @cached_property
    def fullness(self) -> Floats:
        """What each needs of the memory, the fullest place counting: 1 is the limit."""
        return self._gather(group.need.shares(self.box) for group in self.groups)

    @cached_property
    def can_fail(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Those that run out of memory in every run, or in some."""
        return np.asarray(self.fullness * (1 + jitter_share) > 1)

    @cached_property
    def worth(self) -> Floats:
        """What recommending each is worth: its rate over the best, 0 where it can run out of memory."""
        safe = np.where(self.can_fail, 0, self.rates)
        return np.asarray(safe / safe.max())

    @cached_property
    def baseline(self) -> Values:
        """Where a user would start: small batches, queues of two, and it fits with room to spare."""
        draw = np.random.default_rng([self.seed, 772])
        careful = [
            number
            for number, values in enumerate(self.configurations)
            if values[budget] <= sorted(self.choices[budget])[1]
            and values[depth] == 2
            and values.get(schedule) != "lockstep"
            and self.fullness[number] < 0.8
        ]
        return dict(self.configurations[int(draw.choice(careful))])

    def space(self) -> FreeSpace:
        """The same for a study."""
        from autotune.free_space import FreeSpace

        return FreeSpace(self.choices, self.baseline, allowed=self.why_not_or_true)

    def why_not_or_true(self, values: Any) -> bool | str:
        """`why_not` in the words of a FreeSpace."""
        return self.why_not(values) or True

    def runner(self, *, paired: bool = True) -> SimulatedRunner:
        """Runs configurations of this problem; the same ones give the same figures to every tuner."""
        from benchmarks.tuner_runner import SimulatedRunner

        return SimulatedRunner(self, paired=paired)

    def _choose_knobs(self, draw: np.random.Generator) -> dict[str, tuple[Any, ...]]:
        count = 2 if self.gpus == 8 else int(draw.choice([1, 2]))
        names = sorted(draw.choice(list(further), count, replace=False).tolist())
        splits = (
            ("3-1", "2-2", "1-3", "2-1", "colocated-4")
            if self.gpus == 4
            else ("7-1", "6-2", "5-3", "4-4", "colocated-8")
        )
        return {
            split: splits,
            budget: (8192, 16384, 32768, 49152, 65536),
            preset: presets,
            depth: (1, 2, 4),
            prefetch: (2, 4, 8),
            **{name: further[name] for name in names},
        }

    def _quirks(self, columns: Columns, rows: Sequence[int]) -> Quirks:
        return find_quirks(self.cliffs, self.seed, columns, [self.configurations[row] for row in rows])

    def _work(self, stages: Stages) -> Floats:
        """How the work of batches differs: the larger they are, the more documents even it out."""
        draw = np.random.default_rng([self.seed, 773, stages.batches])
        spread = self.job.spread * np.sqrt(self.job.mean_length / stages.tokens)
        deviations = np.array([1.5, 1.0, 0.8]) * min(spread, 0.5)
        factors = np.exp(draw.normal(0, 1, (6 * stages.batches, 3)) * deviations)
        return np.asarray(factors / factors.mean(axis=0))

    def _gather(self, parts: Iterator[Floats]) -> Floats:
        result = np.empty(len(self.configurations))
        for group, part in zip(self.groups, parts, strict=True):
            result[group.rows] = part
        return result


def parse_split(text: str) -> tuple[int, int, bool]:
    """Targets, drafters, and whether each pair has one GPU."""
    first, second = text.split("-")
    return (int(second), int(second), True) if first == "colocated" else (int(first), int(second), False)


def lay_columns(configurations: Sequence[Values]) -> Columns:
    """Configurations of one split, budget and schedule; a knob that is not searched has its first choice."""

    def column(path: str) -> list[Any]:
        return [values.get(path, further.get(path, (None,))[0]) for values in configurations]

    targets, drafters, colocated = parse_split(configurations[0][split])
    return Columns(
        targets=targets,
        drafters=drafters,
        colocated=colocated,
        lockstep=column(schedule)[0] == "lockstep",
        budget=configurations[0][budget],
        preset=np.array(column(preset)),
        depth=np.array(column(depth)),
        prefetch=np.array(column(prefetch)),
        recomputes=np.array([each == "layers" for each in column(recompute)]),
        chunk=np.array(column(chunk)),
        trims=np.array(column(trim)),
        switch_ms=np.array(column(switch), dtype=float),
    )
