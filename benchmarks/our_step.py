"""Our drafter step as a contender: the real Replica and ReplicaGroup on a case's batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from benchmarks.drafter_case import Case, build_group
from dflash.batch import HiddenStates
from dflash.contract.events import silent


class OurStep:
    """A drafter with the case's weights. See `contest.Contender`."""

    name = "dflash-tune"

    def __init__(self, case: Case, changes: Sequence[tuple[str, object]] = ()) -> None:
        self._window = case.batch.window
        self.group = build_group(case, changes)
        self._replica = self.group.leader
        # Planned ahead, as Prefetch does.
        self._item = HiddenStates(
            batch=self._replica.plan(case.batch), taps=case.taps.to(self._replica.drafter.dtype)
        )

    def train(self) -> None:
        """Forward, loss and backward, enqueued."""
        self._replica.train(self._item)

    def complete(self) -> None:
        """One optimizer step."""
        self.group.complete(self._window, [], silent)

    def take_gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Loss of the last `train` and its gradients."""
        gradients = self._replica.take_gradients()
        names = [name for name, _ in self._replica.drafter.named_parameters()]
        found = {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
        return float(self._replica.take_figures()[0]) / self._window.denominator, found
