"""From messages to token ids and the mask of what is trained: the text that the target itself would write.

`dflash.data.chat_frames` finds the trained characters; offsets of the `tokenizers` library carry them over to
tokens. Token values are never looked at, so a pad token that is missing, 0 or equal to the end token does no
harm. Content that spells a special token stays ordinary text. Knows nothing of files, truncation or anchors.

Shapes: T tokens of one conversation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dflash.contract.errors import ConfigError
from dflash.contract.model_shapes import embedded_vocab_size
from dflash.contract.sections import DataConfig, TargetConfig
from dflash.data.chat_frames import ChatReader
from dflash.data.chat_template import PretrainedTemplate, apply_chatml
from dflash.data.chat_turns import Message, RenderedChat, RenderError, Template, Tool, Turn
from dflash.data.embedded_text import embedded_conversations
from dflash.data.text_encoding import EncodedText, TextEncoder
from dflash.model_source import find_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

embedded_specials: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|mask|>")
embedded_template: Final = "ChatML, tool calls as JSON, 2"  # another number when `apply_chatml` changes


_text_keys = frozenset({"role", "content", "reasoning_content"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One conversation as the trainer sees it."""

    ids: NDArray[np.int32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T], True: the target would write this token
    notes: tuple[str, ...] = ()  # warnings about what the chat template did, one for each time


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of tokens with a meaning, None where the tokenizer has none. They may be 0 and may be equal."""

    mask: int | None
    pad: int | None
    eos: int | None
    unk: int | None


@contextmanager
def _nested_within_reason() -> Iterator[None]:
    """Templates and JSON go down into tools and calls by recursion: RenderError where Python ends that."""
    try:
        yield
    except RecursionError:
        raise RenderError("not fit for the chat template: nested too deep") from None


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
        turns: str = "all",
    ) -> None:
        """`template_text`: what `template` was made of, to know it again by; `turns`: as data.turns."""
        self.name, self.special, self.template_text = name, special, template_text
        self._backend, self._last_only = backend, turns == "last"
        self._template = template
        self._reader, self._encoder = ChatReader(template), TextEncoder(backend)
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = 1 + max(ids)  # embedding rows needed

    @_nested_within_reason()
    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), untrained: Collection[int] = ()
    ) -> Rendered:
        """Token ids and loss mask of a conversation; the answers `untrained`, by message, are read only.

        Raises RenderError.
        """
        spelling = [index for index, message in enumerate(messages) if self._spells_special(message, index)]
        if tools and (spelled := self._find_special(tools)):
            raise RenderError(f"special token in data: the tools spell {spelled}")
        chat = self._reader.read(messages, tools, spelling)
        turns = _trained(chat.turns, messages, untrained) if untrained else chat.turns
        turns = turns[-1:] if self._last_only else turns
        # The target begins an answer with a token of its own, never in the middle of one of the prompt's.
        cuts = {turn.start for turn in turns}
        encoded = self._encoder.encode(chat.text, cuts, chat.verbatim)
        ends = self._torn_ends(encoded, turns)
        if ends:
            encoded = self._encoder.encode(chat.text, cuts | ends, chat.verbatim)
        notes = [note for turn in turns for note in turn.notes]
        return Rendered(ids=encoded.ids, loss_mask=self._mask(encoded, turns), notes=(*notes, *chat.notes))

    @_nested_within_reason()
    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> NDArray[np.int32]:
        """The tokens after which the target would write its next answer. Raises RenderError."""
        answered = [*messages, {"role": "assistant", "content": "-"}]
        spelling = [index for index, message in enumerate(answered) if self._spells_special(message, index)]
        if tools and (spelled := self._find_special(tools)):
            raise RenderError(f"special token in data: the tools spell {spelled}")
        chat = self._reader.read(answered, tools, spelling)
        text = RenderedChat(self._template, messages, tools).prompt()
        verbatim = [span for span in chat.verbatim if span[0] < len(text)]
        if verbatim and not chat.text.startswith(text[: verbatim[-1][1]]):
            raise RenderError("special token in data: the template writes these prompts unlike conversations")
        return self._encoder.encode(text, (), verbatim).ids

    def _mask(self, encoded: EncodedText, turns: Sequence[Turn]) -> NDArray[np.bool_]:
        """True for the tokens of `turns`: those that begin in one, none of which begins before it."""
        starts, ends = encoded.starts, encoded.ends
        if (starts[1:] < starts[:-1]).any() or (ends[1:] < ends[:-1]).any():
            raise RenderError("not fit for the tokenizer: it does not say which characters a token came from")
        mask = np.zeros(len(starts), np.bool_)
        for turn in turns:
            mask |= (starts >= turn.start) & (starts < turn.end)
        return mask

    def _torn_ends(self, encoded: EncodedText, turns: Sequence[Turn]) -> set[int]:
        """Ends of turns inside a token. An end mark that takes the blanks after it along is not torn."""
        torn = set()
        for turn in turns:
            over = np.flatnonzero((encoded.starts < turn.end) & (encoded.ends > turn.end))
            if len(over) and not self._encoder.are_added(encoded.ids[over]):
                torn.add(turn.end)
        return torn

    @cached_property
    def content_sha256(self) -> str:
        """Equal for tokenizers that make the same tokens of any text, whatever they are called."""
        content = {key: value for key, value in json.loads(self._backend.to_str()).items() if value}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def template_sha256(self) -> str:
        """Of the chat template: its text, and the special tokens that it reads."""
        return hashlib.sha256(self.template_text.encode()).hexdigest()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens, special ones spelled out."""
        text: str = self._backend.decode([int(i) for i in ids], skip_special_tokens=False)
        return text

    def _spells_special(self, message: Message, index: int) -> bool:
        """Whether a special token is spelled in the text of a message. Raises RenderError for other parts."""
        texts = (message["content"], message.get("reasoning_content", ""))
        others = {key: value for key, value in message.items() if key not in _text_keys}
        if others and (spelled := self._find_special(others)):
            raise RenderError(f"special token in data: a part of message {index + 1} spells {spelled}")
        return any(special in text for special in self._encoder.special_spellings for text in texts)

    def _find_special(self, value: Sequence[Tool] | Mapping[str, Any]) -> str | None:
        """A special token spelled anywhere in `value`, which is not text that could be kept apart."""
        text = json.dumps(value, ensure_ascii=False, default=str)
        return next((special for special in self._encoder.special_spellings if special in text), None)


def _trained(turns: Sequence[Turn], messages: Sequence[Message], untrained: Collection[int]) -> list[Turn]:
    """The turns but for those of the messages `untrained`. Raises RenderError when nobody can tell which."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if len(turns) != len(answers):
        raise RenderError("not fit for the chat template: it leaves out answers, and some have weight 0")
    return [turn for index, turn in zip(answers, turns, strict=True) if index not in untrained]


def open_tokenizer(target: TargetConfig, data: DataConfig | None = None) -> ChatTokenizer:
    """The tokenizer of a target; auto: embedded for random weights, else the model's. Raises ConfigError.

    `data` says which turns are trained and in which form of thinking; None: all, as the template has it.
    """
    data = data or DataConfig()
    if target.tokenizer != "auto":
        return _open_pretrained(target.tokenizer, "target.tokenizer", data)
    if target.model.startswith("random:"):
        if data.thinking != "template":
            raise ConfigError(
                "the embedded chat template has no switch for thinking",
                where="data.thinking",
                found=data.thinking,
                expected="template",
            )
        return open_embedded_tokenizer(data.turns)
    return _open_pretrained(target.model, "target.model", data)


def open_embedded_tokenizer(turns: str = "all") -> ChatTokenizer:
    """Byte-level BPE with ChatML turns, trained on the embedded text. Equal wherever that text is."""
    backend = Tokenizer.from_str(_train_embedded())
    ids = {token: backend.token_to_id(token) for token in embedded_specials}
    special = SpecialIds(mask=ids["<|mask|>"], pad=ids["<|endoftext|>"], eos=ids["<|im_end|>"], unk=None)
    return ChatTokenizer(
        "embedded", backend, apply_chatml, special, template_text=embedded_template, turns=turns
    )


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


def _open_pretrained(name: str, knob: str, data: DataConfig) -> ChatTokenizer:
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

    special = SpecialIds(
        mask=found.mask_token_id, pad=found.pad_token_id, eos=found.eos_token_id, unk=found.unk_token_id
    )
    template = PretrainedTemplate(found, data.thinking)
    return ChatTokenizer(
        name, found.backend_tokenizer, template, special, template_text=template.identity, turns=data.turns
    )
