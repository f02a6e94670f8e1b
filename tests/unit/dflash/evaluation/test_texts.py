"""Which texts are measured: spread over the data, prompts up to the first answer, with their limits."""

import numpy as np
import pytest

from dflash.contract.errors import DataError
from dflash.data.documents import Document
from dflash.evaluation.texts import answered_texts, choose_documents, given_texts


def document(ids, mask, line=1):
    return Document(ids=np.array(ids, np.int32), loss_mask=np.array(mask, bool), file="f", line=line)


class Counter:
    """A target that counts on from the last token of its prompt."""

    def __init__(self):
        self.asked = []

    def answer(self, prompts, max_new_tokens, stops):
        self.asked.append([list(prompt) for prompt in prompts])
        answers = []
        for prompt in prompts:
            run = range(prompt[-1] + 1, prompt[-1] + 1 + max_new_tokens)
            end = next((i + 1 for i, token in enumerate(run) if token in stops), max_new_tokens)
            answers.append(list(run)[:end])
        return answers


def answered(documents, target, **options):
    chosen = {"max_new_tokens": 5, "stops": {12}, "at_once": 2, "tell": lambda _: None}
    return list(answered_texts(documents, target, **{**chosen, **options}))


@pytest.mark.parametrize(
    ("most", "lines"),
    [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (99, list(range(10)))],
)
def test_documents_are_taken_evenly_from_the_data(most, lines):
    data = [document([1, 2, 3], [0, 1, 1], line=i) for i in range(10)]
    assert [one.line for one in choose_documents(data, most)] == lines


def test_what_stands_before_the_first_answer_is_the_prompt():
    data = [document([1, 2, 7, 8, 3, 9], [0, 0, 1, 1, 0, 1])]
    (text,) = answered(data, Counter())
    assert text.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    (known,) = text.answers
    assert (known.start, known.end, known.limit) == (2, 7, 7)


def test_an_answer_that_stopped_keeps_its_limit():
    (text,) = answered([document([10, 5], [0, 1])], Counter())
    assert text.ids.tolist() == [10, 11, 12]
    assert (text.answers[0].end, text.answers[0].limit) == (3, 6)


def test_prompts_of_like_length_are_asked_together():
    target = Counter()
    data = [document([1] * n + [0], [0] * n + [1], line=n) for n in (3, 1, 2, 5, 4)]
    said = []
    texts = answered(data, target, tell=said.append)
    assert [[len(p) for p in group] for group in target.asked] == [[1, 2], [3, 4], [5]]
    assert [text.line for text in texts] == [1, 2, 3, 4, 5]
    assert said[-1] == "answered 5 of 5 prompts"


def test_texts_without_a_prompt_are_left_out_and_only_such_are_a_mistake():
    bare = document([4, 5], [1, 1])
    assert len(answered([bare, document([1, 2], [0, 1])], Counter())) == 1
    with pytest.raises(DataError, match="prompt"):
        answered([bare], Counter())


def test_given_texts_have_all_their_answers():
    data = [document([1, 2, 7, 8, 3, 9, 9], [0, 0, 1, 1, 0, 1, 1], line=4), document([1, 2], [1, 0])]
    (text,) = given_texts(data)
    assert (text.line, text.ids.tolist()) == (4, [1, 2, 7, 8, 3, 9, 9])
    assert [(a.start, a.end, a.limit) for a in text.answers] == [(2, 4, None), (5, 7, None)]
