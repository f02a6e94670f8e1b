"""What no model of a pipeline knows: roughness of every stage, and cliffs that belong to one machine.

Both change the work of stages, so that they show in what a run tells, and nowhere else. Knows nothing of
memory or queues.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.tuner_physics import Columns, Floats, Quirks

Values = Mapping[str, Any]
faint, rough = 0.002, 0.05  # roughness of a stage, at most, of normal and of hard problems


@dataclass(frozen=True, slots=True)
class Cliff:
    """Where all of `at` holds, a stage takes `factor` times as long. Numbers hold from there on upwards."""

    stage: str  # target, drafter or copy
    at: tuple[tuple[str, Any], ...]
    factor: float

    def meets(self, values: Values) -> bool:
        """Whether a configuration lies beyond it."""
        return all(
            values[path] >= edge if isinstance(edge, int) else values[path] == edge for path, edge in self.at
        )


def draw_cliffs(draw: np.random.Generator, choices: Mapping[str, Sequence[Any]]) -> tuple[Cliff, ...]:
    """Three of five kinds that machines are known to have."""
    splits = [text for text in choices["pipeline.split"] if not text.startswith("colocated")]
    split, other = draw.choice(splits, 2, replace=False).tolist()
    large = int(draw.choice(sorted(choices["pipeline.token_budget"])[2:]))
    path = str(draw.choice(["pinned", "peer"]))
    budget, preset, depth = "pipeline.token_budget", "transport.preset", "transport.depth"
    kinds = [
        # A buffer past some size is no longer registered, or goes another way.
        [
            Cliff("copy", ((preset, path), (budget, large)), draw.uniform(6, 25)),
            Cliff("target", ((preset, path), (budget, large)), draw.uniform(1.1, 1.4)),
        ],
        [Cliff("drafter", ((depth, int(draw.choice([2, 4]))), (preset, path)), draw.uniform(1.06, 1.2))],
        # A shape for which there is no fast kernel.
        [Cliff("target", ((budget, large),), draw.uniform(1.05, 1.25))],
        # Neighbours behind one switch.
        [Cliff("target", (("pipeline.split", split),), draw.uniform(1.05, 1.15))],
        [Cliff("drafter", (("pipeline.split", other), (budget, 32768)), draw.uniform(1.05, 1.2))],
    ]
    chosen = draw.choice(len(kinds), 3, replace=False)
    return tuple(cliff for number in sorted(chosen) for cliff in kinds[number])


def find_quirks(
    cliffs: Sequence[Cliff], seed: int, columns: Columns, configurations: Sequence[Values]
) -> Quirks:
    """Factors for each configuration; `columns` are the same configurations."""
    height = rough if cliffs else faint
    factors = {
        stage: np.array([_roughness(seed, stage, values, height) for values in configurations])
        for stage in ("target", "drafter")
    }
    factors["copy"] = np.ones(len(columns))
    for cliff in cliffs:
        beyond = np.array([cliff.meets(values) for values in configurations])
        factors[cliff.stage] = factors[cliff.stage] * np.where(beyond, cliff.factor, 1)
    return Quirks(**factors)


def _roughness(seed: int, stage: str, values: Values, height: float) -> float:
    """Most is shared, by all with one split, budget and preset or one depth; a third is each one's own."""
    shared = ("pipeline.split", "pipeline.token_budget", "transport.preset")
    parts = (
        (0.45, [values[path] for path in shared]),
        (0.2, [values["transport.depth"], values["pipeline.token_budget"]]),
        (0.35, sorted(values.items())),
    )
    return float(1 + height * sum(share * _hashed(seed, stage, part) for share, part in parts))


def _hashed(*parts: Any) -> float:
    """Between -1 and 1, the same for the same parts on every machine."""
    return zlib.crc32(repr(parts).encode()) / 0xFFFFFFFF * 2 - 1


def flat(columns: Columns) -> Quirks:
    """No quirks at all."""
    ones: Floats = np.ones(len(columns))
    return Quirks(target=ones, drafter=ones, copy=ones)
