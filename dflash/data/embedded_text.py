"""Chat conversations from text that every CPython carries: the language reference behind `help("topics")`.

Lets the trainer run with nothing downloaded. The answers are passages of the reference, the questions name
the section they come from; lengths are mixed on purpose. Deterministic for one version of CPython; other
versions word some passages differently. Knows nothing of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any

from dflash.contract.errors import DataError

# Passages close at the first paragraph end past these many characters, in turn: from a few dozen tokens to a
# few hundred, so that packing and anchors meet documents of unequal length.
passage_characters = (110, 260, 420, 180, 640, 330, 900, 520)
paragraph_characters = 1200  # longer paragraphs (tables, grammars) are cut between lines
least_characters = 40  # a shorter passage teaches nothing; it joins its neighbour

_heading = re.compile(r"(?P<title>\S[^\n]*)\n(?P<rule>([*=\-~^\"])\3{2,})\n")


@cache
def embedded_conversations() -> tuple[dict[str, Any], ...]:
    """Rows as a JSONL file would hold them: `{"id": ..., "messages": [user, assistant]}`. Several hundred."""
    sizes = cycle(passage_characters)
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for topic, title, body in _sections():
        for part, passage in enumerate(_passages(body, sizes), start=1):
            question = f"What does the Python reference say about {title}?"
            if part > 1:
                question = f"Go on about {title}, part {part}."
            if passage in seen:
                continue
            seen.add(passage)
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": passage}]
            rows.append({"id": f"{topic}-{len(rows)}", "messages": messages})
    return tuple(rows)


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "this Python lacks the text that the embedded data is made of",
            where="module pydoc_data.topics",
            remedy="name conversations of your own with data.path, or install Python's full standard library",
        ) from None
    return dict(topics)


def _sections() -> Iterator[tuple[str, str, str]]:
    """(topic, section title, body) of every section; one that several topics share comes once."""
    seen: set[str] = set()
    for topic, text in sorted(_topics().items()):
        for title, body in _split_sections(topic, text):
            if body not in seen:
                seen.add(body)
                yield topic, title, body


def _split_sections(topic: str, text: str) -> Iterator[tuple[str, str]]:
    headings = [heading for heading in _heading.finditer(text) if _is_heading(heading, text)]
    ends = [*(heading.start() for heading in headings), len(text)]
    yield topic, text[: ends[0]]
    for heading, end in zip(headings, ends[1:], strict=True):
        yield " ".join(heading["title"].split()), text[heading.end() : end]


def _is_heading(heading: re.Match[str], text: str) -> bool:
    """A rule about as long as the line above it, which begins the text or follows a blank line."""
    alone = heading.start() == 0 or text[: heading.start()].endswith("\n\n")
    return alone and abs(len(heading["rule"]) - len(heading["title"])) <= 2


def _passages(body: str, sizes: Iterator[int]) -> list[str]:
    """Consecutive paragraphs joined to passages of the wanted sizes."""
    passages: list[str] = []
    current, wanted = "", next(sizes)
    for paragraph in _paragraphs(body):
        current = f"{current}\n\n{paragraph}" if current else paragraph
        if len(current) >= max(wanted, least_characters):
            passages.append(current)
            current, wanted = "", next(sizes)
    if len(current) >= least_characters:
        passages.append(current)
    elif current and passages:
        passages[-1] += f"\n\n{current}"
    return passages


def _paragraphs(body: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", body):
        piece = ""
        for line in (text.rstrip() for text in block.strip("\n").split("\n")):
            if piece and len(piece) + len(line) >= paragraph_characters:
                yield piece
                piece = ""
            piece = f"{piece}\n{line}" if piece else line
        if piece.strip():
            yield piece
