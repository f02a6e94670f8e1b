"""Reads many conversations quickly: what depends on their roles alone is found once and kept.

A frame is what a template writes around the contents of conversations with the same roles in the same order,
found by `dflash.data.chat_turns` on a conversation of placeholder words. A conversation is rendered once; if
its text is exactly the frame with its contents in it, then the turns are where the frame has them. Otherwise
(a template that looks into contents, tools, blank contents) it is analysed alone. Knows nothing of tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from dflash.data.chat_turns import Message, RenderedChat, RenderError, Span, Template, Tool, Turn

frames_kept: Final = 1024
_slots = ("reasoning_content", "content")  # in the order in which templates write them
_framed_keys = {"role", *_slots}

Shape = tuple[tuple[str, bool], ...]  # role, has thinking; by message


@dataclass(frozen=True, slots=True)
class ReadChat:
    """A conversation as text, with all that is asked about it."""

    text: str
    turns: tuple[Turn, ...]
    verbatim: tuple[Span, ...]  # what came of the contents and thinking that were asked for, in order
    notes: tuple[str, ...] = ()  # what the template left out of the row


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a frame: the slots it spans, and how many characters of the frame it takes on both sides."""

    first: int
    last: int
    lead: int
    tail: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Frame:
    """`pieces[i]` stands before slot `i`, the last piece at the end; `slots`: message and key."""

    pieces: tuple[str, ...]
    slots: tuple[tuple[int, str], ...]
    turns: tuple[_Turn, ...]

    def fit(self, text: str, messages: Sequence[Message], wanted: Collection[int]) -> ReadChat | None:
        """The conversation, when `text` is this frame with the contents of `messages`; None otherwise."""
        spans: list[Span] = []
        at = 0
        for number, (index, key) in enumerate(self.slots):
            at += len(self.pieces[number])
            written = _written(messages[index][key], text, at, self.pieces[number + 1])
            if written is None:
                return None
            spans.append((at, at + len(written)))
            at += len(written)
        if at + len(self.pieces[-1]) != len(text) or not text.startswith(self.pieces[0]):
            return None
        turns = (
            Turn(spans[turn.first][0] - turn.lead, spans[turn.last][1] + turn.tail, turn.notes)
            for turn in self.turns
        )
        verbatim = (span for span, slot in zip(spans, self.slots, strict=True) if slot[0] in wanted)
        return ReadChat(text, tuple(turns), tuple(verbatim))


class ChatReader:
    """Conversations of one template. Not for several threads at once."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._frames: OrderedDict[Shape, _Frame | None] = OrderedDict()

    def read(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), wanted: Collection[int] = ()
    ) -> ReadChat:
        """The text of a conversation, its turns, and where the messages `wanted` are. Raises RenderError."""
        chat = RenderedChat(self._template, messages, tools)
        frame = None if tools else self._frame(messages)
        found = frame.fit(chat.text, messages, wanted) if frame else None
        return found or _analyse(chat, messages, wanted)

    def _frame(self, messages: Sequence[Message]) -> _Frame | None:
        if any(message.keys() - _framed_keys or not message["content"].strip() for message in messages):
            return None
        shape = tuple((message["role"], "reasoning_content" in message) for message in messages)
        if shape not in self._frames:
            self._frames[shape] = _make_frame(self._template, shape)
            if len(self._frames) > frames_kept:
                self._frames.popitem(last=False)
        self._frames.move_to_end(shape)
        return self._frames[shape]


def _analyse(chat: RenderedChat, messages: Sequence[Message], wanted: Collection[int]) -> ReadChat:
    turns = tuple(chat.turns())
    spans = [chat.content(index) for index in wanted if messages[index]["content"]]
    spans += [span for index in wanted if (span := chat.thinking(index)) is not None]
    return ReadChat(chat.text, turns, tuple(sorted(spans)), tuple(chat.notes()))


def _make_frame(template: Template, shape: Shape) -> _Frame | None:
    """The frame of a shape; None where the template cannot be taken apart like that."""
    words = [{key: f"{key[0]}here{index}end" for key in _slots} for index in range(len(shape))]
    messages: list[Message] = [
        {"role": role, **{key: word[key] for key in _slots if thinks or key == "content"}}
        for (role, thinks), word in zip(shape, words, strict=True)
    ]
    try:
        chat = RenderedChat(template, messages)
        turns = chat.turns()
    except RenderError:
        return None
    slots = [
        (i, key)
        for i, message in enumerate(messages)
        for key in _slots
        if words[i][key] in chat.text and key in message
    ]
    pieces: list[str] = []
    rest = chat.text
    for index, key in slots:
        before, _, rest = rest.partition(words[index][key])
        pieces.append(before)
    pieces.append(rest)
    if any(words[i][key] in piece for i, key in slots for piece in pieces):
        return None  # a word twice, or in another order
    return _measure(pieces, slots, messages, turns)


def _measure(
    pieces: list[str], slots: list[tuple[int, str]], messages: list[Message], turns: list[Turn]
) -> _Frame | None:
    """The frame, with its turns measured from the slots that they span."""
    ends, at = [], 0
    for number, (index, key) in enumerate(slots):
        at += len(pieces[number]) + len(messages[index][key])
        ends.append((at - len(messages[index][key]), at))
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    measured = []
    for index, turn in zip(answers, turns, strict=True):
        own = [number for number, slot in enumerate(slots) if slot[0] == index]
        if not own:
            return None
        first, last = own[0], own[-1]
        lead, tail = ends[first][0] - turn.start, turn.end - ends[last][1]
        if not 0 <= lead <= len(pieces[first]) or not 0 <= tail <= len(pieces[last + 1]):
            return None
        measured.append(_Turn(first, last, lead, tail, turn.notes))
    return _Frame(tuple(pieces), tuple(slots), tuple(measured))


def _written(content: str, text: str, at: int, after: str) -> str | None:
    """What stands at `at` for a content that is followed by `after`: it, or it without blanks around it."""
    for variant in (content, content.strip(), content.rstrip(), content.lstrip()):
        if text.startswith(variant, at) and text.startswith(after, at + len(variant)):
            return variant
    return None
