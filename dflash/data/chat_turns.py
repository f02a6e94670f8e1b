"""Where the assistant's turns are in a conversation that a chat template has rendered, in characters.

Found structurally: the conversation is rendered again with one content replaced by a word that occurs
nowhere, and once more cut after the turn. Works with any template, with or without generation marks, also
with one that trims or rewrites what it is given. Knows nothing of tokens.

A turn that is trained reaches from the first character of its content to its end-of-turn mark. What the
template writes before the content (header, empty think block) is not trained, nor are the blanks after the
mark: the target never writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

# role, content (text), and what templates may also read: tool_calls, reasoning_content, name
Message = Mapping[str, Any]
Template = Callable[[Sequence[Message], bool], str]  # (messages, add a generation prompt) -> text
Span = tuple[int, int]  # characters [start, end)


class RenderError(ValueError):
    """The chat template cannot express a conversation. The message is a reason for people."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Characters [start, end) of one trained turn."""

    start: int
    end: int
    changed: bool  # the template did not keep the text of the answer as it was


class RenderedChat:
    """One conversation as text, and where its contents are in it."""

    def __init__(self, template: Template, messages: Sequence[Message]) -> None:
        self._template, self._messages = template, messages
        self._word = _absent_word(messages)
        self.text = self._apply(messages)

    def turns(self) -> list[Turn]:
        """The turns to train, in order. Raises RenderError."""
        return [self._find_turn(i) for i, message in enumerate(self._messages) if self._is_answer(i, message)]

    def content(self, index: int) -> Span:
        """The characters that came of the content of message `index`. Raises RenderError."""
        return self._find_content(self.text, self._messages, index)

    def _apply(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        try:
            return self._template(messages, prompt)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RenderError(f"refused by the chat template: {error}") from None

    def _is_answer(self, index: int, message: Message) -> bool:
        """An assistant's message with text, or with tool calls that the template writes."""
        if message["role"] != "assistant":
            return False
        if message["content"].strip() or "tool_calls" not in message:
            return bool(message["content"].strip())
        silent = {key: value for key, value in message.items() if key != "tool_calls"}
        return self._apply(_replacing(self._messages, index, silent)) != self.text

    def _find_turn(self, index: int) -> Turn:
        start, end = self.content(index)
        cut = self._messages[: index + 1]
        text = self._apply(cut)
        if not self.text.startswith(text):  # a turn in the middle looks unlike the last
            _, content_end = self._find_content(text, cut, index)
            text = self.text[:end] + _shared_prefix(text[content_end:], self.text[end:])
        turn_end = len(text[end:].rstrip() or text[end:]) + end
        kept = self.text[start:end].strip() == self._messages[index]["content"].strip()
        return Turn(start, turn_end, not kept)

    def _find_content(self, text: str, messages: Sequence[Message], index: int) -> Span:
        """Where the content of message `index` is in `text`, which is `messages` rendered."""
        word = {**messages[index], "content": self._word}
        before, found, after = self._apply(_replacing(messages, index, word)).partition(self._word)
        if not found or self._word in after:
            times = "more than once" if found else "not at all"
            raise RenderError(f"not fit for the chat template: it writes message {index + 1} {times}")
        start = len(_shared_prefix(before, text))
        if start < len(before):  # the header depends on the content
            start = self._prompt_length(text, messages, index) or start
        tail = len(_shared_prefix(after[::-1], text[start:][::-1]))
        return start, len(text) - tail

    def _prompt_length(self, text: str, messages: Sequence[Message], index: int) -> int:
        """Where in `text` the target would begin to write, 0 when it has no such place."""
        try:
            history = self._apply(messages[:index])
            prompt = self._apply(messages[:index], prompt=True)
        except RenderError:  # some templates refuse a conversation that is cut here
            return 0
        return len(prompt) if prompt != history and text.startswith(prompt) else 0


def _replacing(messages: Sequence[Message], index: int, message: Message) -> list[Message]:
    return [*messages[:index], message, *messages[index + 1 :]]


def _absent_word(messages: Sequence[Message]) -> str:
    """A word that no template changes and no message holds."""
    everything, word = json.dumps(messages, default=str), "contenthere"
    while word in everything:
        word += "x"
    return word


def _shared_prefix(a: str, b: str) -> str:
    if b.startswith(a):
        return a
    return next((a[:i] for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(a, b, key=len))
