"""Which part of which stage's time changed between two runs: beyond noise or not.

A stage's pace is what one trained token takes of it. Work, copies and unaccounted time are a stage's own; its
waits follow from the other stages, so they are shown and never named as the cause. Knows nothing of
throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from profiler.stage_costs import Part, StageCosts
from profiler.throughput import percentile_interval
from profiler.waits import beside_stages

confidence: Final = 0.99  # there are a dozen parts, and none should be named by chance
told_share: Final = 0.02  # of the stage's time a token: what changed by less is not worth a sentence
_resamples, _seed = 2000, 1
_stage_order = ("target", "drafter", "prefetch")
_least_blocks = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """One part of one stage's time in both runs; a part that a run does not have took it no time."""

    stage: str
    kind: str  # work, copy, wait, gpu_wait, gil_wait, unaccounted
    part: str  # "forward", "copy pageable", "get q_hs"
    a_s_per_batch: float | None
    b_s_per_batch: float | None
    a_s_per_token: float  # trained tokens, the stage's threads in parallel
    b_s_per_token: float
    low: float  # 99 % interval of b_s_per_token - a_s_per_token
    high: float
    stage_share: float  # the change as a share of the stage's time a token in A, signed
    sets_pace: bool  # the stage is the one with the least waiting in the slower run
    beyond_noise: bool

    @property
    def is_own(self) -> bool:
        """The stage's own time, not the wait for another."""
        return self.kind != "wait" or self.part.startswith(beside_stages)

    @property
    def is_told(self) -> bool:
        """Worth a sentence: own time, beyond noise and not tiny."""
        return self.is_own and self.beyond_noise and abs(self.stage_share) >= told_share

    def explains(self, outcome: Literal["faster", "slower", "equal", "unknown"]) -> bool:
        """Whether the change goes the way the throughput went."""
        return self.is_told and (self.stage_share > 0) == (outcome == "slower")


def compare_stages(a: StageCosts, b: StageCosts) -> tuple[tuple[StageChange, ...], str | None]:
    """Every part of every stage, those of the stage that sets the pace first, the largest change first.

    Without enough steady windows in both runs: nothing, and the reason.
    """
    lacking = [name for name, costs in (("A", a), ("B", b)) if len(costs.tokens) < _least_blocks]
    if lacking:
        return (), f"too few steady windows in {' and '.join(lacking)}"
    parts = sorted(a.seconds.keys() | b.seconds.keys())
    if not parts:
        return (), "no stage left spans in the steady windows"
    generator = np.random.default_rng(_seed)
    blocks = [generator.integers(0, n, size=(_resamples, n)) for n in (len(a.tokens), len(b.tokens))]
    pacing = _stage_of_least_waiting(max((a, b), key=lambda costs: costs.pace))
    changes = [_compare(part, a, b, blocks, pacing) for part in parts]
    return tuple(sorted(changes, key=_place)), None


def tell_change(change: StageChange) -> str:
    """`the drafters' copies (pageable) grew from 0.1 to 1.9 s a batch`; a token where batches are unknown."""
    now, then, unit = change.b_s_per_batch, change.a_s_per_batch, "s a batch"
    if now is None or then is None or (now - then) * change.stage_share < 0:  # batches are of another size
        now, then, unit = change.b_s_per_token * 1000, change.a_s_per_token * 1000, "s for 1,000 tokens"
    if max(now, then) < 1:
        now, then, unit = now * 1000, then * 1000, f"m{unit}"
    verb = "grew" if now > then else "shrank"
    whose = f"{change.stage}s'" if change.stage in ("target", "drafter") else f"{change.stage}'s"
    return f"the {whose} {_noun(change)} {verb} from {then:.3g} to {now:.3g} {unit}"


def _noun(change: StageChange) -> str:
    path = change.part.partition(" ")[2]
    return {
        "copy": f"copies ({path})" if path else "copies",
        "gpu_wait": "waiting for their own device",
        "gil_wait": "waiting for the GIL",
        "unaccounted": "unaccounted time",
        "wait": "waiting for copies",
    }.get(change.kind, change.part)


def _compare(
    part: Part, a: StageCosts, b: StageCosts, blocks: Sequence[NDArray[np.int64]], pacing: str | None
) -> StageChange:
    stage, kind, name = part
    draws = b.s_per_token(part, blocks[1]) - a.s_per_token(part, blocks[0])
    low, high = percentile_interval(draws, confidence)
    one, two = float(a.s_per_token(part)[0]), float(b.s_per_token(part)[0])
    whole = sum(float(a.s_per_token(p)[0]) for p in a.seconds if p[0] == stage)
    whole = whole or sum(float(b.s_per_token(p)[0]) for p in b.seconds if p[0] == stage)
    return StageChange(
        stage=stage,
        kind=kind,
        part=name,
        a_s_per_batch=a.s_per_batch(part),
        b_s_per_batch=b.s_per_batch(part),
        a_s_per_token=one,
        b_s_per_token=two,
        low=low,
        high=high,
        stage_share=(two - one) / whole if whole else 0.0,
        sets_pace=stage == pacing,
        beyond_noise=not low <= 0.0 <= high,
    )


def _stage_of_least_waiting(costs: StageCosts) -> str | None:
    """The stage that has least time to wait for others: it sets the pace."""

    def waiting(stage: str) -> float:
        mine = {part: float(spent.sum()) for part, spent in costs.seconds.items() if part[0] == stage}
        waits = sum(
            spent for (_, kind, name), spent in mine.items() if kind == "wait" and name not in beside_stages
        )
        return waits / sum(mine.values())

    stages = [stage for stage in _stage_order if any(part[0] == stage for part in costs.seconds)]
    return min(stages, key=waiting, default=None)


def _place(change: StageChange) -> tuple[bool, float, str, str]:
    return not change.sets_pace, -abs(change.b_s_per_token - change.a_s_per_token), change.stage, change.part
