"""What drafters have really trained, written down outside the product, and whether it is each document once.

A wrapper around `Replica.train` and `ReplicaGroup.complete` writes a line as each returns, straight into a
file: what was written when a process is killed stays written. Of a chain of runs, in which each goes on from
a checkpoint of one before, what counts of a run are its windows up to the step that the next one begins with:
later ones went with the weights that had learned them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.batch import HiddenStates, WindowInfo
from dflash.replicas import Replica, ReplicaGroup
from dflash.window_end import WindowEnd


@contextmanager
def keeping_ledger(path: Path) -> Iterator[None]:
    """Write down what is trained meanwhile in this process."""
    train, complete = Replica.train, ReplicaGroup.complete
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(**line: object) -> None:
        os.write(descriptor, json.dumps(line).encode() + b"\n")

    def train_and_tell(self: Replica, item: HiddenStates) -> None:
        train(self, item)
        window = item.batch.window
        write(step=window.step, epoch=window.epoch, documents=item.batch.documents)

    def complete_and_tell(self: ReplicaGroup, window: WindowInfo, *others: Any) -> WindowEnd:
        end = complete(self, window, *others)
        write(made=window.step)
        return end

    Replica.train, ReplicaGroup.complete = train_and_tell, complete_and_tell  # type: ignore[method-assign]
    try:
        yield
    finally:
        Replica.train, ReplicaGroup.complete = train, complete  # type: ignore[method-assign]
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Leg:
    """One run of a chain: its ledger, and the step that it began with."""

    ledger: Path
    first_step: int

    def lines(self) -> list[dict[str, Any]]:
        """Whole lines; a process that was killed before its first wrote none."""
        if not self.ledger.exists():
            return []
        return [
            json.loads(line) for line in self.ledger.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]


@dataclass(slots=True)
class Account:
    """What the weights at the end of a chain have seen."""

    documents: Counter[tuple[int, int]] = field(default_factory=Counter)  # (epoch, document): how often
    steps: Counter[int] = field(default_factory=Counter)  # optimizer step: how often

    def lost(self, documents: int, epochs: int) -> int:
        """Documents that an epoch did without."""
        return sum(
            (epoch, number) not in self.documents for epoch in range(epochs) for number in range(documents)
        )

    def repeated(self) -> int:
        """Times that a document or a step came again."""
        return sum(count - 1 for counts in (self.documents, self.steps) for count in counts.values())


def settle(legs: Sequence[Leg], total_steps: int) -> Account:
    """The account of a chain that came to its end at `total_steps`."""
    account = Account()
    for leg, until in zip(legs, [*(leg.first_step for leg in legs[1:]), total_steps], strict=True):
        for line in leg.lines():
            if "made" in line:
                account.steps[line["made"]] += line["made"] < until
            elif line["step"] < until:
                account.documents.update((line["epoch"], number) for number in line["documents"])
    account.steps = +account.steps
    return account
