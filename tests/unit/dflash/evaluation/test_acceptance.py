"""The one-pass method gives the acceptance lengths that decoding gave (dflash 0.1.0, tests/data/golden)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dflash.drafter_files import open_drafter
from dflash.evaluation.acceptance import (
    Answer,
    AnswerAcceptance,
    answers_in,
    measure_text,
    summarize,
    walk,
)

golden = Path(__file__).parents[3] / "data" / "golden"
decoded = json.loads((golden / "infer_golden.json").read_text())
requests = decoded["generate"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Many small products: more threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def parts():
    target = load_file(golden / "tiny_target" / "model.safetensors")
    drafter = open_drafter(golden / "tiny_drafter")
    return drafter, target["model.embed_tokens.weight"], target["lm_head.weight"]


@pytest.fixture(scope="module")
def texts():
    """Greedy texts of 8 + 40 tokens, of which decoding was given 32, and the target's states."""
    held = load_file(golden / "heldout.safetensors")
    return list(zip(held["eval_text"], held["eval_features"], strict=True))


def measure(parts, text, *answers, **options):
    ids, taps = text
    return measure_text(*parts, taps=taps, ids=ids, answers=answers, **options)


@pytest.mark.parametrize("at_once", [64, 5])
def test_all_six_requests_have_the_lengths_that_decoding_had(at_once, parts, texts):
    whole = Answer(start=8, end=40, limit=40)
    measured = [measure(parts, text, whole, at_once=at_once)[0] for text in texts]
    assert [text[0][8:40].tolist() for text in texts] == [r["new_tokens"] for r in requests]
    assert [list(one.lengths) for one in measured] == [r["acceptance_lengths"] for r in requests]
    figures = summarize(measured, 4)
    assert figures.pooled == pytest.approx(decoded["tau_pooled"], rel=1e-12)
    assert figures.mean_of_means == pytest.approx(decoded["tau_mean_of_means"], rel=1e-12)
    assert (figures.answers, figures.blocks, figures.tokens) == (6, 136, 6 * 31)


def draft_alone(parts, text, anchor, size):
    """What one block of that many slots drafts, run by itself over the states before its anchor."""
    from dflash.attention import SdpaView

    drafter, embedding, head = parts
    ids, taps = text
    block = torch.full((size,), drafter.spec.mask_token_id)
    block[0] = ids[anchor]
    places = torch.arange(anchor, anchor + size)
    view = SdpaView.over(torch.tensor([anchor]), [1], (anchor,), size, drafter.spec, torch.device("cpu"))
    with torch.no_grad():
        out = drafter(taps[:anchor], torch.arange(anchor), embedding[block], places, view)
        return (out[1:] @ head.T).argmax(-1)


def test_every_place_counts_as_a_block_of_its_own_would(parts, texts):
    """Near the limit blocks are shorter, and full layers see the difference."""
    for text in texts[1:3]:
        (one,) = measure(parts, text, Answer(start=8, end=40, limit=40))
        for place, anchor in enumerate(range(8, 39)):
            drafts = draft_alone(parts, text, anchor, min(4, 40 - anchor))
            right = (drafts == text[0][anchor + 1 : anchor + 1 + len(drafts)]).long().cumprod(0).sum()
            assert one.accepted[place] == right
            assert one.offered[place] == len(drafts)


def test_a_block_near_the_limit_counts_as_the_shorter_one_does(parts, texts):
    """There is one place in the six texts where the whole block would be counted otherwise."""
    counts = []
    for limit in (14, 15, 16):
        (one,) = measure(parts, texts[5], Answer(start=limit - 3, end=limit, limit=limit))
        (whole,) = measure(parts, texts[5], Answer(start=limit - 3, end=limit))
        drafts = draft_alone(parts, texts[5], limit - 3, 3)
        right = (drafts == texts[5][0][limit - 2 : limit]).long().cumprod(0).sum()
        assert one.accepted[0] == right
        counts.append((int(one.accepted[0]), int(whole.accepted[0])))
    assert [short != whole for short, whole in counts] == [False, True, False]


def test_after_a_stop_token_blocks_keep_their_size(parts, texts):
    """An answer that ended of itself, far from the limit: its last block is whole, its length clipped."""
    for text in texts:
        (free,) = measure(parts, text, Answer(start=8, end=30))
        (far,) = measure(parts, text, Answer(start=8, end=30, limit=40))
        (longer,) = measure(parts, text, Answer(start=8, end=40))
        assert free.lengths == far.lengths
        assert np.array_equal(free.accepted, np.minimum(longer.accepted[:21], 29 - np.arange(8, 29)))
        assert sum(free.lengths) == 30 - 8 - 1


def test_several_answers_of_one_text_are_measured_each_as_if_alone(parts, texts):
    one, two, short = Answer(start=8, end=20), Answer(start=24, end=40, limit=40), Answer(start=22, end=23)
    together = measure(parts, texts[0], one, short, two)
    alone = [measure(parts, texts[0], answer)[0] for answer in (one, short, two)]
    assert [t.lengths for t in together] == [a.lengths for a in alone]
    assert [t.accepted.tolist() for t in together] == [a.accepted.tolist() for a in alone]
    assert together[1].lengths == ()  # its only token comes from the prompt


def test_states_at_and_behind_the_last_anchor_are_not_needed(parts, texts):
    ids, taps = texts[2]
    whole = Answer(start=8, end=40, limit=40)
    (all_there,) = measure(parts, (ids, taps), whole)
    (less,) = measure(parts, (ids, taps[:38]), whole)
    assert less.lengths == all_there.lengths


@pytest.mark.parametrize(
    "answers",
    [
        [Answer(start=0, end=4)],
        [Answer(start=8, end=30, limit=29)],
        [Answer(start=9, end=20), Answer(start=5, end=8)],
    ],
)
def test_answers_without_a_prompt_or_out_of_order_are_a_mistake(answers, parts, texts):
    with pytest.raises(ValueError, match="answers"):
        measure(parts, texts[0], *answers)


def test_no_answers_give_nothing(parts, texts):
    assert measure(parts, texts[0]) == ()
    figures = summarize([], 4)
    assert (figures.pooled, figures.mean_of_means, figures.blocks) == (None, None, 0)
    assert [slot.blocks for slot in figures.slots] == [0, 0, 0]


@pytest.mark.parametrize(
    ("accepted", "lengths"),
    [
        ([], ()),
        ([0], (1,)),
        ([3], (1,)),  # no more than the answer has left
        ([0, 0, 0], (1, 1, 1)),
        ([2, 9, 9, 0], (3, 1)),
        ([1, 9, 1, 9, 5], (2, 2, 1)),
    ],
)
def test_the_walk_goes_on_behind_what_a_block_brought(accepted, lengths):
    assert walk(np.array(accepted, np.int64)) == lengths


def test_slots_count_blocks_that_had_a_draft_there():
    one = AnswerAcceptance(accepted=np.array([2, 3, 0, 1]), lengths=(3, 1), offered=np.array([3, 3, 2, 1]))
    other = AnswerAcceptance(accepted=np.array([1]), lengths=(1,), offered=np.array([1]))
    figures = summarize(
        [one, other, AnswerAcceptance(accepted=np.array([], int), lengths=(), offered=np.array([], int))], 4
    )
    assert [(s.slot, s.accepted, s.blocks) for s in figures.slots] == [(1, 3, 3), (2, 1, 1), (3, 0, 1)]
    assert [(s.anywhere_accepted, s.anywhere) for s in figures.slots] == [(4, 5), (2, 3), (1, 2)]
    assert (figures.pooled, figures.mean_of_means, figures.answers) == (5 / 3, 1.5, 2)


def test_answers_are_runs_of_supervised_tokens():
    mask = np.array([0, 0, 1, 1, 1, 0, 1, 0, 1, 1], bool)
    assert [(a.start, a.end, a.limit) for a in answers_in(mask)] == [
        (2, 5, None),
        (6, 7, None),
        (8, 10, None),
    ]
    assert [(a.start, a.end) for a in answers_in(np.array([1, 1, 1, 0], bool))] == [(1, 3)]
    assert answers_in(np.zeros(4, bool)) == answers_in(np.array([1, 0], bool)) == ()
