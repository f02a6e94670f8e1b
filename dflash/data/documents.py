"""Documents: conversations as token ids and loss masks, cut to length, and the books of what was refused.

A document has at least one place for an anchor. Its number in `Documents.items` is its identity: order,
anchors and batches refer to it. Knows nothing of windows or batches.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.anchors import anchor_candidates
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DataError
from dflash.data.chat_turns import RenderError
from dflash.data.conversations import Conversation, RefusedRow, read_conversations
from dflash.data.embedded_text import embedded_conversations
from dflash.data.tokenizer import ChatTokenizer

embedded_name = "embedded text"
reasons_shown = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One conversation of L tokens, ready to be batched."""

    ids: NDArray[np.int32]  # [L]
    loss_mask: NDArray[np.bool_]  # [L]
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What became of the rows: `rows_read == rows_usable + len(refused)`."""

    rows_read: int
    rows_usable: int
    refused: tuple[RefusedRow, ...]
    warnings: tuple[str, ...]
    supervised_share: float  # supervised tokens ÷ tokens, of the documents
    distinct_texts: int  # documents with different token ids


@dataclass(frozen=True)
class Documents:
    """All usable conversations, in the order of the file."""

    items: tuple[Document, ...]
    books: Books

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document."""
        return np.array([len(document.ids) for document in self.items], np.int64)

    @cached_property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.lengths.sum())

    @cached_property
    def identity(self) -> str:
        """Equal for equal tokens and masks in equal order, and for nothing else; readable."""
        digest = hashlib.blake2b(digest_size=8)
        for document in self.items:
            for part in (np.int64(len(document.ids)), document.ids, document.loss_mask):
                digest.update(part.tobytes())
        return f"{len(self.items)} documents, {self.tokens} tokens, blake2b {digest.hexdigest()}"


def load_documents(config: TrainConfig, tokenizer: ChatTokenizer) -> Documents:
    """Read, render and cut all conversations of `config.data`.

    Raises DataError when the file cannot be read, when no row is usable, and with `data.strict` at the first
    row that is not.
    """
    intake = _Intake(config, tokenizer)
    for row in _rows(config.data.path):
        intake.take(row)
    return intake.close()


def _rows(path: str) -> Iterator[Conversation | RefusedRow]:
    if path:
        yield from read_conversations(Path(path))
        return
    for line, row in enumerate(embedded_conversations(), start=1):
        yield Conversation(file=embedded_name, line=line, id=row["id"], messages=tuple(row["messages"]))


@dataclass(slots=True)
class _Intake:
    """Rows on their way to documents, counted."""

    config: TrainConfig
    tokenizer: ChatTokenizer
    rows_read: int = 0
    items: list[Document] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)
    texts: set[bytes] = field(default_factory=set)
    supervised: int = 0
    shortest_prompt: int | None = None  # of the documents cut before their first answer

    def take(self, row: Conversation | RefusedRow) -> None:
        self.rows_read += 1
        if row.id is not None:
            self.ids[row.id] += 1
        if isinstance(row, RefusedRow):
            self._refuse(row)
            return
        outcome = self._make_document(row)
        if isinstance(outcome, str):
            self._refuse(RefusedRow(file=row.file, line=row.line, id=row.id, reason=outcome))
            return
        self.notes.update(row.warnings)
        self.items.append(outcome)
        self.supervised += int(outcome.loss_mask.sum())
        self.texts.add(hashlib.blake2b(outcome.ids.tobytes(), digest_size=16).digest())

    def _refuse(self, row: RefusedRow) -> None:
        if self.config.data.strict:
            raise DataError(
                f"a row cannot be trained: {row.reason}",
                where=f"{row.file}, line {row.line}" + (f" ({row.id})" if row.id else ""),
                remedy="mend or remove the row, or leave such rows out with data.strict=false",
            )
        self.refused.append(row)

    def _make_document(self, row: Conversation) -> Document | str:
        """The document of a row, or the reason why there is none."""
        try:
            rendered = self.tokenizer.render(row.messages)
        except RenderError as error:
            return str(error)
        cut, total = self.config.data.max_length, len(rendered.ids)
        ids, mask = rendered.ids[:cut], rendered.loss_mask[:cut]
        if not len(anchor_candidates(mask)):
            return self._why_no_anchor(rendered.loss_mask, cut)
        self.notes["the chat template changed the text of an answer"] += rendered.changed_answers
        self.notes[f"a document was cut to {cut} tokens"] += total > cut
        return Document(ids=ids.copy(), loss_mask=mask.copy(), file=row.file, line=row.line)

    def _why_no_anchor(self, whole: NDArray[np.bool_], cut: int) -> str:
        supervised = np.flatnonzero(whole)
        if not len(supervised):
            return "no supervised token: the chat template writes no answer"
        first, kept = int(supervised[0]), int((supervised < cut).sum())
        if not kept:
            known = self.shortest_prompt
            self.shortest_prompt = first if known is None else min(first, known)
            return f"truncated: no supervised token in the first {cut}, the prompt alone has {first}"
        block = self.config.drafter.block_size
        last = int(supervised[kept - 1])
        return (
            f"no anchor: block {block} needs 2 supervised tokens in a row, row has {kept} supervised, "
            f"the last at position {last} of {min(cut, len(whole))}"
        )

    def close(self) -> Documents:
        if not self.items:
            raise self._nothing_usable()
        tokens = sum(len(document.ids) for document in self.items)
        books = Books(
            rows_read=self.rows_read,
            rows_usable=len(self.items),
            refused=tuple(self.refused),
            warnings=tuple(self._warnings()),
            supervised_share=self.supervised / tokens,
            distinct_texts=len(self.texts),
        )
        return Documents(tuple(self.items), books)

    def _warnings(self) -> Iterator[str]:
        if self.refused:
            yield f"{len(self.refused)} of {self.rows_read} rows are not trained: {self._common_reasons()}"
        for note, count in self.notes.items():
            if count:
                yield f"{count} × {note}"
        repeated = sum(count > 1 for count in self.ids.values())
        if repeated:
            yield f"{repeated} × an id occurs in more than one row; every row is trained"
        if len(self.texts) < len(self.items):
            yield f"{len(self.items)} documents hold {len(self.texts)} different texts; every row is trained"

    def _common_reasons(self) -> str:
        kinds = Counter(row.kind for row in self.refused)
        shown = [f"{count} × {kind}" for kind, count in kinds.most_common(reasons_shown)]
        return "; ".join(shown) + ("; …" if len(kinds) > reasons_shown else "")

    def _nothing_usable(self) -> DataError:
        details: dict[str, Any] = {"where": self.config.data.path or embedded_name}
        if not self.rows_read:
            return DataError("the data file holds no rows", **details)
        if self.shortest_prompt is not None:
            details["expected"] = f"an answer within data.max_length ({self.config.data.max_length} tokens)"
            details["remedy"] = f"raise data.max_length past {self.shortest_prompt}, the shortest prompt"
        return DataError(f"0 usable of {self.rows_read} rows", found=self._common_reasons(), **details)
