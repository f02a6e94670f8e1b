"""From `config.data` to documents: from the cache where it has them, else prepared and kept there.

The key of what is kept has everything that tokens depend on: the bytes of the data files, the tokenizer and
the chat template by content, every knob of `data` but those that only say where and how, and the versions of
what makes tokens, this package's own code among them. Knows nothing of training.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError, DataError, DFlashError
from dflash.contract.streams import write_line
from dflash.data.chunks import Chunk, Row
from dflash.data.conversations import Conversation
from dflash.data.documents import Documents
from dflash.data.embedded_text import embedded_conversations
from dflash.data.intake import Facts, Intake, open_documents, refusal_error
from dflash.data.preparation import Tell, in_process
from dflash.data.sources import read_raw, source_files
from dflash.data.text_rows import line_suffixes
from dflash.data.token_cache import (
    DamagedEntryError,
    Draft,
    TokenCache,
    cache_root,
    key_of,
    map_temporary,
)
from dflash.data.tokenizer import ChatTokenizer
from dflash.data.worker_pool import WorkerPool, choose_workers

embedded_name: Final = "embedded text"
format_number: Final = 1  # of what is kept
# These say where rows are, what is done with documents later, or how the work is done. All others count.
not_of_tokens: Final = frozenset({"path", "seed", "strict", "cache", "workers", "row_seconds", "held_out"})
Stamp = tuple[int, int, int]  # inode, size, time of change
libraries: Final = ("tokenizers", "transformers", "jinja2")
hashing_threads: Final = 4


def load_documents(config: TrainConfig, tokenizer: ChatTokenizer, tell: Tell | None = None) -> Documents:
    """All conversations of `config.data`, read, rendered and cut, or as they were kept of an earlier time.

    `tell` is given lines for people on what is done; stderr without it. Raises DataError when rows cannot be
    read, when none is usable, and with `data.strict` at the first that is not; ConfigError for a cache that
    cannot be used; DFlashError when a worker process fails.
    """
    tell = tell or partial(write_line, sys.stderr)
    if not config.data.path:
        return _Loading(config, tokenizer, tell, ()).prepare_unkept(_embedded_rows())
    files = source_files(Path(config.data.path))
    loading = _Loading(config, tokenizer, tell, files, _stamps(files))
    kept = _open_cache(config, tokenizer, tell)
    return loading.prepare_unkept(loading.rows()) if kept is None else loading.take_from(kept)


def _embedded_rows() -> Iterator[Conversation]:
    for line, row in enumerate(embedded_conversations(), start=1):
        yield Conversation(file=embedded_name, line=line, id=row["id"], messages=tuple(row["messages"]))


def _open_cache(config: TrainConfig, tokenizer: ChatTokenizer, tell: Tell) -> TokenCache | None:
    root = cache_root(config.data.cache)
    if root is None:
        return None
    if not tokenizer.template_text:
        tell(f"tokens: not kept, since nobody knows what the chat template of {tokenizer.name} is made of")
        return None
    try:
        return TokenCache.open(root)
    except ConfigError as error:
        if config.data.cache != "auto":
            raise
        tell(f"tokens: not kept: {error.found}")
        return None


@dataclass(frozen=True, slots=True)
class _Loading:
    config: TrainConfig
    tokenizer: ChatTokenizer
    tell: Tell
    files: Sequence[Path]
    stamps: Sequence[Stamp] = ()  # of the files, before anything was read

    def rows(self) -> Iterator[Row]:
        return read_raw(Path(self.config.data.path))

    def prepare_unkept(self, rows: Iterator[Row]) -> Documents:
        """Into files without a name, gone with the process."""
        with tempfile.TemporaryFile() as documents, tempfile.TemporaryFile() as refused:
            try:
                facts = self._store(rows, documents, refused)
                return open_documents(facts, map_temporary(documents), map_temporary(refused))
            except OSError as error:
                raise _not_stored(error, tempfile.gettempdir()) from error

    def take_from(self, kept: TokenCache) -> Documents:
        """From the cache, where it has them; else prepared and put there."""
        parts = key_parts(self.config, self.tokenizer, self.files)
        told = f"key {key_of(parts)[:12]}: {describe_parts(parts)}"
        try:
            entry = kept.find(parts)
        except DamagedEntryError as error:
            self.tell(f"tokens: the entry in the cache is damaged ({error}) and is made again; {told}")
            return self._prepare_kept(kept, parts)
        if entry is None:
            self.tell(f"tokens: not in the cache, {told}")
            return self._prepare_kept(kept, parts)
        self.tell(f"tokens: cached, {told}")
        documents = open_documents(self._renamed(entry.facts), entry.documents, entry.refused)
        if self.config.data.strict and documents.books.refused:
            raise refusal_error(documents.books.refused[0])
        return documents

    def _prepare_kept(self, kept: TokenCache, parts: dict[str, Any]) -> Documents:
        try:
            with kept.writing(parts) as draft:
                return self._fill(draft)
        except OSError as error:
            raise _not_stored(error, str(kept.directory)) from error

    def _fill(self, draft: Draft) -> Documents:
        facts = self._store(self.rows(), draft.documents, draft.refused)
        entry = draft.publish(facts)
        self.tell(f"tokens: kept, {entry.size_bytes / 1e6:.1f} MB in {draft.directory}")
        return open_documents(facts, entry.documents, entry.refused)

    def _store(self, rows: Iterator[Row], documents: IO[bytes], refused: IO[bytes]) -> Facts:
        sources = [str(file) for file in self.files] or [embedded_name]
        intake = Intake(self.config, self.config.data.path or embedded_name, sources)
        with closing(self._chunks(rows)) as chunks:  # at once: what failed holds on to it
            facts = intake.store(chunks, documents, refused)
        if self._changed():
            raise DataError(
                "the data changed while they were read",
                where=self.config.data.path,
                remedy="start again when nobody writes there",
            )
        return facts

    def _changed(self) -> bool:
        """Whether other files are there, or others than at the beginning, by what `stat` says of them."""
        if not self.config.data.path:
            return False
        try:
            same = source_files(Path(self.config.data.path)) == list(self.files)
            return not same or _stamps(self.files) != list(self.stamps)
        except (OSError, DataError):  # one has gone, or cannot be read any more
            return True

    def _renamed(self, facts: Facts) -> Facts:
        """The files are called what they are called today."""
        return {**facts, "files": [*map(str, self.files), *facts["files"][len(self.files) :]]}

    def _chunks(self, rows: Iterator[Row]) -> Generator[Chunk]:
        data = self.config.data
        count = choose_workers(data.workers, sum(file.stat().st_size for file in self.files))
        if count and self.files:
            self.tell(f"tokens: preparing with {count} worker processes")
            with WorkerPool(count, self.config, self.tokenizer, self.tell) as pool:
                yield from pool.chunks(rows)
            return
        with closing(in_process(rows, self.config, self.tokenizer, self.tell)) as chunks:
            yield from chunks


def _not_stored(error: OSError, where: str) -> DFlashError:
    return DFlashError(
        f"the tokens cannot be written: {error.strerror or error}",
        where=where,
        remedy="make room there, or name another directory with data.cache",
    )


def key_parts(config: TrainConfig, tokenizer: ChatTokenizer, files: Sequence[Path]) -> dict[str, Any]:
    """Everything that the tokens of these files depend on. Reads all of them."""
    knobs = {
        path: value
        for path, value in config.values().items()
        if path.startswith("data.") and path.removeprefix("data.") not in not_of_tokens
    }
    versions = {name: _version(name) for name in ("dflash-tune", *libraries)}
    return {
        "rows": _sha256_of(files),
        "tokenizer": tokenizer.content_sha256,
        "template": tokenizer.template_sha256,
        **knobs,
        "drafter.block_size": config.drafter.block_size,
        "format": format_number,
        "code": _code_sha256(),
        **versions,
    }


def describe_parts(parts: dict[str, Any]) -> str:
    """For people: digests by their beginning."""
    shown = (f"{k} {v[:12] if isinstance(v, str) and len(v) == 64 else v}" for k, v in parts.items())
    return ", ".join(shown)


def _sha256_of(files: Sequence[Path]) -> str:
    """Of the contents, in order; of names only whether a line is a row, as that decides how they are read."""
    whole = hashlib.sha256()
    with ThreadPoolExecutor(hashing_threads) as pool:
        for path, digest in zip(files, pool.map(_digest, files), strict=True):
            whole.update(digest + (b"lines" if path.suffix.lower() in line_suffixes else b""))
    return whole.hexdigest()


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"the data file cannot be read: {error}", where=str(path)) from None


@cache
def _code_sha256() -> str:
    """Of this package and what it uses: other code may make other tokens of the same rows."""
    folder = Path(__file__).parent
    return _sha256_of(sorted([*folder.glob("*.py"), folder.parent / "anchors.py"]))


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _stamps(files: Iterable[Path]) -> list[Stamp]:
    """What changes when somebody writes to a file while it is read."""
    found = (file.stat() for file in files)
    return [(entry.st_ino, entry.st_size, entry.st_mtime_ns) for entry in found]
