"""From messages to token ids and the mask of what is trained: the text that the target itself would write.

`dflash.data.chat_turns` finds the trained characters; offsets of the `tokenizers` library carry them over to
tokens. Token values are never looked at, so a pad token that is missing, 0 or equal to the end token does no
harm. Content that spells a special token stays ordinary text. Knows nothing of files, truncation or anchors.

Shapes: T tokens of one conversation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dflash.contract.errors import ConfigError
from dflash.contract.model_shapes import embedded_vocab_size
from dflash.contract.sections import TargetConfig
from dflash.data.chat_turns import Message, RenderedChat, Span, Template
from dflash.data.embedded_text import embedded_conversations
from dflash.model_source import find_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

embedded_specials: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|mask|>")
embedded_template: Final = "ChatML, tool calls as JSON, 1"  # another number when `_apply_chatml` changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One conversation as the trainer sees it."""

    ids: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T], True: the target would write this token
    changed_answers: int  # answers whose text the template did not keep as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of tokens with a meaning, None where the tokenizer has none. They may be 0 and may be equal."""

    mask: int | None
    pad: int | None
    eos: int | None
    unk: int | None


class ChatTokenizer:
    """A tokenizer with its chat template. Takes over `backend`; not for several threads at once."""

    def __init__(
        self,
        name: str,
        backend: Tokenizer,
        template: Template,
        special: SpecialIds,
        *,
        template_text: str = "",
    ) -> None:
        """`template_text`: what `template` was made of, to know it again by."""
        self.name, self.special, self.template_text = name, special, template_text
        self._backend, self._template = backend, template
        # Offsets must cover the characters of a token exactly; post-processors trim blanks off them.
        backend.post_processor = None
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder().values()
        self._spellings = tuple(token.content for token in added if token.special)
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = 1 + max(ids)  # embedding rows needed

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Token ids and loss mask of a conversation. Raises RenderError."""
        chat = RenderedChat(self._template, messages)
        turns = chat.turns()
        verbatim = [chat.content(i) for i, message in enumerate(messages) if self._spells_special(message)]
        ids, starts, ends = self._encode(chat.text, verbatim, [])
        # The target begins an answer with a token of its own, never in the middle of one of the header's.
        merged = [t.start for t in turns if ((starts < t.start) & (ends > t.start)).any()]
        if merged:
            ids, starts, ends = self._encode(chat.text, verbatim, merged)
        mask = np.zeros(len(ids), np.bool_)
        for turn in turns:
            mask |= (starts >= turn.start) & (ends <= turn.end)
        return Rendered(ids=ids, loss_mask=mask, changed_answers=sum(turn.changed for turn in turns))

    @cached_property
    def content_sha256(self) -> str:
        """Equal for tokenizers that make the same tokens of any text, whatever they are called."""
        content = {key: value for key, value in json.loads(self._backend.to_str()).items() if value}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def template_sha256(self) -> str:
        """Of the text of the chat template."""
        return hashlib.sha256(self.template_text.encode()).hexdigest()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens, special ones spelled out."""
        text: str = self._backend.decode([int(i) for i in ids], skip_special_tokens=False)
        return text

    def _spells_special(self, message: Message) -> bool:
        return any(special in message["content"] for special in self._spellings)

    def _encode(
        self, text: str, verbatim: list[Span], cuts: list[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Ids, first and past-the-last character of each.

        No token reaches over a cut or an end of a `verbatim` span, inside which nothing is a special token.
        """
        edges = sorted({0, len(text), *cuts, *(edge for span in verbatim for edge in span)})
        ids: list[int] = []
        offsets: list[Span] = []
        for start, end in pairwise(edges):
            self._backend.encode_special_tokens = any(a <= start < b for a, b in verbatim)
            encoding = self._backend.encode(text[start:end], add_special_tokens=False)
            ids += encoding.ids
            offsets += [(start + a, start + b) for a, b in encoding.offsets]
        bounds = np.asarray(offsets, np.int64).reshape(-1, 2)
        return np.asarray(ids, np.int32), bounds[:, 0], bounds[:, 1]


def open_tokenizer(target: TargetConfig) -> ChatTokenizer:
    """The tokenizer of a target; auto: embedded for random weights, else the model's. Raises ConfigError."""
    if target.tokenizer != "auto":
        return _open_pretrained(target.tokenizer, "target.tokenizer")
    if target.model.startswith("random:"):
        return open_embedded_tokenizer()
    return _open_pretrained(target.model, "target.model")


def open_embedded_tokenizer() -> ChatTokenizer:
    """Byte-level BPE with ChatML turns, trained on the embedded text. Equal wherever that text is."""
    backend = Tokenizer.from_str(_train_embedded())
    ids = {token: backend.token_to_id(token) for token in embedded_specials}
    special = SpecialIds(mask=ids["<|mask|>"], pad=ids["<|endoftext|>"], eos=ids["<|im_end|>"], unk=None)
    return ChatTokenizer("embedded", backend, _apply_chatml, special, template_text=embedded_template)


@cache
def _train_embedded() -> str:
    backend = Tokenizer(models.BPE())
    # A line end stands alone, so that the header's never merges with the first blanks of an answer.
    lines = pre_tokenizers.Split("\n", "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=embedded_vocab_size,
        special_tokens=list(embedded_specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rows = embedded_conversations()
    texts = (message["content"] for row in rows for message in row["messages"])
    backend.train_from_iterator(texts, trainer=trainer)
    trained: str = backend.to_str()
    return trained


def _apply_chatml(messages: Sequence[Message], prompt: bool) -> str:
    turns = [f"<|im_start|>{m['role']}\n{m['content']}{_calls(m)}<|im_end|>\n" for m in messages]
    return "".join(turns) + "<|im_start|>assistant\n" * prompt


def _calls(message: Message) -> str:
    calls = (json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls", ()))
    return "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls)


def _open_pretrained(name: str, knob: str) -> ChatTokenizer:
    from transformers import AutoTokenizer

    source = find_model(name, knob)
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source.place, **source.options)
    except (OSError, ValueError, TypeError, LookupError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"the tokenizer cannot be opened: {str(error).strip().splitlines()[0]}",
            where=knob,
            found=name if Path(name).exists() else f"{name}, which is no directory here",
            expected="a directory or hub name with tokenizer.json",
            remedy="check the name; a model without a tokenizer needs target.tokenizer",
        ) from None
    if not found.is_fast:
        raise ConfigError(
            "the tokenizer does not say which characters a token came from",
            where="target.tokenizer",
            found=f"{name} ({type(found).__name__})",
            expected="a tokenizer with tokenizer.json",
        )
    if not found.chat_template:
        raise ConfigError(
            "the tokenizer has no chat template",
            where="target.tokenizer",
            found=name,
            expected="chat_template.jinja or a chat_template in tokenizer_config.json",
            remedy="name the tokenizer of the chat model with target.tokenizer",
        )

    def apply(messages: Sequence[Message], prompt: bool) -> str:
        text = found.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=prompt
        )
        return str(text)

    special = SpecialIds(
        mask=found.mask_token_id, pad=found.pad_token_id, eos=found.eos_token_id, unk=found.unk_token_id
    )
    return ChatTokenizer(
        name, found.backend_tokenizer, apply, special, template_text=str(found.get_chat_template())
    )
