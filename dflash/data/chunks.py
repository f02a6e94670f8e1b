"""Some rows made into documents at once, in whatever process: arrays end to end, refusals and counts.

What becomes of a row depends on the row, the configuration and the tokenizer alone, so that chunks may be
made anywhere and put together in their order. Knows nothing of files or processes.

Shapes: D documents of a chunk, T their tokens, R its rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dflash.anchors import anchor_candidates
from dflash.contract.config import TrainConfig
from dflash.data.chat_turns import RenderError
from dflash.data.conversations import Conversation, RefusedRow, normalize
from dflash.data.documents import text_number
from dflash.data.sources import RawRow
from dflash.data.tokenizer import ChatTokenizer, Rendered

Row = RawRow | Conversation | RefusedRow
Begin = Callable[[int, Row], None]
rows_in_chunk = 128  # whatever the number of processes, so that files do not depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What some rows came to, in their order. Fit for sending between processes."""

    rows: int
    ids: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T]
    lengths: NDArray[np.int64]  # [D]
    candidates: NDArray[np.int32]  # [D]
    texts: NDArray[np.uint64]  # [D]
    lines: NDArray[np.int64]  # [D]
    files: tuple[str, ...]  # [D]
    row_ids: NDArray[np.uint64]  # a number for each id of a row, equal for equal ids
    refused: tuple[RefusedRow, ...]
    notes: Counter[str]  # how often what was remarkable
    cut: int  # documents cut to data.max_length
    too_long: int  # rows refused for data.max_length
    shortest_prompt: int | None  # tokens, of the rows whose first answer lies past data.max_length


@dataclass(slots=True)
class _Document:
    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    candidates: int
    file: str
    line: int


@dataclass(slots=True)
class ChunkMaker:
    """Makes chunks of rows. One for each process."""

    config: TrainConfig
    tokenizer: ChatTokenizer

    def make(self, rows: Sequence[Row], begin: Begin = lambda number, row: None) -> Chunk:
        """`begin` is told of each row, with its place in `rows`, before it is looked at."""
        taking = _Taking(self.config, self.tokenizer)
        for number, row in enumerate(rows):
            begin(number, row)
            taking.take(normalize(row) if isinstance(row, RawRow) else row)
        return taking.close()


@dataclass(slots=True)
class _Taking:
    """The rows of one chunk on their way."""

    config: TrainConfig
    tokenizer: ChatTokenizer
    rows: int = 0
    documents: list[_Document] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    row_ids: list[int] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    too_long: int = 0
    prompts: list[int] = field(default_factory=list)

    def take(self, row: Conversation | RefusedRow) -> None:
        self.rows += 1
        if row.id is not None:
            self.row_ids.append(_number_of(row.id))
        outcome = row if isinstance(row, RefusedRow) else self._make_document(row)
        if isinstance(outcome, str):
            outcome = RefusedRow(file=row.file, line=row.line, id=row.id, reason=outcome)
        if isinstance(outcome, RefusedRow):
            self.refused.append(outcome)
        else:
            self.documents.append(outcome)

    def _make_document(self, row: Conversation) -> _Document | str:
        """The document of a row, or the reason why there is none."""
        try:
            rendered = self.tokenizer.render(row.messages, row.tools, row.untrained)
        except RenderError as error:
            return str(error)
        limit, total = self.config.data.max_length, len(rendered.ids)
        if total > limit and self.config.data.too_long == "refuse":
            self.too_long += 1
            return f"too long: {total} tokens, data.max_length is {limit}"
        ids, mask = rendered.ids[:limit], rendered.loss_mask[:limit]
        candidates = len(anchor_candidates(mask))
        if not candidates:
            return self._why_no_anchor(rendered.loss_mask, limit)
        self.cut += total > limit
        self._note(row, rendered)
        return _Document(ids, mask, candidates, row.file, row.line)

    def _note(self, row: Conversation, rendered: Rendered) -> None:
        self.notes.update(row.warnings)
        self.notes.update(rendered.notes)

    def _why_no_anchor(self, whole: NDArray[np.bool_], limit: int) -> str:
        supervised = np.flatnonzero(whole)
        if not len(supervised):
            return "no supervised token: the chat template writes no answer"
        first, kept = int(supervised[0]), int((supervised < limit).sum())
        if not kept:
            self.too_long += 1
            self.prompts.append(first)
            return f"truncated: no supervised token in the first {limit}, the prompt alone has {first}"
        block = self.config.drafter.block_size
        last = int(supervised[kept - 1])
        return (
            f"no anchor: block {block} needs 2 supervised tokens in a row, row has {kept} supervised, "
            f"the last at position {last} of {min(limit, len(whole))}"
        )

    def close(self) -> Chunk:
        documents = self.documents
        none: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        return Chunk(
            rows=self.rows,
            ids=np.concatenate([d.ids for d in documents] or none),
            loss_mask=np.concatenate([d.loss_mask for d in documents] or [np.zeros(0, np.bool_)]),
            lengths=np.array([len(d.ids) for d in documents], np.int64),
            candidates=np.array([d.candidates for d in documents], np.int32),
            texts=np.array([text_number(d.ids) for d in documents], np.uint64),
            lines=np.array([d.line for d in documents], np.int64),
            files=tuple(d.file for d in documents),
            row_ids=np.array(self.row_ids, np.uint64),
            refused=tuple(self.refused),
            notes=+self.notes,
            cut=self.cut,
            too_long=self.too_long,
            shortest_prompt=min(self.prompts, default=None),
        )


def _number_of(row_id: str) -> int:
    digest = hashlib.blake2b(row_id.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
