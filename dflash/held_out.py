"""A drafter on documents that it is not trained on: loss, accuracy by slot, acceptance length.

The target is frozen, so its states of these documents are computed once, before training, and kept in host
memory: an evaluation takes no target, only the first drafter's device for a while. It draws nothing and
changes nothing, so that a run's result is the same to the bit with and without. Knows nothing of when.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.attention import upload
from dflash.batch import Batch, HiddenStates
from dflash.contract.config import TrainConfig
from dflash.contract.events import Probe
from dflash.data.documents import Documents
from dflash.data.slices import ChosenDocuments, smallest_keys
from dflash.evaluation.acceptance import (
    Acceptance,
    Answer,
    AnswerAcceptance,
    answers_in,
    measure_text,
    summarize,
)
from dflash.packing import LayoutKind
from dflash.replicas import Replica
from dflash.target import Target
from dflash.window import batches
from dflash.window_figures import WindowSums, slot_shares

most_state_bytes = 1 << 30  # of target states kept in host memory: fewer documents where they are more


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a drafter came to after `step` steps."""

    step: int
    documents: int
    loss: float | None  # as in training: the same objective, the same division; None: not finite
    slot_correct: tuple[int, ...]  # by slot of the block, [b]
    slot_counted: tuple[int, ...]
    acceptance: Acceptance
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For events, run.json and trackers."""
        correct, counted = sum(self.slot_correct), sum(self.slot_counted)
        shares = slot_shares(self.slot_correct, self.slot_counted)
        return {
            "step": self.step,
            "documents": self.documents,
            "loss": self.loss,
            "accuracy": correct / counted if counted else None,
            "slot_accuracy": [None if share is None else round(share, 5) for share in shares],
            "acceptance_length": self.acceptance.pooled,
            "acceptance_mean_of_means": self.acceptance.mean_of_means,
            "blocks": self.acceptance.blocks,
            "seconds": round(self.seconds, 3),
        }

    def line(self) -> str:
        """For the console."""
        told = self.to_json()
        length, loss, accuracy = (
            "n/a" if told[name] is None else f"{told[name]:.3f}"
            for name in ("acceptance_length", "loss", "accuracy")
        )
        return (
            f"held out, step {self.step}: acceptance length {length}, loss {loss}, "
            f"accuracy {accuracy} ({self.documents} documents, {self.seconds:.1f} s)"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A batch of the slice with its target states and the answers of each of its documents."""

    batch: Batch
    taps: Tensor  # [T, F*H] on the CPU
    answers: tuple[tuple[Answer, ...], ...]


def choose(documents: Documents, config: TrainConfig, token_bytes: int) -> NDArray[np.int64]:
    """Numbers, ascending, of those of `documents` to evaluate on. `token_bytes`: of a token's states."""
    numbers = smallest_keys(documents, config.data.seed)[: config.run.evaluate_documents]
    fits = np.cumsum(documents.lengths[numbers]) * token_bytes <= most_state_bytes
    return np.sort(numbers[: max(1, int(fits.sum()))])


def planned_bytes(documents: Documents | None, config: TrainConfig, token_bytes: int) -> int:
    """What a run is going to keep of the states of documents held out."""
    if documents is None or config.run.evaluate_every == 0:
        return 0
    return int(documents.lengths[choose(documents, config, token_bytes)].sum()) * token_bytes


class HeldOut:
    """The slice, ready to be evaluated on."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts
        self.documents = sum(len(part.batch.documents) for part in parts)
        self.state_bytes = sum(part.taps.nbytes for part in parts)

    @classmethod
    def of(
        cls, documents: Documents, config: TrainConfig, target: Target, *, taps: int, layout: LayoutKind
    ) -> HeldOut:
        """At most `run.evaluate_documents` of `documents`, forwarded on the target's device, which is free.

        `taps`: layers that it gives the states of. `layout`: of the rows that it is given.
        """
        numbers = choose(documents, config, taps * target.spec.hidden * target.dtype.itemsize)
        chosen = Documents(ChosenDocuments(documents, numbers), documents.books)
        parts = []
        for batch in batches(chosen, _as_one_window(config, chosen), layout=layout):
            answers = tuple(answers_in(chosen.items[number].loss_mask) for number in batch.documents)
            parts.append(_Part(batch, target.forward(batch).cpu(), answers))
        return cls(parts)

    def evaluate(
        self, replica: Replica, step: int, probe: Probe, wanted: Callable[[], bool] = lambda: True
    ) -> Evaluation | None:
        """What the replica's drafter comes to; returns once it is known. None when no longer `wanted`.

        Its weights must be those of the last step, or on their way there. Raises RuntimeError when the
        documents say nothing: states that are absent or not finite, or no slot that counts.
        """
        started = time.monotonic()
        rows: list[Tensor] = []
        measured: list[AnswerAcceptance] = []
        device = replica.device
        with device.active():
            replica.await_weights()
            for part in self._parts:
                if not wanted():
                    return None
                with device.computing(probe, window=step - 1):
                    taps = upload(part.taps, device.torch_device)
                    rows.append(replica.measure(HiddenStates(batch=part.batch, taps=taps)).cpu())
                    measured += _measure_texts(replica, part, taps)
        sums = WindowSums.of(torch.stack(rows).double().sum(0).tolist())
        if trouble := sums.trouble():
            raise RuntimeError(f"of the documents held out: {trouble[1]}")
        loss = sums.numerator / self._parts[0].batch.window.denominator
        return Evaluation(
            step=step,
            documents=self.documents,
            loss=loss if math.isfinite(loss) else None,
            slot_correct=sums.slot_correct,
            slot_counted=sums.slot_counted,
            acceptance=summarize(measured, replica.drafter.spec.block_size),
            seconds=time.monotonic() - started,
        )


def _as_one_window(config: TrainConfig, documents: Documents) -> TrainConfig:
    """A configuration whose only window is these documents, in batches no larger than the longest needs."""
    budget = config.data.max_length
    tokens = max(documents.tokens, budget * config.split.drafters)
    return config.replacing(
        {
            "run.epochs": 1,
            "run.max_steps": 0,
            "pipeline.token_budget": budget,
            "window.tokens": tokens,
        }
    )


def _measure_texts(replica: Replica, part: _Part, taps: Tensor) -> list[AnswerAcceptance]:
    ids = torch.split(part.batch.input_ids, list(part.batch.lengths))
    states = torch.split(taps, list(part.batch.lengths))
    found: list[AnswerAcceptance] = []
    for own_ids, own_states, answers in zip(ids, states, part.answers, strict=True):
        found += measure_text(
            replica.drafter, replica.embedding, replica.head, taps=own_states, ids=own_ids, answers=answers
        )
    return found
