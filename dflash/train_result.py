"""How a run of the trainer ended: what was trained, what was learned, what is left. Knows no files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dflash.drafter import Drafter
from dflash.held_out import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended. Books: every batch made was trained or dropped."""

    steps_done: int  # windows stepped in all, resumed ones included
    optimizer_updates: int  # steps in all that changed the weights, by the optimizer's own count
    losses: tuple[float, ...]  # one a window of this process
    learned: dict[str, Any] | None  # see Counters.learned
    evaluations: tuple[Evaluation, ...]  # on documents held out, in order
    documents_trained: int
    tokens_trained: int
    states_absent: int  # tokens trained without the target's states
    batches_made: int
    batches_trained: int
    batches_dropped: int
    stop_reason: str | None
    checkpoint: Path | None
    drafter: Drafter  # as training left it, where it is: a run in place that follows trains it anew

    def books(self) -> dict[str, Any]:
        """The counts for run.json."""
        steps = ("steps_done", "optimizer_updates", "documents_trained", "tokens_trained", "states_absent")
        batches = ("batches_made", "batches_trained", "batches_dropped")
        return {name: getattr(self, name) for name in (*steps, *batches)}

    def weights(self) -> dict[str, Tensor]:
        """The drafter's weights as they are now, copied to the CPU: gigabytes, through pageable memory."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.drafter.state_dict().items()}
