import jinja2

from dflash.data.chat_frames import ChatReader, frames_kept
from dflash.data.chat_turns import RenderedChat


class Counted:
    """A template that counts how often it is asked."""

    def __init__(self, source: str) -> None:
        self._template = jinja2.Environment().from_string(source)
        self.calls = 0

    def __call__(self, messages, prompt, tools=()):
        self.calls += 1
        return self._template.render(messages=messages, add_generation_prompt=prompt, tools=tools)


def talk(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"


def test_a_conversation_of_known_roles_is_rendered_once():
    template = Counted(plain)
    reader = ChatReader(template)
    reader.read(talk("q", "a", "r", "b"))
    before = template.calls
    for number in range(5):
        chat = reader.read(talk(f"q{number}", "<user>q</>", "r", f"</>\n{number}"))
        assert [chat.text[turn.start : turn.end] for turn in chat.turns] == [
            "<user>q</></>",
            f"</>\n{number}</>",
        ]
    assert template.calls == before + 5


def test_what_a_template_adds_for_some_contents_is_seen():
    template = Counted(plain + "{% if 'x' in messages[-1].content %}!{% endif %}")
    reader = ChatReader(template)
    for answer in ("a", "x", "b"):
        chat = reader.read(talk("q", answer))
        assert chat.turns == tuple(RenderedChat(template, talk("q", answer)).turns())
    assert chat.text[chat.turns[0].start : chat.turns[0].end] == "b</>"


def test_a_content_that_is_written_twice_is_not_framed():
    reader = ChatReader(Counted("{{ messages[0].content }}|" + plain))
    chat = reader.read(talk("q", "a"))
    assert chat.text == "q|<user>q</>\n<assistant>a</>\n"
    assert [chat.text[turn.start : turn.end] for turn in chat.turns] == ["a</>"]


def test_only_messages_asked_for_are_located():
    reader = ChatReader(Counted(plain))
    chat = reader.read(talk("q", "a", "r", "b"), wanted=[0, 3])
    assert [chat.text[a:b] for a, b in chat.verbatim] == ["q", "b"]


def test_frames_do_not_grow_without_end():
    reader = ChatReader(Counted("{% for m in messages %}{{ m.content }}{% endfor %}"))
    for length in range(frames_kept + 10):
        shape = [{"role": f"user{length}", "content": "q"}, {"role": "assistant", "content": "a"}]
        reader.read(shape)
    assert len(reader._frames) == frames_kept
