"""The smallest real training runs: a target cut to one layer, a drafter of one, short conversations.

For pages that need many runs of seconds and care for waits and queues, not for what is learned. The pace is
set by whoever runs them. Knows nothing of faults.
"""

from __future__ import annotations

import json
from pathlib import Path

from dflash.contract.config import TrainConfig, load_config

_conversations = 160


def write_conversations(path: Path) -> Path:
    """Conversations of about 60 tokens, none like another. Returns `path`."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"question {row} about numbers"},
                {
                    "role": "assistant",
                    "content": " ".join(f"word{row * word % 97}" for word in range(18 + row * 7 % 16)),
                },
            ]
        }
        for row in range(_conversations)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small_config(data: Path, *, seed: int = 0, max_steps: int = 30) -> TrainConfig:
    """Two targets and a drafter on logical devices with fast links; windows of four batches."""
    return load_config(None).replacing(
        {
            "data.path": str(data),
            "data.seed": seed,
            "target.seed": seed,
            "drafter.seed": seed,
            "drafter.layers": 1,
            "drafter.taps": (0,),
            "drafter.block_size": 4,
            "objective.anchors_per_document": 1,
            "window.tokens": 768,
            "pipeline.split": "2-1",
            "pipeline.token_budget": 256,
            "transport.preset": "peer",
            "devices.kind": "logical",
            "devices.link_gigabytes_per_s": 50.0,
            "devices.pinned_gigabytes_per_s": 50.0,
            "devices.pageable_gigabytes_per_s": 50.0,
            "run.epochs": 1000,
            "run.max_steps": max_steps,
            "run.checkpoint_every": -1,
        }
    )
