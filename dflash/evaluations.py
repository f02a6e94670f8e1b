"""When a run evaluates on what is held out, and what it came to so far.

Between windows, by the thread that completed one, and once at the end. A failure (out of memory, as a rule)
ends evaluations with a warning, never training.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from dflash.contract.events import Probe
from dflash.held_out import Evaluation, HeldOut
from dflash.replicas import ReplicaGroup


class Evaluations:
    """All evaluations of a run. Used by one thread at a time."""

    def __init__(self, held_out: HeldOut | None, every: int) -> None:
        """`held_out`: None: there is nothing to look at. `every`: steps between two; 0: never."""
        self.held_out, self._every = held_out, every
        self.done: list[Evaluation] = []
        self.told: Callable[[Evaluation], None] = lambda evaluation: None
        self.warn: Callable[[str], None] = lambda text: None

    def are_due(self, step: int) -> bool:
        """Whether to evaluate after so many steps."""
        return self.held_out is not None and self._every > 0 and step % self._every == 0

    def evaluate(self, group: ReplicaGroup, step: int, probe: Probe, wanted: Callable[[], bool]) -> None:
        """Evaluate after `step` steps, which are made; nothing when it is no longer `wanted` meanwhile."""
        if self.held_out is None or self._has(step):
            return
        try:
            evaluation = self.held_out.evaluate(group.leader, step, probe, wanted)
        except Exception as error:  # noqa: BLE001 - training is worth more than whatever fails here
            self.held_out = None
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            self.warn(f"step {step}: the evaluation failed, there will be no more: {first_line}")
            return
        if evaluation is not None:
            self.done.append(evaluation)
            probe.mark("evaluation", window=step - 1, note=json.dumps(evaluation.to_json()))
            self.told(evaluation)

    def close(self, group: ReplicaGroup, probe: Probe, wanted: Callable[[], bool]) -> None:
        """The last one, after the stages have ended; nothing where the last step has been evaluated."""
        step = group.optimizer.steps_done
        if self.held_out is None or self._every == 0 or not step or self._has(step):
            return
        with probe.span("evaluate", window=step - 1):
            self.evaluate(group, step, probe, wanted)

    def _has(self, step: int) -> bool:
        return bool(self.done) and self.done[-1].step == step
