"""Which runs make up the labelled suite, and in which order.

Knows nothing of how a run is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.faults.catalogue import catalogue, healthy

splits = ("2-1", "2-2")
healthy_knobs = tuple(
    {"pipeline.split": split, "transport.preset": preset} for preset in ("peer", "pinned") for split in splits
)
Row = dict[str, Any]


class OutOfTimeError(Exception):
    """The run did not end before the suite had to."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make."""

    kind: str  # healthy | fault | remedy
    fault: str
    strength: float
    seed: int
    knobs: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Which run this is; a remedy's knobs are what its fault's run proposed."""
        knobs = "" if self.kind == "remedy" else json.dumps(self.knobs, sort_keys=True)
        return f"{self.kind} {self.fault}:{self.strength:g} seed {self.seed} {knobs}".rstrip()

    @property
    def name(self) -> str:
        """A directory's."""
        return "-".join(re.findall(r"[\w.]+", self.key))


def first_cases(faults: Sequence[str], *, strengths: int, seeds: int, healthy_runs: int) -> Iterator[Case]:
    """Healthy runs, then faults, the strongest first."""
    for number in range(healthy_runs):
        knobs = healthy_knobs[number % len(healthy_knobs)]
        yield Case("healthy", healthy.name, 0.0, number // len(healthy_knobs), knobs)
    for rank in range(strengths):
        for seed in range(seeds):
            for name in faults:
                fault = catalogue[name]
                yield Case("fault", name, fault.strengths[-1 - rank], seed, dict(fault.knobs))


def remedy_of(row: Row) -> Case | None:
    """The same fault with the knobs that the right finding proposed."""
    if row["kind"] != "fault" or row["named"][:1] != [row["truth"]["cause"]] or not row["remedy"]:
        return None
    knobs = {**row["knobs"], **row["remedy"]}
    return Case("remedy", row["fault"], row["strength"], row["seed"], knobs)
