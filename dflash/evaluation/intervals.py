"""How sure acceptance lengths are: bootstrap intervals over the texts that were measured.

Texts are drawn, not blocks: blocks of one text are alike. Knows nothing of drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dflash.evaluation.acceptance import AnswerAcceptance

level: Final = 0.95
fewest_texts: Final = 10
_draws: Final = 2000
_draws_at_once: Final = 100

Columns = NDArray[np.float64]  # [texts, 4]: tokens, blocks, sum of the answers' means, answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Low and high of each figure at `level`; None with the reason."""

    pooled: tuple[float, float] | None
    mean_of_means: tuple[float, float] | None
    reason: str | None


def find_intervals(texts: Sequence[Sequence[AnswerAcceptance]]) -> Intervals:
    """Of the answers of each text. The same for the same answers: the draws are seeded."""
    columns = np.array([_sums(answers) for answers in texts], np.float64).reshape(-1, 4)
    columns = columns[columns[:, 1] > 0]
    if len(columns) < fewest_texts:
        reason = f"{len(columns)} texts with a block are too few: {fewest_texts} are needed"
        return Intervals(pooled=None, mean_of_means=None, reason=reason)
    drawn = _draw(columns)
    return Intervals(
        pooled=_ends(drawn, lambda sums: sums[:, 0] / sums[:, 1]),
        mean_of_means=_ends(drawn, lambda sums: sums[:, 2] / sums[:, 3]),
        reason=None,
    )


def _sums(answers: Sequence[AnswerAcceptance]) -> tuple[float, float, float, float]:
    told = [one.lengths for one in answers if one.lengths]
    means = [sum(lengths) / len(lengths) for lengths in told]
    return float(sum(map(sum, told))), float(sum(map(len, told))), sum(means), float(len(means))


def _draw(columns: Columns) -> Columns:
    """The sums of `_draws` samples of as many texts, with replacement: [_draws, 4]."""
    generator = np.random.Generator(np.random.Philox(0))
    count = len(columns)
    parts = [
        columns[generator.integers(0, count, (_draws_at_once, count))].sum(1)
        for _ in range(_draws // _draws_at_once)
    ]
    return np.concatenate(parts)


def _ends(drawn: Columns, figure: Callable[[Columns], NDArray[np.float64]]) -> tuple[float, float]:
    low, high = np.quantile(figure(drawn), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
