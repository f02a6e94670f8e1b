"""What some rows come to."""

from __future__ import annotations

from pathlib import Path

from dflash.contract.config import load_config
from dflash.data.chunks import ChunkMaker
from dflash.data.sources import read_raw
from dflash.data.tokenizer import open_embedded_tokenizer

data = Path(__file__).parents[3] / "data"


def test_a_chunk_counts_what_is_in_it() -> None:
    names = ("talks.jsonl", "cases/data/c001_roles_not_alternating.jsonl")
    rows = [row for name in names for row in read_raw(data / name)]
    begun: list[tuple[int, int]] = []
    maker = ChunkMaker(load_config(None, ("data.max_length=256",)), open_embedded_tokenizer())
    chunk = maker.make(rows, lambda number, row: begun.append((number, row.line)))
    assert (chunk.rows, len(chunk.lengths), len(chunk.refused)) == (105, 100, 5)
    assert len(chunk.ids) == len(chunk.loss_mask) == chunk.lengths.sum()
    assert chunk.lengths.max() <= 256
    assert begun == [(number, row.line) for number, row in enumerate(rows)]
