"""Documents: conversations as token ids and loss masks, and the books of what was refused.

A document has at least one place for an anchor. Its number in `Documents.items` is its identity: order,
anchors and batches refer to it. Documents of a data set lie in Arrow record batches, as a rule in a file that
is mapped into memory: a document is a view, made when it is asked for. Knows nothing of how documents are
made, of windows or of batches.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from dflash.anchors import anchor_candidates
from dflash.data.conversations import RefusedRow

T = TypeVar("T")

document_schema = pa.schema(
    [
        pa.field("ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("loss_mask", pa.list_(pa.field("item", pa.uint8(), nullable=False)), nullable=False),
        pa.field("candidates", pa.int32(), nullable=False),
        pa.field("supervised", pa.int32(), nullable=False),
        pa.field("text", pa.uint64(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
    ]
)
refused_schema = pa.schema(
    [
        pa.field("file", pa.int32(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One conversation of L tokens, ready to be batched. The arrays may be read-only."""

    ids: NDArray[np.int32]  # [L]
    loss_mask: NDArray[np.bool_]  # [L]
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What is known of all N documents without a look at their tokens."""

    lengths: NDArray[np.int64]  # [N]
    candidates: NDArray[np.int64]  # [N] places for an anchor
    supervised: NDArray[np.int64]  # [N] supervised tokens
    texts: NDArray[np.uint64]  # [N], equal for equal token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What became of the rows: `rows_read == rows_usable + len(refused)`."""

    rows_read: int
    rows_usable: int
    refused: Sequence[RefusedRow]
    warnings: tuple[str, ...]
    supervised_share: float  # supervised tokens ÷ tokens, of the documents
    distinct_texts: int  # documents with different token ids
    repeated_ids: int = 0  # ids that more than one row has
    documents_cut: int = 0  # to data.max_length
    rows_too_long: int = 0  # refused for data.max_length, whatever the reason says of it


def text_number(ids: NDArray[np.int32]) -> int:
    """Equal for equal token ids; two different texts of ten million share one with a chance of 3 in 10^6."""
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little")


class _Stored(Sequence[T]):
    """The rows of an Arrow IPC file, read where it lies: views that are made when asked for. Thread-safe."""

    def __init__(self, content: pa.Buffer, files: Sequence[str]) -> None:
        """`files`: what the numbers in column `file` mean."""
        self._files = files
        reader = ipc.open_file(pa.BufferReader(content))
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))

    @abstractmethod
    def _view(self, place: int, row: int) -> T:
        """Row `row` of batch `place`."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, key: int) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[T, ...]: ...
    def __getitem__(self, key: int | slice) -> T | tuple[T, ...]:
        if isinstance(key, slice):
            return tuple(self._at(number) for number in range(*key.indices(len(self))))
        number = int(key) + (len(self) if key < 0 else 0)
        if not 0 <= number < len(self):
            raise IndexError(f"row {key} of {len(self)}")
        return self._at(number)

    def __iter__(self) -> Iterator[T]:
        return (self._at(number) for number in range(len(self)))

    def _at(self, number: int) -> T:
        place = bisect_right(self._ends, number)
        return self._view(place, number - (self._ends[place - 1] if place else 0))


class KnownDocuments(Sequence[Document]):
    """Documents of which the columns are known without a look at every one."""

    identity: str  # see `Documents.identity`

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """What is known of all of them."""


class StoredDocuments(_Stored[Document], KnownDocuments):
    """The documents of `document_schema` in a file."""

    def __init__(self, content: pa.Buffer, files: Sequence[str], identity: str) -> None:
        """`identity`: see `Documents.identity`."""
        super().__init__(content, files)
        self.identity = identity
        self._arrays: list[_Arrays | None] = [None] * len(self._batches)

    @cached_property
    def columns(self) -> Columns:
        """Read in one pass over the small columns; tokens are not touched."""
        lengths = [np.diff(batch["ids"].offsets.to_numpy()) for batch in self._batches]
        return Columns(
            lengths=np.concatenate(lengths).astype(np.int64),
            candidates=self._column("candidates").astype(np.int64),
            supervised=self._column("supervised").astype(np.int64),
            texts=self._column("text"),
        )

    def _column(self, name: str) -> NDArray[Any]:
        return np.concatenate([batch[name].to_numpy() for batch in self._batches])

    def _view(self, place: int, row: int) -> Document:
        arrays = self._arrays[place]
        if arrays is None:
            arrays = self._arrays[place] = _Arrays.of(self._batches[place])
        start, end = arrays.offsets[row], arrays.offsets[row + 1]
        return Document(
            ids=arrays.ids[start:end],
            loss_mask=arrays.mask[start:end],
            file=self._files[arrays.files[row]],
            line=int(arrays.lines[row]),
        )


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The columns of a record batch that views are made of; nothing is copied."""

    offsets: NDArray[np.int32]
    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    files: NDArray[np.int32]
    lines: NDArray[np.int64]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Arrays:
        return cls(
            offsets=batch["ids"].offsets.to_numpy(),
            ids=batch["ids"].values.to_numpy(),
            mask=batch["loss_mask"].values.to_numpy().view(np.bool_),
            files=batch["file"].to_numpy(),
            lines=batch["line"].to_numpy(),
        )


class StoredRefusals(_Stored[RefusedRow]):
    """The refused rows of `refused_schema` in a file."""

    def _view(self, place: int, row: int) -> RefusedRow:
        batch = self._batches[place]
        values = {name: batch[name][row].as_py() for name in refused_schema.names}
        return RefusedRow(**{**values, "file": self._files[values["file"]]})


@dataclass(frozen=True)
class Documents:
    """All usable conversations, in the order of the file; or some of them (`dflash/data/slices.py`)."""

    items: Sequence[Document]
    books: Books

    @cached_property
    def columns(self) -> Columns:
        """Lengths, places for anchors and texts of each document."""
        if isinstance(self.items, KnownDocuments):
            return self.items.columns
        return Columns(
            lengths=self.lengths,
            candidates=np.array([len(anchor_candidates(item.loss_mask)) for item in self.items], np.int64),
            supervised=np.array([item.loss_mask.sum() for item in self.items], np.int64),
            texts=np.array([text_number(item.ids) for item in self.items], np.uint64),
        )

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document."""
        if isinstance(self.items, KnownDocuments):
            return self.columns.lengths
        return np.array([len(item.ids) for item in self.items], np.int64)

    @cached_property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.lengths.sum())

    @cached_property
    def identity(self) -> str:
        """Equal for equal tokens and masks in equal order, and for nothing else; readable."""
        if isinstance(self.items, KnownDocuments):
            return self.items.identity
        digest = IdentityDigest()
        for item in self.items:
            digest.add(item.ids, item.loss_mask)
        return str(digest)


class IdentityDigest:
    """Takes documents in order; as text it is the identity of all of them."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._documents = self._tokens = 0

    def add(self, ids: NDArray[np.int32], loss_mask: NDArray[np.bool_]) -> None:
        """One more document."""
        self._documents += 1
        self._tokens += len(ids)
        for part in (np.int64(len(ids)), ids, loss_mask):
            self._digest.update(part.tobytes())

    def __str__(self) -> str:
        return f"{self._documents} documents, {self._tokens} tokens, blake2b {self._digest.hexdigest()}"
