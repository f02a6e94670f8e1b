"""Where the assistant's turns are in a conversation that a chat template has rendered, in characters.

Found structurally: the conversation is rendered again with one content replaced by a word that occurs
nowhere, once more cut after the turn, and once more cut before it with a generation prompt. Works with any
template, with or without generation marks, also with one that trims or rewrites what it is given. Knows
nothing of tokens.

A turn that is trained is what the target itself would write: from where the generation prompt ends, thinking
included, to the end-of-turn mark. An empty think block that the template puts before an answer is the prompt
of an answer without thinking, so it is not trained, nor are the blanks after the mark. Where the template has
no generation prompt that fits, a turn begins with its first own character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from jinja2 import TemplateError

# role, content (text), and what templates may also read: tool_calls, reasoning_content, name
Message = Mapping[str, Any]
Tool = Mapping[str, Any]
Span = tuple[int, int]  # characters [start, end)

# What a template may do to an answer, as warnings.
thinking_dropped: Final = "the chat template left out the thinking of an answer"
empty_think_added: Final = "the chat template put an empty think block before an answer; it is not trained"
text_added: Final = "the chat template put text before an answer; it is trained, as after a generation prompt"
prompt_unfit: Final = (
    "the generation prompt does not fit before an answer; it is trained from its first character"
)
blanks_changed: Final = "the chat template changed blanks within an answer"
answer_changed: Final = "the chat template changed the text of an answer"
calls_dropped: Final = "the chat template left out the tool calls of a row"
tools_dropped: Final = "the chat template left out the tools of a row"

_empty_think = re.compile(r"\A\s*<think>\s*</think>\s*")


class Template(Protocol):
    """A chat template. It may raise what Jinja raises."""

    def __call__(self, messages: Sequence[Message], prompt: bool, tools: Sequence[Tool] = (), /) -> str:
        """`messages` as text; `prompt`: and what makes the target answer."""


class RenderError(ValueError):
    """The chat template cannot express a conversation. The message is a reason for people."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Characters [start, end) of one trained turn."""

    start: int
    end: int
    notes: tuple[str, ...] = ()  # what the template did to the answer


class RenderedChat:
    """One conversation as text, and where its contents are in it."""

    def __init__(self, template: Template, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        self._template, self._messages, self._tools = template, messages, tools
        self._word = absent_word(messages)
        self.text = self._apply(messages)

    def turns(self) -> list[Turn]:
        """The turns to train, in order. Raises RenderError."""
        return [self._find_turn(i) for i, message in enumerate(self._messages) if self._is_answer(i, message)]

    def content(self, index: int) -> Span:
        """The characters that came of the content of message `index`. Raises RenderError."""
        return self._find_content(self.text, self._messages, index)

    def thinking(self, index: int) -> Span | None:
        """The characters that came of `reasoning_content`; None when there are none. Raises RenderError."""
        if "reasoning_content" not in self._messages[index]:
            return None
        return self._find(self.text, self._messages, index, "reasoning_content")

    def notes(self) -> list[str]:
        """What the template left out of the row as a whole."""
        notes = []
        if any("tool_calls" in message for message in self._messages):
            silent = [{k: v for k, v in message.items() if k != "tool_calls"} for message in self._messages]
            if self._apply(silent) == self.text:
                notes.append(calls_dropped)
        if self._tools and _render(self._template, self._messages, False, ()) == self.text:
            notes.append(tools_dropped)
        return notes

    def prompt(self) -> str:
        """The conversation up to where the target would write its next answer. Raises RenderError."""
        return self._apply(self._messages, prompt=True)

    def _apply(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        return _render(self._template, messages, prompt, self._tools)

    def _is_answer(self, index: int, message: Message) -> bool:
        """An assistant's message with text, or with tool calls that the template writes."""
        if message["role"] != "assistant":
            return False
        if message["content"].strip() or "tool_calls" not in message:
            return bool(message["content"].strip())
        silent = {key: value for key, value in message.items() if key != "tool_calls"}
        return self._apply(_replacing(self._messages, index, silent)) != self.text

    def _find_turn(self, index: int) -> Turn:
        message = self._messages[index]
        first, end = self.content(index)
        written = self.text[first:end]
        thinking = self.thinking(index)
        start, notes = self._begin(
            index, min(first, thinking[0]) if thinking else first, thinking is not None
        )
        if thinking is None and "reasoning_content" in message:
            notes.append(thinking_dropped)
        given = message["content"]
        bare = given if written.strip() == given.strip() else _empty_think.sub("", given, count=1)
        if bare != given and empty_think_added in notes:
            notes.remove(empty_think_added)  # the answer had one
        notes += compare_answer(bare, written)
        return Turn(start, self._end(index, end), tuple(notes))

    def _begin(self, index: int, first: int, thinks: bool) -> tuple[int, list[str]]:
        """Where the target begins to write, given the first character of its answer; what stands between."""
        prompt = self._prompt(index)
        if prompt is None:
            return first, []
        if not self.text.startswith(prompt) or len(prompt) > first:
            return first, [prompt_unfit] if self._is_prompt(index, prompt) else []
        between = self.text[len(prompt) : first]
        if not between.strip():
            return len(prompt), []
        if not self._is_prompt(index, prompt):  # without one, what stands between is the header
            return first, []
        if thinks:
            return len(prompt), []
        return (
            (first, [empty_think_added]) if _empty_think.fullmatch(between) else (len(prompt), [text_added])
        )

    def _end(self, index: int, end: int) -> int:
        """Past the last character of the turn's end mark; `end`: of its content."""
        cut = self._messages[: index + 1]
        text = self.text if len(cut) == len(self._messages) else self._apply(cut)
        if not self.text.startswith(text):  # a turn in the middle looks unlike the last
            _, content_end = self._find_content(text, cut, index)
            text = self.text[:end] + _shared_prefix(text[content_end:], self.text[end:])
        return len(text[end:].rstrip() or text[end:]) + end

    def _find_content(self, text: str, messages: Sequence[Message], index: int) -> Span:
        span = self._find(text, messages, index, "content")
        if span is None:
            raise RenderError(f"not fit for the chat template: it writes message {index + 1} not at all")
        return span

    def _find(self, text: str, messages: Sequence[Message], index: int, key: str) -> Span | None:
        """Where the `key` of message `index` is in `text`, which is `messages` rendered; None: nowhere."""
        word = {**messages[index], key: self._word}
        before, found, after = self._apply(_replacing(messages, index, word)).partition(self._word)
        if not found:
            return None
        if self._word in after:
            raise RenderError(f"not fit for the chat template: it writes message {index + 1} more than once")
        start = len(_shared_prefix(before, text))
        if start < len(before):  # the header depends on the content
            prompt = self._prompt(index)
            fits = prompt is not None and text.startswith(prompt) and self._is_prompt(index, prompt)
            start = len(prompt) if prompt is not None and fits else start
        tail = len(_shared_prefix(after[::-1], text[start:][::-1]))
        return start, len(text) - tail

    def _prompt(self, index: int) -> str | None:
        """What the target would go on from to write message `index`; None when the template refuses that.

        A template that knows no generation prompt has it go on where the history ends.
        """
        try:
            return self._apply(self._messages[:index], prompt=True)
        except RenderError:  # some templates refuse a conversation that is cut here
            return None

    def _is_prompt(self, index: int, prompt: str) -> bool:
        """Whether `prompt` holds more than the messages before `index`."""
        return prompt != self._apply(self._messages[:index])


def compare_answer(given: str, written: str) -> list[str]:
    """Notes on what a template made of an answer. Blanks around it are not spoken of."""
    if given.strip() == written.strip():
        return []
    if given.split() == written.split():
        return [blanks_changed]
    thought, closed, answer = given.partition("</think>")
    if closed and "<think>" in thought and answer.strip() == written.strip():
        return [thinking_dropped]
    return [blanks_changed] if "".join(given.split()) == "".join(written.split()) else [answer_changed]


def _render(template: Template, messages: Sequence[Message], prompt: bool, tools: Sequence[Tool]) -> str:
    try:
        return template(messages, prompt, tools) if tools else template(messages, prompt)
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise RenderError(f"refused by the chat template: {error}") from None


def _replacing(messages: Sequence[Message], index: int, message: Message) -> list[Message]:
    return [*messages[:index], message, *messages[index + 1 :]]


def absent_word(messages: Sequence[Message]) -> str:
    """A word that no template changes and no message holds."""
    everything, word = json.dumps(messages, default=str), "contenthere"
    while word in everything:
        word += "x"
    return word


def _shared_prefix(a: str, b: str) -> str:
    if b.startswith(a):
        return a
    return next((a[:i] for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(a, b, key=len))
