"""From prompts to a file of answers: reads rows, asks the engine, keeps the books, goes on after any end.

Rows are taken up some thousands at a time, so that prompts of like length can share batches while the data
streams; rows of several turns go on together some hundreds at a time, as they are in memory until their last.
Owns what people see of it: lines on stderr, the closing document, the manifest beside the answers.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DataError
from dflash.contract.regeneration import RegenerationChoice
from dflash.contract.rundir import utc_now, write_json
from dflash.contract.streams import write_line
from dflash.data.conversations import Conversation, RefusedRow, normalize
from dflash.data.embedded_text import embedded_conversations
from dflash.data.sources import RawRow, read_raw
from dflash.regeneration.answers import Engine
from dflash.regeneration.manifest import asked_for, check_apart, embedded_name, finished_before, go_on
from dflash.regeneration.openai_engine import OpenAIEngine
from dflash.regeneration.output import AnswerFile
from dflash.regeneration.rows import RowInProgress, refused_entry

rows_at_once: Final = 8192  # that share batches
talks_at_once: Final = 256  # of these, rows of several answers, which are on disk only when all are there
say_every_s: Final = 2.0
errors_told: Final = 5  # on stderr; the document has all
signal_exit_codes: Final = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Stopped(BaseException):
    """A signal asks to end. What is on disk stays; the batch in work is lost."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


def open_engine(config: TrainConfig, choice: RegenerationChoice) -> Engine:
    """The engine that `choice` names. Raises UsageErrors."""
    if choice.engine == "openai":
        return OpenAIEngine(choice, thinking=config.data.thinking)
    from dflash.regeneration.transformers_engine import TransformersEngine

    return TransformersEngine(config, choice, say)


@dataclass(slots=True)
class Regeneration:
    """One session of writing answers."""

    config: TrainConfig
    choice: RegenerationChoice
    engine: Engine
    file: AnswerFile
    started_s: float = field(default_factory=time.monotonic)
    rows_read: int = 0
    new_tokens: int = 0
    reworded: int = 0
    early: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    _said_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Answer every row that is not in the file yet; `errors` has those whose answer could not be had."""
        rows = islice(enumerate(_read_rows(self.config.data.path)), self.choice.limit or None)
        while taken := list(islice(rows, rows_at_once)):
            self.rows_read += len(taken)
            open_rows = [(number, row) for number, row in taken if number not in self.file]
            if self.config.data.strict:
                _check_usable(row for _, row in open_rows)
            refused = [refused_entry(n, row) for n, row in open_rows if isinstance(row, RefusedRow)]
            if refused:
                self.file.append(refused)
            keep = self.choice.cut == "keep"
            begun = [RowInProgress(n, row, keep) for n, row in open_rows if isinstance(row, Conversation)]
            self._answer([row for row in begun if row.turns == 1])
            talks = [row for row in begun if row.turns > 1]
            for first in range(0, len(talks), talks_at_once):
                self._answer(talks[first : first + talks_at_once])

    def _answer(self, rows: list[RowInProgress]) -> None:
        """All turns of these rows, turn by turn."""
        while rows:
            by_number = {row.number: row for row in rows}
            for portion in self.engine.answer([row.request() for row in rows]):
                ended: list[RowInProgress] = []
                for request, answer in portion:
                    row = by_number[request.row]
                    if answer.finish == "error":
                        self._fail(by_number.pop(request.row), answer.reason)
                        continue
                    self.new_tokens += answer.tokens or 0
                    row.take(answer)
                    if row.ended:
                        ended.append(by_number.pop(request.row))
                if ended:
                    self._write(ended)
                self._progress()
            rows = list(by_number.values())

    def _write(self, rows: list[RowInProgress]) -> None:
        self.file.append(row.entry() for row in rows)
        self.reworded += sum(row.reworded for row in rows)
        self.early += sum(bool(row.end_reason and row.finish) for row in rows)

    def _fail(self, row: RowInProgress, reason: str) -> None:
        source = row.conversation
        self.errors.append({"file": source.file, "line": source.line, "id": source.id, "reason": reason})
        if len(self.errors) <= errors_told:
            say(f"no answer: {source.file}, line {source.line}: {reason}")

    def _progress(self) -> None:
        now = time.monotonic()
        if now >= self._said_s + say_every_s:
            self._said_s = now
            speed = self.new_tokens / max(now - self.started_s, 1e-9)
            say(f"{len(self.file)} rows done, {self.new_tokens} new tokens, {speed:.0f} tokens/s")

    def books(self) -> dict[str, Any]:
        """Every row by what became of it, and how fast it went."""
        seconds = time.monotonic() - self.started_s
        refused = {kind: count for kind, count in self.file.kinds.items() if kind != "answered"}
        return {
            "rows_read": self.rows_read,
            "answered": self.file.kinds["answered"],
            "refused": dict(sorted(refused.items())),
            "errors": len(self.errors),
            "ended_early_this_session": self.early,
            "reworded_this_session": self.reworded,
            "tokens": self.file.tokens,
            "session": {
                "new_tokens": self.new_tokens,
                "seconds": round(seconds, 3),
                "tokens_per_s": round(self.new_tokens / seconds, 1) if self.new_tokens else None,
            },
        }


def _check_usable(rows: Iterable[Conversation | RefusedRow]) -> None:
    """Raise DataError for the first row that is refused, as data.strict asks."""
    for row in rows:
        if isinstance(row, RefusedRow):
            raise DataError("a row is not usable, and data.strict is set", where=row.file, found=str(row))


def _read_rows(path: str) -> Iterator[Conversation | RefusedRow]:
    """The prompts of `data.path`, or of the embedded text."""
    if path:
        raw = read_raw(Path(path))
    else:
        raw = (
            RawRow(file=embedded_name, line=line, payload=dict(row))
            for line, row in enumerate(embedded_conversations(), start=1)
        )
    return (normalize(row, prompts=True) for row in raw)


def regenerate(config: TrainConfig, choice: RegenerationChoice) -> tuple[int, dict[str, Any]]:
    """Carry out `choice`; the exit code and the closing document.

    0: every row is answered or refused by reason; 1: some answers could not be had; 130, 143: stopped.
    """
    path = Path(choice.to)
    manifest_path = path.with_name(path.name + ".manifest.json")
    check_apart(config.data.path, path)
    if done := finished_before(config, choice, path, manifest_path):
        say(f"{path} is finished: {done['answered']} of {done['rows_read']} rows answered")
        _check_answered(done, config)
        return 0, done
    engine = open_engine(config, choice)
    identity = {**asked_for(config, choice), "target": engine.describe()}
    with closing(AnswerFile(path)) as file:
        manifest = go_on(file, manifest_path, identity)
        manifest["sessions"].append({"started": utc_now(), **engine.surroundings()})
        write_json(manifest_path, manifest)
        return _carry_out(Regeneration(config, choice, engine, file), manifest, manifest_path)


def _carry_out(work: Regeneration, manifest: dict[str, Any], path: Path) -> tuple[int, dict[str, Any]]:
    file = work.file
    if file.bad_lines or file.dropped_bytes:
        say(
            f"{file.part}: {file.bad_lines} lines are unreadable and passed over, {file.dropped_bytes} bytes "
            "of a torn line are dropped; their rows are asked for again"
        )
    if len(file):
        say(f"going on with {file.part}: {len(file)} rows are done")
    try:
        with _signals():
            work.run()
    except Stopped as stopped:
        say(f"stopped by {stopped}: {len(file)} rows are done; the same command goes on from there")
        return signal_exit_codes[stopped.signal], _close(work, manifest, path, f"stopped by {stopped}")
    if work.errors:
        say(f"{len(work.errors)} rows have no answer yet; the same command asks for them again")
        return 1, _close(work, manifest, path, "answers are missing")
    document = _close(work, manifest, path, "finished")
    file.finish()
    _check_answered(document, work.config)
    return 0, document


def _check_answered(document: dict[str, Any], config: TrainConfig) -> None:
    """Raise DataError when no row of a finished file is answered."""
    if not document["answered"]:
        kinds = "; ".join(f"{count} × {kind}" for kind, count in document["refused"].items())
        where = config.data.path or embedded_name
        raise DataError(f"0 answered of {document['rows_read']} rows", where=where, found=kinds or None)


def _close(work: Regeneration, manifest: dict[str, Any], path: Path, state: str) -> dict[str, Any]:
    books = work.books()
    write_json(path, {**manifest, "state": state, "ended": utc_now(), "books": books})
    closing = {**books, "to": work.choice.to, "manifest": str(path), "state": state}
    return {**closing, "error_rows": work.errors}


def describe(document: dict[str, Any]) -> str:
    """The closing document for people."""
    kinds = Counter(document["refused"]).most_common()
    told = "{answered} of {rows_read} rows answered, {tokens} tokens: {to}"
    lines = [told.format(**document)]
    lines += [f"  refused: {count} × {kind}" for kind, count in kinds]
    if document["refused"]:
        lines.append(f"  each with its reason in {document['to']}.refused")
    if document["ended_early_this_session"]:
        lines.append(f"  {document['ended_early_this_session']} rows end before their last turn")
    if document["reworded_this_session"]:
        count = document["reworded_this_session"]
        lines.append(
            f"warning: {count} × the chat template makes other tokens of an answer than were written"
        )
    return "\n".join(lines)


class _signals:  # noqa: N801 - reads as a statement
    """SIGINT and SIGTERM raise `Stopped` in the block. Main thread only."""

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._raise) for number in signal_exit_codes}

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)


def say(text: str) -> None:
    """One line for people."""
    write_line(sys.stderr, text)
