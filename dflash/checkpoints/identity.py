"""Whose a checkpoint is: the model that makes it meaningful, and the data that its position is in.

The target is known by its weights (a sample of every tensor), the data by their tokens: a directory or file
may be called otherwise. A tokenizer and its template are known by what they hold. What only says how the work
is done (split, budget, transport, devices) is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash.contract.config import TrainConfig
from dflash.contract.errors import CheckpointError
from dflash.contract.held_knobs import name_changes
from dflash.contract.model_shapes import random_prefix
from dflash.data.documents import Documents
from dflash.data.tokenizer import ChatTokenizer
from dflash.drafter import DrafterSpec

other_data_remedy = (
    "resume with the data, data.seed and window.tokens that it was trained on, or set "
    "run.resume_data=other to train on these from their beginning"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Values that must be equal, by name."""

    model: Mapping[str, Any]
    data: Mapping[str, Any]

    def check_model(self, saved: Mapping[str, Any], where: str) -> None:
        """Raises CheckpointError for a checkpoint of another model, naming what differs first."""
        if (key := _difference(saved, self.model)) is not None:
            raise CheckpointError(
                "the checkpoint belongs to another model",
                where=f"{where}: {key}",
                found=saved.get(key),
                expected=self.model[key],
                remedy="resume with the configuration that wrote it, or start a new run",
            )

    def has_data(self, saved: Mapping[str, Any]) -> bool:
        """Whether a checkpoint stands in these data."""
        return _difference(saved, self.data) is None

    def other_data(self, saved: Mapping[str, Any], where: str) -> CheckpointError:
        """What to raise for a checkpoint that stands in other data, naming what differs first."""
        key = str(_difference(saved, self.data))
        return CheckpointError(
            "the checkpoint belongs to other data",
            where=f"{where}: {key}",
            found=saved.get(key),
            expected=self.data[key],
            remedy=other_data_remedy,
        )

    def name_data_changes(self, saved: Mapping[str, Any]) -> str:
        """`data.seed 0 → 1, …` for people."""
        return name_changes(saved, self.data)


def identify(
    config: TrainConfig,
    spec: DrafterSpec,
    documents: Documents,
    tokenizer: ChatTokenizer,
    target_sample: str,
) -> Identity:
    """The identity of a run. `target_sample`: what its target's weights are known by."""
    seeded = config.target.model.startswith(random_prefix)
    model = {
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "target_layers": spec.target_layers,
        "layers": spec.layers,
        "taps": list(spec.taps),
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "tokenizer": tokenizer.content_sha256,
        "chat_template": tokenizer.template_sha256,
        "target.model": config.target.model if seeded else None,
        "target.seed": config.target.seed if seeded else None,
        "target_weights": None if seeded else target_sample,
    }
    data = {
        "data.seed": config.data.seed,
        "window.tokens": config.window.tokens,
        "documents": documents.identity,
    }
    return Identity(model=model, data=data)


def _difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    return next((key for key, value in now.items() if saved.get(key) != value), None)
