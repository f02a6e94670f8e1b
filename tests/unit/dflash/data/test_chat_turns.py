from collections.abc import Sequence

import jinja2
import pytest

from dflash.data.chat_turns import (
    Message,
    RenderedChat,
    RenderError,
    Template,
    answer_changed,
    blanks_changed,
    compare_answer,
    prompt_unfit,
    text_added,
    thinking_dropped,
)


def template(source: str) -> Template:
    environment = jinja2.Environment()
    environment.globals["refuse"] = _refuse
    compiled = environment.from_string(source)
    return lambda messages, prompt: compiled.render(messages=messages, add_generation_prompt=prompt)


def _refuse(reason: str) -> None:
    raise jinja2.TemplateError(reason)


def trained(chat: RenderedChat) -> list[str]:
    return [chat.text[turn.start : turn.end] for turn in chat.turns()]


def talk(*contents: str) -> list[Message]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


plain = template("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}")


def test_an_answer_is_trained_with_its_end_and_without_its_header():
    assert trained(RenderedChat(plain, talk("q", "one", "r", "two"))) == ["one</>", "two</>"]


def test_blanks_of_the_answer_are_kept_and_those_after_the_mark_are_not():
    assert trained(RenderedChat(plain, talk("q", "  a \n\n"))) == ["  a \n\n</>"]


@pytest.mark.parametrize(
    "answer", ["q", "<assistant>", "</>\n<assistant>x</>", "<user>q</>\n", "contenthere"]
)
def test_an_answer_that_looks_like_the_template_or_the_question_is_found(answer: str):
    chat = RenderedChat(plain, talk("q", answer, "q", answer))
    assert trained(chat) == [f"{answer}</>"] * 2


def test_a_mark_of_blanks_alone_is_trained():
    lines = template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}")
    assert trained(RenderedChat(lines, talk("q", "a"))) == ["a\n\n"]


def test_a_mark_that_only_the_last_turn_has_is_trained_there():
    last = template(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if loop.last %}</s>{% endif %}{% endfor %}"
    )
    assert trained(RenderedChat(last, talk("q", "a", "r", "b"))) == ["a", "b</s>"]


def test_a_template_that_trims_is_followed_and_not_called_a_change():
    trims = template("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}")
    chat = RenderedChat(trims, talk("q", "  a  "))
    assert trained(chat) == ["a</>"]
    assert chat.turns()[0].notes == ()


def test_a_rewritten_answer_is_trained_as_written_and_called_a_change():
    drops = template(
        "{% for m in messages %}<{{ m.role }}>"
        "{% if not loop.last %}{{ m.content.split('#')[-1] }}{% else %}{{ m.content }}{% endif %}"
        "</>{% endfor %}"
    )
    chat = RenderedChat(drops, talk("q", "why#a", "r", "how#b"))
    assert trained(chat) == ["a</>", "how#b</>"]
    assert [turn.notes for turn in chat.turns()] == [(answer_changed,), ()]


# As Qwen3 does: an empty think block before a last answer that has none, the block rewritten when it has one.
thinks = template(
    "{% for m in messages %}<{{ m.role }}>\n"
    "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "<think>\n{{ m.content.split('</think>')[0].split('<think>')[-1].strip() }}\n</think>\n\n"
    "{{ m.content.split('</think>')[-1].strip() }}"
    "{% elif m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def test_an_empty_think_block_of_the_template_is_header():
    assert trained(RenderedChat(thinks, talk("q", "a"))) == ["a</>"]


def test_thinking_of_the_answer_is_trained_from_where_the_target_begins():
    assert trained(RenderedChat(thinks, talk("q", "<think> b </think>a"))) == ["<think>\nb\n</think>\n\na</>"]


# As Qwen3.5 does: the prompt opens the thinking, so that the target writes what follows.
opens = template(
    "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' and loop.last %}"
    "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n<think>\n{% endif %}"
)


def test_thinking_that_the_prompt_opens_is_trained_from_there():
    messages = [*talk("q"), {"role": "assistant", "content": "a", "reasoning_content": "why"}]
    (turn,) = RenderedChat(opens, messages).turns()
    assert trained(RenderedChat(opens, messages)) == ["why\n</think>\n\na</>"]
    assert turn.notes == ()


def test_an_earlier_answer_that_the_prompt_does_not_fit_is_told():
    messages = [*talk("q", "a", "r"), {"role": "assistant", "content": "b", "reasoning_content": "why"}]
    chat = RenderedChat(opens, messages)
    assert trained(chat) == ["a</>", "why\n</think>\n\nb</>"]
    assert [turn.notes for turn in chat.turns()] == [(prompt_unfit,), ()]


def test_text_that_a_template_puts_after_the_prompt_is_the_targets_own():
    channels = template(
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}final:{% endif %}"
        "{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    chat = RenderedChat(channels, talk("q", "a"))
    assert trained(chat) == ["final:a</>"]
    assert chat.turns()[0].notes == (text_added,)


def test_without_a_generation_prompt_a_header_is_no_part_of_a_turn_but_blanks_are():
    words = template(
        "{% for m in messages %}{{ '[q]' if m.role == 'user' else ' ' }}{{ m.content }}{% endfor %}"
    )
    assert trained(RenderedChat(words, talk("q", "a"))) == [" a"]


@pytest.mark.parametrize(
    ("given", "written", "notes"),
    [
        ("a", " a\n", []),
        ("<think>x</think>\na", "a", [thinking_dropped]),
        ("x</think>a", "a", [answer_changed]),
        ("a  b", "a b", [blanks_changed]),
        ("<think>x</think>a", "<think>\nx\n</think>\n\na", [blanks_changed]),
        ("a", "b", [answer_changed]),
    ],
)
def test_what_became_of_an_answer_has_a_name(given: str, written: str, notes: list[str]):
    assert compare_answer(given, written) == notes


@pytest.mark.parametrize(
    "prompt", ["", "{% if add_generation_prompt %}<bot>{% endif %}"], ids=["none", "another"]
)
def test_without_a_prompt_that_fits_a_header_ends_where_it_depends_on_the_content(prompt: str):
    counts = template(
        "{% for m in messages %}<{{ m.role }} {{ m.content | length }}>{{ m.content }}</>{% endfor %}"
        + prompt
    )
    assert trained(RenderedChat(counts, talk("q", "answer"))) == ["6>answer</>"]


calls = template(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}\n{% endif %}!{{ c }}{% endfor %}"
    "</>{% endfor %}"
)


def test_tool_calls_are_trained_where_the_template_writes_them():
    messages = [*talk("q"), {"role": "assistant", "content": "", "tool_calls": ["f()", "g()"]}]
    messages += [
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "a", "tool_calls": ["h()"]},
    ]
    assert trained(RenderedChat(calls, messages)) == ["!f()\n!g()</>", "a\n!h()</>"]


def test_a_bare_call_that_the_template_leaves_out_is_no_answer():
    messages = [*talk("q"), {"role": "assistant", "content": "", "tool_calls": ["f()"]}]
    messages += [{"role": "tool", "content": "1"}, {"role": "assistant", "content": "a"}]
    assert trained(RenderedChat(plain, messages)) == ["a</>"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}{{ refuse('roles!') }}{% endfor %}", "refused by the chat template: roles!"),
        ("{% for m in messages %}{{ m.content.nothing() }}{% endfor %}", "refused by the chat template"),
        ("{{ messages[0].content }}", "message 2 not at all"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "message 2 more than once"),
    ],
)
def test_a_template_that_cannot_is_refused_with_the_reason(source: str, reason: str):
    with pytest.raises(RenderError, match=reason):
        RenderedChat(template(source), talk("q", "a")).turns()


def test_content_spans_of_all_roles():
    messages: Sequence[Message] = talk("ask", "tell")
    chat = RenderedChat(plain, messages)
    assert [chat.text[slice(*chat.content(i))] for i in range(2)] == ["ask", "tell"]
