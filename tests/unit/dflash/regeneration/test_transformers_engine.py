"""The target as an engine: what becomes of what it wrote, and of batches that do not fit."""

import re

import numpy as np
import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.regeneration import RegenerationChoice
from dflash.data.tokenizer import ChatTokenizer, SpecialIds, open_embedded_tokenizer
from dflash.regeneration import transformers_engine
from dflash.regeneration.answers import Request
from dflash.regeneration.decoding import Generated
from dflash.regeneration.transformers_engine import TransformersEngine

question = {"role": "user", "content": "why?"}


def chatml(messages, prompt, _tools=(), /, *, opens="", keeps=True):
    def content(message):
        text = message["content"]
        return text if keeps else re.sub(r"<think>.*?</think>\s*", "", text, flags=re.DOTALL)

    turns = [f"<|im_start|>{m['role']}\n{content(m)}<|im_end|>\n" for m in messages]
    return "".join(turns) + ("<|im_start|>assistant\n" + opens) * prompt


def read(written, **template):
    """The answer that comes of a target's text under a template."""
    embedded = open_embedded_tokenizer()
    special = SpecialIds(mask=None, pad=None, eos=embedded.special.eos, unk=None)
    engine = object.__new__(TransformersEngine)
    engine.tokenizer = ChatTokenizer(
        "made", embedded._encoder._backend, lambda *given: chatml(*given, **template), special
    )
    request = Request(row=0, turn=0, messages=(question,))
    prompt = engine.tokenizer.prompt(request.messages)
    ids = engine.tokenizer._encoder.encode(written).ids.tolist()
    return engine._read(request, prompt, Generated([*ids, special.eos], ended=True))


def test_an_answer_is_kept_as_it_was_written():
    answer = read("because\n")
    assert (answer.content, answer.finish, answer.reworded) == ("because\n", "stop", False)
    thinking = "<think>\nhm\n</think>\n\nfine"
    assert read(thinking).content == thinking


def test_thinking_that_the_prompt_opened_gets_its_opening_back():
    answer = read("hm\n</think>\n\nfine", opens="<think>\n")
    assert answer.content == "<think>\nhm\n</think>\n\nfine"
    assert not answer.reworded


def test_an_answer_of_which_the_template_makes_other_tokens_is_counted():
    answer = read("<think>\nhm\n</think>\n\nfine", keeps=False)
    assert answer.content == "<think>\nhm\n</think>\n\nfine"
    assert answer.reworded


@pytest.fixture(scope="module")
def engine():
    return TransformersEngine(load_config(None), RegenerationChoice(to="unused", max_new_tokens=4))


def requests(count):
    return [
        Request(row=i, turn=0, messages=({"role": "user", "content": "a" * (i + 1)},)) for i in range(count)
    ]


def test_batches_hold_as_many_rows_as_fit_longest_first(engine, monkeypatch):
    widths = []

    def decode(batch):
        widths.append([len(ids) for _, ids in batch])
        return [Generated([5, 1], ended=True) for _ in batch]

    monkeypatch.setattr(engine, "_decode", decode)
    monkeypatch.setattr(engine, "_batch_tokens", 60)
    found = [request.row for portion in engine.answer(requests(9)) for request, _ in portion]
    assert sorted(found) == list(range(9))
    assert np.concatenate(widths).tolist() == sorted(np.concatenate(widths), reverse=True)
    assert all(len(batch) * (batch[0] + 4) <= 60 or len(batch) == 1 for batch in widths)


def test_a_batch_that_does_not_fit_is_halved_until_it_does(engine, monkeypatch):
    sizes = []

    def decode(batch):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return [Generated([5, 1], ended=True) for _ in batch]

    monkeypatch.setattr(engine, "_decode", decode)
    monkeypatch.setattr(engine, "_batch_tokens", 1000)
    found = [request.row for portion in engine.answer(requests(8)) for request, _ in portion]
    assert sorted(found) == list(range(8))
    assert sizes[0] == 8
    assert max(sizes[-2:]) <= 2


def test_one_prompt_that_does_not_fit_says_so(engine, monkeypatch):
    def decode(_batch):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(engine, "_decode", decode)
    with pytest.raises(DFlashError, match="does not fit into memory") as caught:
        list(engine.answer(requests(2)))
    assert "--max-new-tokens" in caught.value.remedy


def test_prompts_without_room_for_an_answer_are_refused(engine):
    long = Request(row=0, turn=0, messages=({"role": "user", "content": "x y " * 4000},))
    ((_, answer),) = next(engine.answer([long]))
    assert answer.finish == "refused"
    assert answer.reason.startswith("too long: ")


def test_where_it_runs_no_attention_plans_and_what_is_too_large_says_so(monkeypatch):
    asked = []

    def load(*_given):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(transformers_engine, "avoid_attention_plans", asked.append)
    monkeypatch.setattr(TransformersEngine, "_load", load)
    with pytest.raises(DFlashError, match="the target does not fit"):
        TransformersEngine(load_config(None, ["devices.kind=logical"]), RegenerationChoice(to="unused"))
    assert asked == [torch.device("cpu")]


def test_a_target_that_runs_on_slow_kernels_is_told(monkeypatch):
    said = []
    monkeypatch.setattr(transformers_engine, "slow_recurrence", lambda spec: f"{spec.model_type} is slow")
    TransformersEngine(load_config(None), RegenerationChoice(to="unused"), said.append)
    assert said == ["warning: qwen3 is slow"]
