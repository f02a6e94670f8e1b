"""What a reader of the figures is told to doubt."""

from types import SimpleNamespace

import pytest

from dflash.evaluation.outcome import Outcome, Request


@pytest.mark.parametrize(
    ("path", "trained_on", "part", "told"),
    [
        ("", "others", "all", "the embedded text is measured"),  # an export, whose data lie elsewhere
        ("", None, "all", "the embedded text is measured"),  # a published drafter
        ("", "these", "all", "was trained on these texts"),  # a run on the embedded text
        ("", "the rest", "held out", None),
        ("a.jsonl", "others", "all", None),
        ("a.jsonl", "these", "all", "was trained on these texts"),
    ],
)
def test_which_texts_are_measured_for_want_of_others_is_told(path, trained_on, part, told):
    subject = SimpleNamespace(trained_on=trained_on, config=SimpleNamespace(data=SimpleNamespace(path=path)))
    doubts = Outcome(
        subject=subject,
        stored_dtype="float32",
        target=None,
        request=Request(),
        documents=SimpleNamespace(identity="these"),
        part=part,
        warnings=(),
        texts=(),
    )._doubts()
    assert [told in doubt for doubt in doubts] == ([] if told is None else [True])
    assert all("--data" in doubt for doubt in doubts)
