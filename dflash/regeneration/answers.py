"""What an engine is asked and what it gives back. Knows nothing of files, models or networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]


class EngineError(Exception):
    """Why one answer could not be had though it may be had another time. The message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn to be answered."""

    row: int  # number of the row in the data, from 0; with `turn` it names the random numbers
    turn: int  # number of the answer in its row, from 0
    messages: tuple[Message, ...]  # up to the user's turn
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the target wrote, or why there is nothing."""

    content: str = ""
    reasoning: str | None = None  # thinking that an endpoint gives apart
    tokens: int | None = None  # written, end mark included; None: the endpoint does not say
    finish: str = "stop"  # "stop"; "length": cut off; "refused": the prompt cannot be had; "error": try again
    reason: str = ""  # of "refused" and "error"
    silent: bool = False  # of "error": nothing came that says that the engine is at work
    reworded: bool = False  # the chat template does not make the same tokens of it again


class Engine(Protocol):
    """Answers requests, in any order and as they come."""

    def answer(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Answer]]]:
        """Every request once, in portions. Raises UsageErrors that no other request would escape."""

    def describe(self) -> dict[str, Any]:
        """What answers follow from, as plain values: for the manifest and for telling a resumed run by."""
        ...

    def surroundings(self) -> dict[str, Any]:
        """Where this runs: what may differ between sessions of one file."""
        ...
