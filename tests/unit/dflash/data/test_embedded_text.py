import sys

import pytest

from dflash.contract.errors import DataError
from dflash.data import embedded_text
from dflash.data.embedded_text import embedded_conversations


@pytest.fixture
def fresh_cache():
    embedded_conversations.cache_clear()
    yield
    embedded_conversations.cache_clear()


def test_several_hundred_conversations_of_mixed_length():
    rows = embedded_conversations()
    sizes = sorted(len(row["messages"][1]["content"]) for row in rows)
    assert 600 <= len(rows) <= 1500
    assert sizes[0] >= embedded_text.least_characters
    assert sizes[len(sizes) // 10] < 250 < 800 < sizes[len(sizes) * 9 // 10]


def test_every_row_is_one_question_and_one_answer():
    for row in embedded_conversations():
        question, answer = row["messages"]
        assert (question["role"], answer["role"]) == ("user", "assistant")
        assert question["content"].strip()
        assert answer["content"].strip()


def test_no_answer_and_no_id_comes_twice():
    rows = embedded_conversations()
    assert len({row["messages"][1]["content"] for row in rows}) == len(rows)
    assert len({row["id"] for row in rows}) == len(rows)


def test_the_text_is_the_reference_that_python_carries():
    answers = [row["messages"][1]["content"] for row in embedded_conversations()]
    assert any("assert statement" in answer or '"assert"' in answer for answer in answers)
    assert sum(map(len, answers)) > 300_000


@pytest.mark.usefixtures("fresh_cache")
def test_sections_become_questions_and_paragraphs_answers(monkeypatch):
    body = "x" * 60 + "\n\n" + "y" * 70
    text = f"{'i' * 50}\n\nA  title\n********\n\n{body}\n"
    monkeypatch.setattr(embedded_text, "_topics", lambda: {"b": text, "a": text})
    texts = [[m["content"] for m in row["messages"]] for row in embedded_conversations()]
    assert texts == [
        ["What does the Python reference say about a?", "i" * 50],
        ["What does the Python reference say about A title?", body],
    ]


@pytest.mark.usefixtures("fresh_cache")
def test_a_paragraph_without_end_is_cut_between_lines(monkeypatch):
    line = "word " * 20
    monkeypatch.setattr(embedded_text, "_topics", lambda: {"long": "\n".join([line] * 100)})
    answers = [row["messages"][1]["content"] for row in embedded_conversations()]
    assert max(map(len, answers)) <= 2 * embedded_text.paragraph_characters
    assert set("\n".join(answers).split("\n")) <= {line.rstrip(), ""}


@pytest.mark.usefixtures("fresh_cache")
def test_a_python_without_the_text_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"data\.path"):
        embedded_conversations()
