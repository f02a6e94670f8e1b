import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from dflash.contract.errors import ConfigError
from dflash.contract.model_shapes import embedded_vocab_size
from dflash.contract.sections import TargetConfig
from dflash.data.chat_turns import Message, RenderError, thinking_dropped
from dflash.data.text_encoding import EncodedText
from dflash.data.tokenizer import (
    ChatTokenizer,
    SpecialIds,
    embedded_specials,
    open_embedded_tokenizer,
    open_tokenizer,
)

cases = Path(__file__).parents[3] / "data/cases/data"
chat = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3."}]


def copy_tiny(folder: Path, template: str | None, **changes: str | None) -> Path:
    """The tiny tokenizer with a chat template and changes to its tokenizer_config.json."""
    shutil.copytree(cases / "tiny_bpe_tokenizer", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= changes
    (folder / "tokenizer_config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )
    if template:
        shutil.copyfile(cases / template, folder / "chat_template.jinja")
    return folder


def open_copy(folder: Path) -> ChatTokenizer:
    return open_tokenizer(TargetConfig(model="random:tiny", tokenizer=str(folder)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tiny") / "tokenizer"
    return open_copy(copy_tiny(folder, "c005_template_without_generation.jinja"))


@pytest.fixture(scope="module")
def embedded() -> ChatTokenizer:
    return open_embedded_tokenizer()


def trained_text(tokenizer: ChatTokenizer, messages: list[Message]) -> str:
    rendered = tokenizer.render(messages)
    return tokenizer.decode(rendered.ids[rendered.loss_mask])


pieces = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>assistant\n", "<|end|>", "<|assistant|>", "<pad>", "\n", "  ", "👩‍👧"]
    ),
)
contents = st.lists(pieces, min_size=1, max_size=5).map("".join)
answers = contents.filter(lambda text: bool(text.strip()))
turns = st.lists(st.tuples(contents, answers), min_size=1, max_size=3)


def as_messages(pairs: list[tuple[str, str]]) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": r, "content": t} for pair in pairs for r, t in zip(roles, pair, strict=True)]


@settings(max_examples=150, deadline=None)
@given(pairs=turns)
def test_the_embedded_tokenizer_trains_answers_and_their_ends(embedded, pairs):
    tokenizer = embedded
    rendered = tokenizer.render(as_messages(pairs))
    assert tokenizer.decode(rendered.ids[rendered.loss_mask]) == "".join(a + "<|im_end|>" for _, a in pairs)
    whole = (f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n" for q, a in pairs)
    assert tokenizer.decode(rendered.ids) == "".join(whole)
    start, end, *_ = (tokenizer.decode([i]) for i in range(2))
    assert (start, end) == embedded_specials[:2]
    assert (rendered.ids == 0).sum() == (rendered.ids == 1).sum() == 2 * len(pairs)


@settings(max_examples=150, deadline=None)
@given(pairs=turns)
def test_a_pretrained_tokenizer_trains_answers_and_their_ends(tiny, pairs):
    rendered = tiny.render(as_messages(pairs))
    assert tiny.decode(rendered.ids[rendered.loss_mask]) == "".join(a + "<|end|>" for _, a in pairs)
    assert tiny.decode(rendered.ids) == "".join(
        f"<|user|>{q}<|end|><|assistant|>{a}<|end|>" for q, a in pairs
    )
    counts = [int((rendered.ids == special).sum()) for special in range(4)]
    assert counts == [0, 2 * len(pairs), len(pairs), len(pairs)]  # <pad>, <|end|>, <|user|>, <|assistant|>


def test_masks_and_ids_have_their_types(embedded):
    rendered = embedded.render(chat)
    assert (rendered.ids.dtype, rendered.loss_mask.dtype) == (np.int32, np.bool_)
    assert rendered.ids.shape == rendered.loss_mask.shape


def test_the_first_token_after_the_prompt_is_trained(embedded):
    rendered = embedded.render(chat)
    first = int(np.flatnonzero(rendered.loss_mask)[0])
    assert (
        embedded.decode(rendered.ids[:first]) == "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("answer", ["\n\nlate", "  two", "\n"])
def test_an_answer_that_begins_with_blanks_begins_a_token(answer):
    """The header's line end and the answer's blanks would be one token, which no target writes."""
    backend = merging("\n\n", "\n\n\n", "\n  ")

    def apply(messages, prompt):
        return "".join(f"{m['role']}\n{m['content']}!\n" for m in messages)

    tokenizer = ChatTokenizer("merging", backend, apply, SpecialIds(mask=None, pad=None, eos=None, unk=None))
    messages = [chat[0], {"role": "assistant", "content": answer + "."}]
    rendered = tokenizer.render(messages)
    first = int(np.flatnonzero(rendered.loss_mask)[0])
    assert tokenizer.decode(rendered.ids[:first]) == "user\nCount.!\nassistant\n"
    assert tokenizer.decode(rendered.ids[rendered.loss_mask]) == answer + ".!"


def merging(*words: str) -> Tokenizer:
    """A byte-level tokenizer that makes one token of each of some words."""
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([*words] * 9, trainer)
    assert [len(backend.encode(word).ids) for word in words] == [1] * len(words)
    return backend


def with_mark(backend: Tokenizer, mark: str) -> ChatTokenizer:
    def apply(messages, prompt, tools=()):
        return "".join(f"{m['role']}: {m['content']}{mark}\n" for m in messages)

    return ChatTokenizer("marked", backend, apply, SpecialIds(mask=None, pad=None, eos=None, unk=None))


def test_an_end_mark_that_merges_with_what_follows_ends_a_token():
    tokenizer = with_mark(merging("!\n"), "!")
    rendered = tokenizer.render([*chat, *chat])
    assert tokenizer.decode(rendered.ids[rendered.loss_mask]) == "1, 2, 3.!" * 2
    assert tokenizer.decode(rendered.ids) == "user: Count.!\nassistant: 1, 2, 3.!\n" * 2


def test_an_end_mark_that_takes_blanks_along_is_trained_as_the_token_it_is():
    backend = merging("ab")
    backend.add_special_tokens(
        [AddedToken("<end>", special=True, rstrip=True, lstrip=True, normalized=False)]
    )
    tokenizer = with_mark(backend, "<end>")
    end = backend.token_to_id("<end>")
    talk = [chat[0], {"role": "assistant", "content": "ab  "}]
    rendered = tokenizer.render([*talk, *talk])
    assert rendered.ids.tolist().count(end) == 4
    assert rendered.ids[rendered.loss_mask].tolist() == [*backend.encode("ab").ids, end] * 2


def test_a_header_that_takes_blanks_along_does_not_take_those_of_the_answer():
    backend = merging("ab")
    backend.add_special_tokens([AddedToken("assistant:", special=True, rstrip=True, normalized=False)])
    tokenizer = with_mark(backend, "!")
    rendered = tokenizer.render([chat[0], {"role": "assistant", "content": "\n ab"}])
    assert tokenizer.decode(rendered.ids[rendered.loss_mask]) == "\n ab!"


def test_answers_that_are_not_to_be_trained_are_read(embedded):
    talk = as_messages([("one", "a"), ("two", "b"), ("three", "c")])
    whole, some = embedded.render(talk), embedded.render(talk, (), (1, 5))
    assert embedded.decode(some.ids[some.loss_mask]) == "b<|im_end|>"
    assert embedded.decode(some.ids) == embedded.decode(whole.ids)
    silent = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": []}, *talk]
    with pytest.raises(RenderError, match="some have weight 0"):
        embedded.render(silent, (), (1,))


def test_what_is_nested_too_deep_is_refused(embedded):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for ask in (embedded.render, embedded.prompt):
        with pytest.raises(RenderError, match="not fit for the chat template: nested too deep"):
            ask(chat, [{"a": deep}])


def test_a_special_token_spelled_in_a_call_or_a_tool_is_refused(embedded):
    call = {"function": {"name": "f", "arguments": {"text": "<|im_end|>"}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(RenderError, match=r"message 2 spells <\|im_end\|>"):
        embedded.render([chat[0], calling])
    with pytest.raises(RenderError, match=r"tools spell <\|im_end\|>"):
        embedded.render(chat, [{"name": "<|im_end|>"}])


def test_a_tokenizer_that_loses_track_of_characters_is_refused(embedded):
    tokenizer = open_embedded_tokenizer()
    encode = tokenizer._encoder.encode

    def backwards(text, cuts, verbatim):
        encoded = encode(text, cuts, verbatim)
        return EncodedText(encoded.ids, encoded.starts[::-1], encoded.ends[::-1])

    tokenizer._encoder.encode = backwards
    with pytest.raises(RenderError, match="does not say which characters"):
        tokenizer.render(chat)


def test_generation_marks_in_the_template_make_no_difference(tmp_path, tiny):
    marked = open_copy(copy_tiny(tmp_path / "t", "c005_template_with_generation.jinja"))
    for messages in ([*chat, *chat], chat):
        one, other = tiny.render(messages), marked.render(messages)
        assert one.ids.tolist() == other.ids.tolist()
        assert one.loss_mask.tolist() == other.loss_mask.tolist()
        assert 0.1 < one.loss_mask.mean() < 0.9


def test_a_template_that_drops_thinking_is_followed_and_counted(tmp_path):
    tokenizer = open_copy(copy_tiny(tmp_path / "t", "c005_template_drops_last_think.jinja"))
    thinking = [chat[0], {"role": "assistant", "content": "<think>hm</think>1"}]
    rendered = tokenizer.render([*thinking, *thinking])
    text = tokenizer.decode(rendered.ids[rendered.loss_mask])
    assert text == "1<|end|><think>hm</think>1<|end|>"
    assert rendered.notes == (thinking_dropped,)


@pytest.mark.parametrize(
    ("pad", "expected"), [(None, None), ("<pad>", 0), ("<|end|>", 1)], ids=["none", "zero", "equal to end"]
)
def test_the_pad_token_does_not_touch_the_mask(tmp_path, tiny, pad, expected):
    folder = copy_tiny(tmp_path / "t", "c005_template_without_generation.jinja", pad_token=pad)
    tokenizer = open_copy(folder)
    rendered = tokenizer.render(chat)
    assert tokenizer.special.pad == expected
    assert rendered.loss_mask.tolist() == tiny.render(chat).loss_mask.tolist()
    assert rendered.ids[rendered.loss_mask][-1] == tokenizer.special.eos


def test_offsets_are_exact_though_the_tokenizer_trims_them(tmp_path, tiny):
    folder = copy_tiny(tmp_path / "t", "c005_template_without_generation.jinja")
    path = folder / "tokenizer.json"
    trims = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": trims}))
    blanks = [chat[0], {"role": "assistant", "content": "  \n  two  \n"}]
    assert trained_text(open_copy(folder), blanks) == trained_text(tiny, blanks) == "  \n  two  \n<|end|>"


def test_a_special_token_spelled_in_a_content_stays_text(embedded):
    answer = "Here: <|im_start|>assistant\nfake turn<|im_end|> that was text"
    messages = [{"role": "user", "content": "Print <|im_end|>"}, {"role": "assistant", "content": answer}]
    rendered = embedded.render(messages)
    assert (rendered.ids == embedded.special.eos).sum() == 2
    assert embedded.decode(rendered.ids[rendered.loss_mask]) == answer + "<|im_end|>"


def test_the_embedded_vocabulary_fits_its_target(embedded):
    assert embedded.vocab_size == embedded_vocab_size
    assert [embedded.decode([i]) for i in range(4)] == list(embedded_specials)
    assert embedded.special.mask == 3


def test_the_embedded_tokenizer_does_not_depend_on_threads_or_hash_seed():
    script = (
        "import hashlib; from dflash.data import tokenizer;"
        "print(hashlib.sha256(tokenizer._train_embedded().encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[4],
        ).stdout
        for threads in ("1", "3")
    }
    assert len(seen) == 1


def test_auto_means_the_embedded_tokenizer_for_random_weights_and_the_models_own_else(tmp_path):
    folder = copy_tiny(tmp_path / "t", "c005_template_without_generation.jinja")
    assert open_tokenizer(TargetConfig(model="random:tiny")).name == "embedded"
    assert open_tokenizer(TargetConfig(model=str(folder))).name == str(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"broken'), "cannot be opened"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be opened"),
        (shutil.rmtree, "no such model directory"),
    ],
    ids=["no template", "torn file", "empty file", "no folder"],
)
def test_a_tokenizer_that_cannot_serve_is_named(tmp_path, spoil, message):
    folder = copy_tiny(tmp_path / "t", "c005_template_without_generation.jinja")
    spoil(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        open_copy(folder)
    assert caught.value.where == "target.tokenizer"
    assert str(folder) in str(caught.value.found)
