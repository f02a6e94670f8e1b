"""`python -m dflash` for pages that start trainers by the dozen: quick weights, drawn lengths.

    python benchmarks/shaped_trainer.py [--lengths 300:700] [--documents 1200] [--pace] [--most-tokens N] \
        run CONFIG | serve --socket PATH

Weights are one block of seeded normal numbers over and over, so that 10^10 of them take seconds and are the
same in every process; documents are random tokens. A target called random:qwen3-8b-18-layers is cut to so
many. With `--pace`, on logical devices, work takes a time of its own by sleeping, a part of it for every
batch; a batch of over `--most-tokens` then runs out of memory, as it would on a GPU. Else it is the trainer.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch
from torch import Tensor, nn

from dflash.contract.model_shapes import random_shapes

M = TypeVar("M", bound=nn.Module)
block_values: Final = 1 << 22
seed: Final = 1
# Of paced work: seconds of a batch, and of a token in it.
forward_s: Final = (0.012, 1 / 5000)
train_s: Final = (0.008, 1 / 6000)


def main() -> int:
    """Be the trainer."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--lengths", default="300:700", help="of documents, shortest and longest")
    parser.add_argument("--documents", type=int, default=1200)
    parser.add_argument("--pace", action="store_true")
    parser.add_argument("--most-tokens", type=int, default=0, help="that a batch may have; 0: any number")
    choice, arguments = parser.parse_known_args()
    _make_ready(choice)
    from dflash.__main__ import main as trainer

    return trainer(arguments)


def register_shape(name: str) -> str:
    """Make `random:NAME` known where NAME is a shape's with `-N-layers` behind it. Returns `random:NAME`."""
    found = re.fullmatch(r"(.+)-(\d+)-layers", name)
    if found and found[1] in random_shapes:
        random_shapes[name] = {**random_shapes[found[1]], "num_hidden_layers": int(found[2])}
    return f"random:{name}"


def _make_ready(choice: argparse.Namespace) -> None:
    """Put our own in place of what the trainer would make."""
    import dflash.held_parts as parts
    import dflash.target_weights as weights
    import dflash.trainer as trainer
    from benchmarks.drafter_case import make_documents

    for name in ("qwen3-8b", "qwen3-1.7b", "tiny"):
        for layers in range(1, 65):
            register_shape(f"{name}-{layers}-layers")
    low, high = map(int, choice.lengths.split(":"))
    draw = np.random.default_rng(7)
    lengths = [int(n) for n in draw.integers(low, high + 1, choice.documents)]

    def documents(config: Any, *_: Any) -> Any:
        shape = random_shapes[config.target.model.removeprefix("random:")]
        return make_documents(lengths, vocab=shape["vocab_size"] - 1)

    def init_drafter(spec: Any, _seed: int) -> Any:
        from dflash.drafter import Drafter

        return _build(lambda: Drafter(spec), std=0.02, dtype=torch.float32)

    replaced: dict[Any, dict[str, Any]] = {
        parts: {"load_documents": documents, "init_drafter": init_drafter},
        weights: {"build_seeded": _build, "draw_seeded": _draw},
        trainer: {"prepare": partial(_prepare, choice, trainer.prepare)},
    }
    for owner, names in replaced.items():
        for name, ours in names.items():
            assert hasattr(owner, name)
            setattr(owner, name, ours)


def _build(build: Callable[[], M], *, std: float, dtype: torch.dtype, **_: Any) -> M:
    with torch.device("meta"):
        module = build().to(dtype)
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        if parameter.ndim == 1:
            parameter.data.fill_(1.0)
        else:
            _fill(parameter.data, std)
    return module


def _draw(_name: str, shape: tuple[int, ...], *, std: float, dtype: torch.dtype, **_: Any) -> Tensor:
    matrix = torch.empty(shape, dtype=dtype)
    _fill(matrix, std)
    return matrix


def _fill(matrix: Tensor, std: float) -> None:
    """With one block over and over."""
    generator = torch.Generator().manual_seed(seed)
    flat = matrix.view(-1)
    block = torch.empty(min(block_values, len(flat))).normal_(0.0, std, generator=generator).to(matrix.dtype)
    for start in range(0, len(flat), len(block)):
        part = flat[start : start + len(block)]
        part.copy_(block[: len(part)])


def _prepare(choice: argparse.Namespace, prepare: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A trainer, paced where that was asked for; its roles may have been paced for a run before."""
    trainer = prepare(*arguments, **named)
    if not choice.pace:
        return trainer
    for roles, name, cost in (
        (trainer.targets, "forward", forward_s),
        (trainer.group.replicas, "train", train_s),
    ):
        for role in roles:
            vars(role).pop(name, None)
            setattr(role, name, partial(_take_time, getattr(role, name), cost, choice.most_tokens))
    return trainer


def _take_time(work: Callable[[Any], Any], cost: tuple[float, float], most_tokens: int, item: Any) -> Any:
    batch = getattr(item, "batch", item)
    if most_tokens and batch.tokens > most_tokens:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (a paced device)")
    due_s = time.monotonic() + cost[0] + cost[1] * batch.tokens
    made = work(item)
    time.sleep(max(due_s - time.monotonic(), 0.0))
    return made


if __name__ == "__main__":
    sys.exit(main())
