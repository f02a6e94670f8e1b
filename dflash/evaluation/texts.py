"""The texts that are measured: prompts with the target's greedy answers, or with those of the data.

Knows nothing of drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash.contract.errors import DataError
from dflash.data.documents import Document
from dflash.evaluation.acceptance import Answer, answers_in
from dflash.evaluation.whole_target import WholeTarget

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt with what was answered; of the data, whole conversations."""

    file: str
    line: int
    ids: Tensor  # [n] int64
    answers: tuple[Answer, ...]


def choose_documents(documents: Sequence[Document], most: int) -> list[Document]:
    """At most so many, evenly spread over the data."""
    places = np.linspace(0, len(documents) - 1, min(most, len(documents)))
    return [documents[int(place)] for place in np.unique(places.round())]


def given_texts(documents: Sequence[Document]) -> Iterator[Text]:
    """The documents as they stand; their answers need not be what the target would write."""
    for document in documents:
        if answers := answers_in(document.loss_mask):
            ids = torch.from_numpy(np.array(document.ids, np.int64))
            yield Text(file=document.file, line=document.line, ids=ids, answers=answers)


def answered_texts(
    documents: Sequence[Document],
    target: WholeTarget,
    *,
    max_new_tokens: int,
    stops: frozenset[int],
    at_once: int,
    tell: Tell,
) -> Iterator[Text]:
    """What stands before the first answer of each document, answered by the target, `at_once` at a time.

    Prompts of like length go together, so that little is padded. Raises DataError when none has a prompt.
    """
    prompts = [(document, _prompt(document)) for document in documents]
    prompts = sorted((pair for pair in prompts if pair[1]), key=lambda pair: len(pair[1]))
    if not prompts:
        raise DataError("no text has a prompt before its first answer")
    for first in range(0, len(prompts), at_once):
        group = prompts[first : first + at_once]
        written = target.answer([prompt for _, prompt in group], max_new_tokens, stops)
        tell(f"answered {first + len(group)} of {len(prompts)} prompts")
        for (document, prompt), answer in zip(group, written, strict=True):
            start, end = len(prompt), len(prompt) + len(answer)
            known = Answer(start=start, end=end, limit=start + max_new_tokens)
            ids = torch.tensor(prompt + answer)
            yield Text(file=document.file, line=document.line, ids=ids, answers=(known,))


def _prompt(document: Document) -> list[int]:
    first = int(np.argmax(document.loss_mask))
    return [int(token) for token in document.ids[:first]]
