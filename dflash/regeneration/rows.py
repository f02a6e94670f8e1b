"""One row on its way: its prompts, the answers it has so far, and what it comes to in the end.

Turns are answered one after the other, each with the answers before it as history. A row ends before a turn
that has no whole answer; what it has by then is kept. Knows nothing of engines or files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dflash.data.conversations import Conversation, RefusedRow
from dflash.regeneration.answers import Answer, Request


@dataclass(slots=True)
class RowInProgress:
    """A conversation with open answers."""

    number: int  # of the row in the data, from 0
    conversation: Conversation
    keep_cut: bool
    messages: list[dict[str, Any]] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)  # by answer
    tokens: list[int | None] = field(default_factory=list)  # by answer
    reworded: int = 0
    end_reason: str = ""  # why it ended before its last turn
    ended: bool = False

    @property
    def turns(self) -> int:
        """How many answers are wanted."""
        return sum(message["role"] == "assistant" for message in self.conversation.messages)

    def request(self) -> Request:
        """The next turn to be answered."""
        asked = self.conversation.messages[len(self.messages) :]
        until = next(i for i, message in enumerate(asked) if message["role"] == "assistant")
        self.messages += [dict(message) for message in asked[:until]]
        return Request(
            row=self.number,
            turn=len(self.finish),
            messages=tuple(self.messages),
            tools=self.conversation.tools,
        )

    def take(self, answer: Answer) -> None:
        """The answer to the last request; one with `finish` "error" is not for rows."""
        cut = answer.finish == "length"
        blank = not answer.content.strip()
        thought = blank and bool(answer.reasoning)
        turn = f"answer {len(self.finish) + 1}"
        if answer.finish == "refused":
            self._end(answer.reason)
        elif blank and not (cut and thought):
            self._end(f"empty answer: {turn}" + " is thinking alone" * thought)
        elif cut and (thought or not self.keep_cut):
            self._end(f"cut off: {turn} has no end after {answer.tokens} tokens")
        else:
            message: dict[str, Any] = {"role": "assistant", "content": answer.content}
            if answer.reasoning:
                message["reasoning_content"] = answer.reasoning
            self.messages.append(message)
            self.finish.append(answer.finish)
            self.tokens.append(answer.tokens)
            self.reworded += answer.reworded
            if cut:
                self.end_reason = f"cut off: {turn}" if self._open() else ""
            self.ended = cut or not self._open()

    def _open(self) -> bool:
        return len(self.messages) < len(self.conversation.messages)

    def _end(self, reason: str) -> None:
        self.end_reason, self.ended = reason, True

    def entry(self) -> dict[str, Any]:
        """What goes into the file of answers."""
        row = self.conversation
        if not self.finish:
            return refused_entry(
                self.number, RefusedRow(file=row.file, line=row.line, id=row.id, reason=self.end_reason)
            )
        while self.messages[-1]["role"] != "assistant":
            self.messages.pop()
        source: dict[str, Any] = {
            "file": row.file,
            "line": row.line,
            "finish": self.finish,
            "tokens": self.tokens,
        }
        if self.end_reason:
            source["ended_early"] = self.end_reason
        value: dict[str, Any] = {} if row.id is None else {"id": row.id}
        value["messages"] = self.messages
        if row.tools:
            value["tools"] = list(row.tools)
        value["regenerated"] = source
        return {"number": self.number, "tokens": sum(filter(None, self.tokens)), "row": value}


def refused_entry(number: int, row: RefusedRow) -> dict[str, Any]:
    """What goes into the file of answers for a row that has none."""
    return {
        "number": number,
        "refused": {"file": row.file, "line": row.line, "id": row.id, "reason": row.reason},
    }
