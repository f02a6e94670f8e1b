"""Whether two trainers compute the same loss and gradients, within what their number format can tell.

Gradients are compared parameter by parameter with those of a float32 run of our plain path: rounding moves
both trainers about as far from it, an error moves one of them alone. Knows nothing of speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.contest import Contender

same_function = 0.1  # relative distance past which gradients are of another function
farther = 3.0  # how many times as far from the reference as the other one of both may lie
floor = 1e-4  # distances below this are rounding in float32
loss_rounding = 2e-3  # relative, of a mean over thousands of slots


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trainer's loss, and its float32 gradients by our parameter names."""

    loss: float
    gradients: Mapping[str, Tensor]

    @classmethod
    def of(cls, contender: Contender) -> Outcome:
        """From one batch, with the weights it has."""
        contender.train()
        return cls(*contender.take_gradients())


def compare(reference: Outcome | None, ours: Outcome, again: Outcome, theirs: Outcome) -> dict[str, Any]:
    """Distances by parameter and whether they are rounding; `again` is a second run of ours.

    Without a float32 `reference` only the distance between both is judged.
    """
    alone = set(ours.gradients) ^ set(theirs.gradients)
    if alone:
        return {"same": False, "parameters_of_one_only": sorted(alone)}
    rows = {}
    for name, own in ours.gradients.items():
        row = {
            "ours_twice": _distance(again.gradients[name], own),
            "between": _distance(theirs.gradients[name], own),
        }
        if reference is not None:
            wanted = reference.gradients[name]
            row |= {"ours": _distance(own, wanted), "theirs": _distance(theirs.gradients[name], wanted)}
        rows[name] = row
    far = [name for name, row in rows.items() if _too_far(row)]
    losses = {"ours": ours.loss, "theirs": theirs.loss}
    if reference is not None:
        losses["float32"] = reference.loss
    return {
        "same": not far and abs(ours.loss - theirs.loss) < loss_rounding * abs(ours.loss),
        "loss": losses,
        "largest_distance": {
            key: max(row[key] for row in rows.values()) for key in next(iter(rows.values()))
        },
        "parameters_too_far": far,
        "distances": rows,
    }


def _too_far(row: Mapping[str, float]) -> bool:
    if "theirs" not in row:  # no reference
        return row["between"] > same_function
    near, far = sorted((row["ours"], row["theirs"]))
    return far > farther * near + floor or far > same_function


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference, relative to the norm of `wanted`."""
    apart = torch.linalg.vector_norm(found.float() - wanted.float())
    return round(float(apart / torch.linalg.vector_norm(wanted.float())), 6)
