"""Chunks in their order, written down as they come: documents, refusals, and in the end the books.

What is kept in memory is a number or two for each row. Knows nothing of where its files lie or of who made
the chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DataError
from dflash.data.chunks import Chunk
from dflash.data.conversations import RefusedRow
from dflash.data.documents import (
    Books,
    Documents,
    IdentityDigest,
    StoredDocuments,
    StoredRefusals,
    document_schema,
    refused_schema,
)

batch_tokens: Final = 1 << 20  # of a record batch, about
batch_rows: Final = 1 << 14
reasons_shown: Final = 5
Facts = dict[str, Any]  # what JSON can hold


@dataclass
class Intake:
    """Takes chunks in the order of their rows. `sources`: the files that rows may come from."""

    config: TrainConfig
    where: str  # what was read, for errors
    sources: Sequence[str]
    _rows_read: int = 0
    _documents: int = 0
    _tokens: int = 0
    _supervised: int = 0
    _cut: int = 0
    _too_long: int = 0
    _refused: int = 0
    _shortest_prompt: int | None = None
    _notes: Counter[str] = field(default_factory=Counter)
    _kinds: Counter[str] = field(default_factory=Counter)
    _ids: list[NDArray[np.uint64]] = field(default_factory=list)
    _texts: list[NDArray[np.uint64]] = field(default_factory=list)
    _identity: IdentityDigest = field(default_factory=IdentityDigest)

    def store(self, chunks: Iterator[Chunk], documents: IO[bytes], refused: IO[bytes]) -> Facts:
        """Write all of them; what `open_documents` needs beside the two files.

        Raises DataError when there is no document, and with data.strict at the first row that is none.
        """
        self._numbers = {name: number for number, name in enumerate(self.sources)}
        with (
            ipc.new_file(documents, document_schema) as document_file,
            ipc.new_file(refused, refused_schema) as refused_file,
        ):
            waiting: list[Chunk] = []
            for chunk in chunks:
                self._count(chunk)
                waiting.append(chunk)
                if _is_full(waiting):
                    self._write(waiting, document_file, refused_file)
                    waiting = []
            self._write(waiting, document_file, refused_file)
        return self._close()

    def _count(self, chunk: Chunk) -> None:
        if chunk.refused and self.config.data.strict:
            raise refusal_error(chunk.refused[0])
        self._rows_read += chunk.rows
        self._documents += len(chunk.lengths)
        self._tokens += len(chunk.ids)
        self._supervised += int(chunk.loss_mask.sum())
        self._cut += chunk.cut
        self._too_long += chunk.too_long
        self._refused += len(chunk.refused)
        self._notes.update(chunk.notes)
        self._kinds.update(row.kind for row in chunk.refused)
        self._ids.append(chunk.row_ids)
        self._texts.append(chunk.texts)
        prompts = [p for p in (self._shortest_prompt, chunk.shortest_prompt) if p is not None]
        self._shortest_prompt = min(prompts, default=None)
        ends = np.cumsum(chunk.lengths)
        for end, length in zip(ends.tolist(), chunk.lengths.tolist(), strict=True):
            self._identity.add(chunk.ids[end - length : end], chunk.loss_mask[end - length : end])

    def _write(self, chunks: list[Chunk], documents: Any, refused: Any) -> None:
        if any(len(chunk.lengths) for chunk in chunks):
            documents.write_batch(self._document_batch(chunks))
        rows = [row for chunk in chunks for row in chunk.refused]
        if rows:
            columns = [
                [self._number(row.file) for row in rows],
                [row.line for row in rows],
                [row.id and _encodable(row.id) for row in rows],
                [_encodable(row.reason) for row in rows],
            ]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, refused_schema, strict=True)]
            refused.write_batch(pa.record_batch(arrays, schema=refused_schema))

    def _document_batch(self, chunks: list[Chunk]) -> pa.RecordBatch:
        ids = np.concatenate([chunk.ids for chunk in chunks])
        mask = np.concatenate([chunk.loss_mask for chunk in chunks]).view(np.uint8)
        lengths = np.concatenate([chunk.lengths for chunk in chunks])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        supervised = np.add.reduceat(mask, offsets[:-1], dtype=np.int32)
        files = np.array([self._number(name) for chunk in chunks for name in chunk.files], np.int32)
        columns = [
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids), type=document_schema[0].type),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(mask), type=document_schema[1].type),
            pa.array(np.concatenate([chunk.candidates for chunk in chunks])),
            pa.array(supervised),
            pa.array(np.concatenate([chunk.texts for chunk in chunks])),
            pa.array(files),
            pa.array(np.concatenate([chunk.lines for chunk in chunks])),
        ]
        return pa.record_batch(columns, schema=document_schema)

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _close(self) -> Facts:
        if not self._documents:
            raise self._nothing_usable()
        texts, ids = np.concatenate(self._texts), np.concatenate(self._ids)
        distinct = len(np.unique(texts))
        repeated = int((np.unique(ids, return_counts=True)[1] > 1).sum())
        return {
            "files": list(self._numbers),
            "identity": str(self._identity),
            "books": {
                "rows_read": self._rows_read,
                "rows_usable": self._documents,
                "warnings": list(self._warnings(distinct, repeated)),
                "supervised_share": self._supervised / self._tokens,
                "distinct_texts": distinct,
                "repeated_ids": repeated,
                "documents_cut": self._cut,
                "rows_too_long": self._too_long,
            },
        }

    def _warnings(self, distinct: int, repeated: int) -> Iterator[str]:
        if self._refused:
            yield f"{self._refused} of {self._rows_read} rows are not trained: {self._common_reasons()}"
        for note, count in self._notes.items():
            yield f"{count} × {note}"
        if self._cut:
            yield f"{self._cut} × a document was cut to {self.config.data.max_length} tokens"
        if repeated:
            yield f"{repeated} × an id occurs in more than one row; every row is trained"
        if distinct < self._documents:
            yield f"{self._documents} documents hold {distinct} different texts; every row is trained"

    def _common_reasons(self) -> str:
        shown = [f"{count} × {kind}" for kind, count in self._kinds.most_common(reasons_shown)]
        return "; ".join(shown) + ("; …" if len(self._kinds) > reasons_shown else "")

    def _nothing_usable(self) -> DataError:
        if not self._rows_read:
            return DataError("the data file holds no rows", where=self.where)
        limit, expected, remedy = self.config.data.max_length, None, None
        if self._shortest_prompt is not None:
            expected = f"an answer within data.max_length ({limit} tokens)"
            remedy = f"raise data.max_length past {self._shortest_prompt}, the shortest prompt"
        elif self._too_long:
            expected, remedy = f"{limit} tokens or fewer", "raise data.max_length, or data.too_long=cut"
        return DataError(
            f"0 usable of {self._rows_read} rows",
            where=self.where,
            found=self._common_reasons(),
            expected=expected,
            remedy=remedy,
        )


def _is_full(chunks: list[Chunk]) -> bool:
    rows = sum(chunk.rows for chunk in chunks)
    return rows >= batch_rows or sum(len(chunk.ids) for chunk in chunks) >= batch_tokens


def _encodable(text: str) -> str:
    """What Arrow's UTF-8 lacks, half of a surrogate pair, is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def refusal_error(row: RefusedRow) -> DataError:
    """What data.strict says of a row."""
    return DataError(
        f"a row cannot be trained: {row.reason}",
        where=f"{row.file}, line {row.line}" + (f" ({row.id})" if row.id else ""),
        remedy="mend or remove the row, or leave such rows out with data.strict=false",
    )


def open_documents(facts: Facts, documents: pa.Buffer, refused: pa.Buffer) -> Documents:
    """The documents that an Intake has stored."""
    books, files = facts["books"], facts["files"]
    return Documents(
        StoredDocuments(documents, files, facts["identity"]),
        Books(**{**books, "warnings": tuple(books["warnings"]), "refused": StoredRefusals(refused, files)}),
    )
