import json
from pathlib import Path

import pytest

from dflash.contract.errors import ConfigError
from dflash.contract.sections import DataConfig, TargetConfig
from dflash.data.chat_template import fixed_date
from dflash.data.chat_turns import (
    calls_dropped,
    empty_think_added,
    prompt_unfit,
    thinking_dropped,
    tools_dropped,
)
from dflash.data.conversations import Conversation, read_conversations
from dflash.data.tokenizer import ChatTokenizer, open_tokenizer
from tests.made_tokenizers import definition

here = Path(__file__).parents[3] / "data"
cases = here / "cases/data"


def open_with(
    folder: Path, template: str, specials: dict[str, str] | None = None, **options: object
) -> ChatTokenizer:
    """A byte-level tokenizer with the chat template of that text."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(definition("byte-level"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **(specials or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)
    return open_tokenizer(TargetConfig(tokenizer=str(folder)), DataConfig(**options))


def open_named(folder: Path, name: str, **options: object) -> ChatTokenizer:
    return open_with(folder, (here / f"templates/{name}.jinja").read_text(), **options)


def trained(tokenizer: ChatTokenizer, messages, tools=()) -> str:
    rendered = tokenizer.render(messages, tools)
    return tokenizer.decode(rendered.ids[rendered.loss_mask])


def whole(tokenizer: ChatTokenizer, messages, tools=()) -> str:
    return tokenizer.decode(tokenizer.render(messages, tools).ids)


def think_modes() -> dict[str, Conversation]:
    rows = read_conversations(cases / "c008_think_modes.jsonl")
    return {row.id: row for row in rows if isinstance(row, Conversation)}


def test_what_a_template_that_adds_and_strips_thinking_does_is_trained_as_written_and_told(tmp_path):
    tokenizer = open_named(tmp_path / "t", "thinks")
    rows = think_modes()
    found = {name: trained(tokenizer, row.messages) for name, row in rows.items()}
    assert found == {
        "think": "<think>\nadd the two numbers\n</think>\n\n4<|end|>",
        "empty-think": "5<|end|>",
        "no-think": "6<|end|>",
        "multi-turn-think": "2<|end|><think>\ntwo and one\n</think>\n\n3<|end|>",
        "reasoning-field": "<think>\nthree and three\n</think>\n\n6<|end|>",
    }
    notes = {name: tokenizer.render(row.messages).notes for name, row in rows.items()}
    assert notes == {
        "think": (),
        "empty-think": (),
        "no-think": (empty_think_added,),
        "multi-turn-think": (thinking_dropped,),
        "reasoning-field": (),
    }


def test_a_template_that_knows_no_thinking_leaves_it_out_and_that_is_told(tmp_path):
    tokenizer = open_with(tmp_path / "t", (cases / "c005_template_drops_last_think.jinja").read_text())
    notes = {name: tokenizer.render(row.messages).notes for name, row in think_modes().items()}
    assert notes == {
        "think": (),
        "empty-think": (),
        "no-think": (),
        "multi-turn-think": (thinking_dropped,),
        "reasoning-field": (thinking_dropped,),
    }


def test_the_switch_for_thinking_is_given_to_the_template(tmp_path):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    thinking = [messages[0], {**messages[1], "reasoning_content": "why"}]
    off = open_named(tmp_path / "t", "thinks", thinking="off")
    assert trained(off, messages) == "a<|end|>"
    assert off.render(messages).notes == ()  # the empty block is the prompt's own
    assert off.render(thinking).notes == (prompt_unfit,)
    on = open_named(tmp_path / "t", "thinks", thinking="on")
    assert on.render(messages).notes == (empty_think_added,)
    assert trained(on, thinking) == "<think>\nwhy\n</think>\n\na<|end|>"


@pytest.mark.parametrize(
    "opens",
    [
        lambda folder: open_named(folder, "marks", thinking="off"),
        lambda folder: open_tokenizer(TargetConfig(), DataConfig(thinking="off")),
    ],
    ids=["pretrained", "embedded"],
)
def test_a_template_without_the_switch_is_refused(tmp_path, opens):
    with pytest.raises(ConfigError, match="no switch for thinking") as caught:
        opens(tmp_path / "t")
    assert caught.value.where == "data.thinking"


def test_only_the_last_answer_is_trained_where_that_is_wanted(tmp_path):
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"text {i}"} for i in range(6)]
    tokenizer = open_named(tmp_path / "t", "marks", turns="last")
    assert trained(tokenizer, messages) == "text 5<|end|>"
    every = open_named(tmp_path / "t", "marks")
    assert trained(every, messages) == "text 1<|end|>text 3<|end|>text 5<|end|>"
    assert whole(tokenizer, messages) == whole(every, messages)
    embedded = open_tokenizer(TargetConfig(), DataConfig(turns="last"))
    assert trained(embedded, messages) == "text 5<|im_end|>"


def read_call(tmp_path: Path, arguments: object) -> Conversation:
    turns = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": arguments}}],
        },
        {"role": "tool", "content": "11"},
        {"role": "assistant", "content": "It is 11."},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": turns, "tools": [{"name": "look"}]}) + "\n")
    (row,) = read_conversations(path)
    return row


as_text = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name + ' ' + c.function.arguments }}</call>{% endfor %}<|end|>{% endfor %}"
)
as_output = as_text.replace(
    "c.function.name + ' ' + c.function.arguments", "c.function.name }} {{ c.function.arguments"
)


@pytest.mark.parametrize("template", ["thinks", as_text, as_output], ids=["object", "joined", "printed"])
@pytest.mark.parametrize(
    "arguments", [{"town": "é", "n": 1}, '{"town": "é", "n": 1}'], ids=["object", "text"]
)
def test_arguments_of_calls_are_json_whichever_way_they_came(tmp_path, template, arguments):
    row = read_call(tmp_path, arguments)
    name = template if template == "thinks" else None
    tokenizer = open_named(tmp_path / "t", name) if name else open_with(tmp_path / "t", template)
    call = '<call>look {"town": "é", "n": 1}</call><|end|>'
    line = "\n" if name else ""
    assert trained(tokenizer, row.messages, row.tools) == line + call + "It is 11.<|end|>"


def test_text_of_arguments_stays_as_it_was_where_text_is_wanted(tmp_path):
    row = read_call(tmp_path, '{"n":1}')
    assert 'look {"n":1}<' in trained(open_with(tmp_path / "t", as_text), row.messages)


def test_tools_reach_the_template(tmp_path):
    row = read_call(tmp_path, {})
    assert '[{"name": "look"}]' in whole(open_named(tmp_path / "t", "thinks"), row.messages, row.tools)


def test_tools_and_calls_that_the_template_leaves_out_are_told(tmp_path):
    row = read_call(tmp_path, {})
    rendered = open_named(tmp_path / "t", "marks").render(row.messages, row.tools)
    assert rendered.notes == (calls_dropped, tools_dropped)


def test_a_template_is_known_by_the_special_tokens_that_it_reads(tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    ended = [open_with(tmp_path, template, {"eos_token": token}) for token in ("<|end|>", "<s>")]
    assert whole(
        ended[1], [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    ).endswith("<s>")
    assert ended[0].template_sha256 != ended[1].template_sha256
    unread = open_with(tmp_path, template, {"eos_token": "<s>", "bos_token": "<|user|>"})
    assert unread.template_sha256 == ended[1].template_sha256


def test_the_date_of_today_is_not_in_the_tokens(tmp_path):
    dated = (
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        "<s>{{ date_string }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    )
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert whole(open_with(tmp_path / "t", dated), messages).startswith(f"<s>{fixed_date}<|user|>q")
