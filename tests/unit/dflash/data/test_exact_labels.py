"""What is labelled is what the target would write, to the character, for every kind of tokenizer."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dflash.data.chat_frames import ChatReader, _analyse
from dflash.data.chat_turns import RenderedChat, Template
from dflash.data.tokenizer import ChatTokenizer, SpecialIds
from tests.made_tokenizers import definition, kinds, specials

folder = Path(__file__).parents[3] / "data/templates"
prefixing = ("blank-before", "metaspace-always", "metaspace-first", "prepend", "unigram")
lossy = ("byte-level-nfc", "byte-level-lower")
# What each template writes of an answer from the end of its generation prompt on.
labelled = {
    "marks": "{}<|end|>",
    "lines": "{}<|end|>",
    "words": " {} [end]",
    "trims": "{}<|end|>",
}


@cache
def read_template(name: str) -> Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    compiled = environment.from_string((folder / f"{name}.jinja").read_text())
    return lambda messages, prompt, tools=(): compiled.render(
        messages=messages, add_generation_prompt=prompt, tools=tools
    )


@cache
def open_made(kind: str, template: str) -> ChatTokenizer:
    backend = Tokenizer.from_str(definition(kind))
    none = SpecialIds(mask=None, pad=None, eos=None, unk=None)
    return ChatTokenizer(kind, backend, read_template(template), none)


def spell(tokenizer: ChatTokenizer, ids) -> str:
    """The text of tokens, without what a decoder does at the beginning of a text."""
    if tokenizer.name.startswith(("byte-level", "blank-before")):
        return tokenizer.decode(ids)
    tokens = [tokenizer._backend.id_to_token(int(i)) for i in ids]
    raw = b"".join(
        bytes([int(token[3:5], 16)]) if token.startswith("<0x") else token.encode() for token in tokens
    )
    return raw.decode().replace("▁", " ")


known = st.text("the answer dog\n[]:,.1 ", max_size=8)
pieces = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=6),
    known,
    st.sampled_from([*specials, "\n\n", "\n", "  ", " ", "\u0301", "[end]", "assistant\n", "<0x41>"]),
)


def conversations(pieces):
    contents = st.lists(pieces, min_size=1, max_size=4).map("".join)
    answers = contents.filter(lambda text: bool(text.strip()))
    pairs = st.lists(st.tuples(contents, answers), min_size=1, max_size=3)
    return pairs.map(
        lambda pairs: [
            {"role": role, "content": text}
            for pair in pairs
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    )


def as_normalized(tokenizer: ChatTokenizer, text: str) -> str:
    normalizer = tokenizer._backend.normalizer if tokenizer.name in lossy else None
    return text if normalizer is None else normalizer.normalize_str(text)


@pytest.mark.parametrize("template", labelled)
@pytest.mark.parametrize("kind", kinds)
def test_labels_are_the_answers_and_their_ends(kind, template):
    tokenizer = open_made(kind, template)

    @settings(max_examples=25, deadline=None, database=None)
    @given(conversations(known if kind == "unigram" else pieces))
    def check(messages):
        rendered = tokenizer.render(messages)
        edges = [
            0,
            *((rendered.loss_mask[1:] != rendered.loss_mask[:-1]).nonzero()[0] + 1),
            len(rendered.ids),
        ]
        parts = [(bool(rendered.loss_mask[a]), rendered.ids[a:b]) for a, b in pairwise(edges)]
        found = [spell(tokenizer, ids) for trained, ids in parts if trained]
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        answers = [answer.strip() if template == "trims" else answer for answer in answers]
        expected = [as_normalized(tokenizer, labelled[template].format(answer)) for answer in answers]
        if kind in prefixing:  # after a special token such a tokenizer begins with a blank of its own
            found = [
                text if text == wanted else text.removeprefix(" ")
                for text, wanted in zip(found, expected, strict=True)
            ]
        assert found == expected
        if kind not in (*prefixing, *lossy):
            assert spell(tokenizer, rendered.ids) == read_template(template)(messages, False)

    check()


@pytest.mark.parametrize("template", [*labelled, "thinks"])
def test_a_frame_finds_what_an_analysis_finds(template):
    reader = ChatReader(read_template(template))
    thinking = st.sampled_from(["<think>\nhm\n</think>\n\n", "<think>", "</think>", "\n"])

    @settings(max_examples=60, deadline=None, database=None)
    @given(conversations(st.one_of(pieces, thinking)), st.sampled_from(["", "why", "  why\n"]))
    def check(messages, thought):
        messages = [{**m, "reasoning_content": thought} if thought else m for m in messages]
        wanted = range(len(messages))
        chat = RenderedChat(read_template(template), messages)
        assert reader.read(messages, (), wanted) == _analyse(chat, messages, wanted)

    check()
