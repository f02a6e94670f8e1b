"""Text to token ids, with the characters that each token came from; parts can be encoded by themselves.

Some tokenizers put a blank before each stretch of text between special tokens, or drop blanks there. Encoding
a part that begins in the middle of such a stretch must not do so again: a second copy of the tokenizer, with
that switched off, encodes it up to its first added token. Knows nothing of chats.

Shapes: T tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Span = tuple[int, int]  # characters [start, end)


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Tokens and the characters [start, end) of each. The bytes of one character all have its span."""

    ids: NDArray[np.int32]  # [T]
    starts: NDArray[np.int64]  # [T]
    ends: NDArray[np.int64]  # [T]


class TextEncoder:
    """A tokenizer without post-processing, truncation or padding. Not for several threads at once."""

    def __init__(self, backend: Tokenizer) -> None:
        # Offsets must cover the characters of a token exactly; post-processors trim blanks off them.
        backend.post_processor = None
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_spellings = tuple(token.content for token in added.values() if token.special)
        self._added = frozenset(added)
        self._continuing, self._first_only = _without_prefixes(backend)

    def encode(self, text: str, cuts: Collection[int] = (), verbatim: Sequence[Span] = ()) -> EncodedText:
        """The tokens of `text`.

        No token reaches over a cut or an end of a `verbatim` span, inside which nothing is a special token.
        """
        edges = sorted({0, len(text), *cuts, *(edge for span in verbatim for edge in span)})
        ids: list[int] = []
        spans = [np.zeros(0, np.int64)]  # first and past-the-last character, in turn
        for start, end in pairwise(edges):
            plain = any(a <= start < b for a, b in verbatim)
            fresh = start == 0 or (not self._first_only and self._is_added(ids, spans, start))
            for at, encoding in self._encode_part(text[start:end], fresh=fresh, plain=plain):
                if found := encoding.ids:
                    ids += found
                    flat = chain.from_iterable(encoding.offsets)
                    spans.append(np.fromiter(flat, np.int64, 2 * len(found)) + (start + at))
        bounds = np.concatenate(spans).reshape(-1, 2)
        return EncodedText(np.array(ids, np.int32), bounds[:, 0], bounds[:, 1])

    def are_added(self, ids: NDArray[np.int32]) -> bool:
        """Whether all `ids` are of added tokens, which stand for themselves and are never merged."""
        return self._added.issuperset(ids.tolist())

    def _is_added(self, ids: list[int], spans: list[NDArray[np.int64]], at: int) -> bool:
        """Whether an added token ends at `at`: a new stretch of text begins there."""
        return bool(ids) and ids[-1] in self._added and int(spans[-1][-1]) == at

    def _encode_part(self, text: str, *, fresh: bool, plain: bool) -> Iterator[tuple[int, Any]]:
        """Encodings that make up `text`, and the character at which each begins."""
        self._backend.encode_special_tokens = plain
        if fresh or self._continuing is None:
            yield 0, self._backend.encode(text, add_special_tokens=False)
            return
        self._continuing.encode_special_tokens = plain
        whole = self._continuing.encode(text, add_special_tokens=False)
        added = next((i for i, token in enumerate(whole.ids) if token in self._added), None)
        if added is None:
            yield 0, whole
            return
        start = whole.offsets[added][0]
        if start:
            yield 0, self._continuing.encode(text[:start], add_special_tokens=False)
        yield start, self._backend.encode(text[start:], add_special_tokens=False)


def _without_prefixes(backend: Tokenizer) -> tuple[Tokenizer | None, bool]:
    """A copy of a tokenizer that puts nothing before a text and drops nothing; None: `backend` does neither.

    Also: whether it does so only at the very beginning.
    """
    schemes: list[str] = []
    steps = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    stripped = {
        name: None if step is None else _strip_prefixes(json.loads(step.__getstate__()), schemes)
        for name, step in steps.items()
    }
    if not schemes:
        return None, False
    definition = {**json.loads(backend.to_str()), **stripped}
    return Tokenizer.from_str(json.dumps(definition)), set(schemes) == {"first"}


def _strip_prefixes(part: Any, schemes: list[str]) -> Any:
    """One step of a pipeline without its prefix; what is found goes to `schemes`."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    for name in ("normalizers", "pretokenizers"):
        if isinstance(part.get(name), list):
            steps = [_strip_prefixes(step, schemes) for step in part[name]]
            return {**part, name: [step for step in steps if step is not None]}
    if kind in ("Prepend", "Strip"):
        schemes.append("always")
        return None
    if kind == "Metaspace" and part.get("prepend_scheme", "always") != "never":
        schemes.append(part.get("prepend_scheme", "always"))
        return {**part, "prepend_scheme": "never"}
    if kind == "ByteLevel" and part.get("add_prefix_space"):
        schemes.append("always")
        return {**part, "add_prefix_space": False}
    return part
