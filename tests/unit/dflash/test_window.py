import dataclasses
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.anchors import draw_anchors, label_blocks
from dflash.batch import Batch
from dflash.contract.config import TrainConfig, load_config
from dflash.data.documents import Books, Document, Documents
from dflash.random_keys import random_keys
from dflash.window import batches, plan_windows, steps_in_all

fixed = np.array([50, 10, 30, 20, 60, 40, 15, 25, 35, 45])


@pytest.mark.parametrize(
    ("seed", "epoch", "windows"),
    [
        (0, 0, [[0, 2, 9], [1, 8, 5, 4], [3, 6, 7]]),
        (0, 1, [[8, 7, 4], [2, 6, 5, 9], [0, 1, 3]]),
        (1, 0, [[3, 5, 2, 9], [7, 0, 8], [6, 1, 4]]),
    ],
)
def test_windows_of_a_key_are_these_for_ever(seed, epoch, windows):
    planned = plan_windows(fixed, 100, seed=seed, epoch=epoch)
    assert [window.tolist() for window in planned] == windows


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200), st.integers(0, 3))
def test_a_window_closes_at_the_first_document_end_at_or_past_its_tokens(sizes, window_tokens, epoch):
    lengths = np.array(sizes)
    keys = random_keys(len(sizes), seed=0, purpose="order", epoch=epoch).tolist()
    expected, current = [], []
    for document in sorted(range(len(sizes)), key=lambda d: keys[d]):
        current.append(document)
        if sum(sizes[d] for d in current) >= window_tokens:
            expected.append(current)
            current = []
    expected += [current] if current else []
    assert [w.tolist() for w in plan_windows(lengths, window_tokens, seed=0, epoch=epoch)] == expected


def make_documents(count: int = 60, longest: int = 100) -> Documents:
    random = np.random.default_rng(1)
    items = []
    for line in range(count):
        length = int(random.integers(8, longest + 1))
        mask = random.random(length) < 0.7
        mask[3:5] = True
        ids = random.integers(0, 4096, length).astype(np.int32)
        items.append(Document(ids=ids, loss_mask=mask, file="made", line=line + 1))
    books = Books(
        rows_read=count,
        rows_usable=count,
        refused=(),
        warnings=(),
        supervised_share=0.7,
        distinct_texts=count,
    )
    return Documents(tuple(items), books)


def configure(**knobs: object) -> TrainConfig:
    small = {
        "drafter.block_size": 8,
        "data.max_length": 100,
        "pipeline.token_budget": 200,
        "window.tokens": 600,
        "run.epochs": 2,
        "objective.anchors_per_document": 4,
    }
    return load_config(None).replacing({**small, **{k.replace("__", "."): v for k, v in knobs.items()}})


def blocks_of(batch: Batch) -> dict[int, tuple[list, list, list]]:
    """document → (anchor positions, labels, weights), through the packed tensors."""
    found = {}
    owner = batch.document_ids[batch.anchors]
    for i, document in enumerate(batch.documents):
        mine = owner == i
        found[document] = (
            batch.positions[batch.anchors[mine]].tolist(),
            batch.labels[mine].tolist(),
            batch.weights[mine].tolist(),
        )
    return found


def signal(stream: list[Batch]) -> dict[int, dict[int, tuple[list, list, list]]]:
    """step → all blocks of the window: what the update depends on."""
    steps = defaultdict(dict)
    for batch in stream:
        steps[batch.window.step] |= blocks_of(batch)
    return dict(steps)


@pytest.mark.parametrize("layout", ["flat", "packed", "padded"])
@pytest.mark.parametrize("loss", ["dflash", "dpace"])
def test_batches_hold_their_windows_documents(layout, loss):
    documents, config = make_documents(), configure(objective__loss=loss)
    stream = list(batches(documents, config, layout=layout))
    assert [batch.id for batch in stream] == list(range(len(stream)))
    assert [batch.window.step for batch in stream] == sorted(batch.window.step for batch in stream)
    step = 0
    for epoch in range(2):
        for members in plan_windows(documents.lengths, 600, seed=0, epoch=epoch):
            mine = [batch for batch in stream if batch.window.step == step]
            info = mine[0].window
            assert {batch.window for batch in mine} == {info}
            assert sorted(d for batch in mine for d in batch.documents) == sorted(members.tolist())
            assert (info.epoch, info.batches, info.documents) == (epoch, len(mine), len(members))
            assert info.tokens == documents.lengths[members].sum() == sum(batch.tokens for batch in mine)
            assert info.supervised_tokens == sum(documents.items[d].loss_mask.sum() for d in members)
            assert info.processed_tokens == sum(batch.layout.processed_tokens for batch in mine)
            whole = sum(batch.weights.double().sum().item() for batch in mine)
            expected = len(members) if loss == "dpace" else whole
            assert info.denominator == pytest.approx(expected)
            step += 1
    assert step == steps_in_all(documents.lengths, config) == stream[-1].window.step + 1


@pytest.mark.parametrize("layout", ["flat", "packed", "padded"])
@pytest.mark.parametrize("loss", ["dflash", "dpace"])
def test_tensors_are_those_of_the_documents(layout, loss):
    documents, config = make_documents(), configure(objective__loss=loss)
    for batch in batches(documents, config, layout=layout):
        lengths = np.array(batch.lengths)
        items = [documents.items[d] for d in batch.documents]
        assert batch.lengths == tuple(len(item.ids) for item in items)
        assert batch.input_ids.tolist() == [i for item in items for i in item.ids.tolist()]
        assert batch.positions.tolist() == [p for length in lengths for p in range(length)]
        assert batch.document_ids.tolist() == np.repeat(np.arange(len(items)), lengths).tolist()
        assert np.all(np.diff(batch.anchors.numpy()) > 0)
        assert batch.layout.packed == (layout != "padded")
        assert layout != "flat" or batch.layout.flat
        assert (batch.tokens if batch.layout.packed else batch.layout.processed_tokens) <= 200
        for document, (anchors, labels, weights) in blocks_of(batch).items():
            item = documents.items[document]
            drawn = draw_anchors(item.loss_mask, seed=0, epoch=batch.window.epoch, document=document, limit=4)
            gamma = config.gamma if loss == "dflash" else None
            expected = label_blocks(item.ids, item.loss_mask, drawn, 8, gamma)
            assert anchors == drawn.tolist()
            assert (labels, weights) == (expected[0].tolist(), expected[1].tolist())


def test_the_training_signal_does_not_depend_on_budget_or_layout():
    documents = make_documents()
    one = signal(list(batches(documents, configure(), layout="packed")))
    for budget, layout in ((200, "padded"), (100, "packed"), (600, "flat"), (450, "padded")):
        other = signal(list(batches(documents, configure(pipeline__token_budget=budget), layout=layout)))
        assert other == one


def test_every_document_is_trained_once_an_epoch_with_other_anchors():
    documents = make_documents()
    epochs = defaultdict(dict)
    for batch in batches(documents, configure(), layout="packed"):
        epochs[batch.window.epoch] |= blocks_of(batch)
    assert [len(epochs[epoch]) for epoch in (0, 1)] == [60, 60]
    assert sum(epochs[0][d][0] != epochs[1][d][0] for d in range(60)) > 50


@pytest.mark.parametrize("knob", ["data__seed", "run__epochs"])
def test_only_the_seed_changes_the_signal(knob):
    documents = make_documents()
    one = signal(list(batches(documents, configure(), layout="packed")))
    other = signal(list(batches(documents, configure(**{knob: 1}), layout="packed")))
    assert (other[0] == one[0]) == (knob == "run__epochs")


@pytest.mark.parametrize("start", [0, 1, 4, 6, 99])
def test_a_resumed_stream_goes_on_where_the_first_would_have(start):
    documents, config = make_documents(), configure()
    whole = [batch for batch in batches(documents, config, layout="packed") if batch.window.step >= start]
    rest = list(batches(documents, config, layout="packed", start_step=start))
    assert [batch.window for batch in rest] == [batch.window for batch in whole]
    assert signal(rest) == signal(whole)
    assert [batch.id for batch in rest] == list(range(len(rest)))


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_a_step_limit_ends_the_stream(limit):
    documents = make_documents()
    every = steps_in_all(documents.lengths, configure())
    config = configure(run__max_steps=limit)
    stream = list(batches(documents, config, layout="packed"))
    assert steps_in_all(documents.lengths, config) == min(limit, every) == stream[-1].window.step + 1
    assert stream[-1].window.batches == sum(b.window.step == stream[-1].window.step for b in stream)


def test_counting_steps_goes_no_further_than_the_run(monkeypatch):
    # "many epochs, but at most 7 steps": planning them all would take hours before the first step
    planned = []

    def plan(lengths, window_tokens, *, seed, epoch):
        planned.append(epoch)
        return plan_windows(lengths, window_tokens, seed=seed, epoch=epoch)

    monkeypatch.setattr("dflash.window.plan_windows", plan)
    config = load_config(None, ["run.epochs=10000", "run.max_steps=7", "window.tokens=2048"])
    assert steps_in_all(np.full(40, 128), config) == 7
    assert planned == [0, 1, 2]  # three windows each


@pytest.mark.parametrize("layout", ["flat", "packed", "padded"])
@pytest.mark.parametrize("limit", [1, 3, 512])
def test_each_document_of_a_pack_has_its_own_anchors(layout, limit):
    """C023: eight short conversations and a long one share a batch, not a number of anchors."""
    random = np.random.default_rng(4)
    lengths = [9, 12, 8, 15, 10, 11, 9, 14, 100]
    items = []
    for line, length in enumerate(lengths, start=1):
        mask = random.random(length) < 0.6
        mask[2:4] = True
        ids = random.integers(0, 4096, length).astype(np.int32)
        items.append(Document(ids=ids, loss_mask=mask, file="made", line=line))
    documents = dataclasses.replace(make_documents(len(items)), items=tuple(items))
    config = configure(
        objective__anchors_per_document=limit, pipeline__token_budget=900, window__tokens=900, run__epochs=1
    )
    (batch,) = batches(documents, config, layout=layout)
    assert len(batch.documents) == len(lengths)
    candidates = {number: int((i.loss_mask[:-1] & i.loss_mask[1:]).sum()) for number, i in enumerate(items)}
    drawn = {number: len(anchors) for number, (anchors, _, _) in blocks_of(batch).items()}
    assert drawn == {number: min(limit, count) for number, count in candidates.items()}
    assert min(drawn.values()) > 0
    alone = next(
        b
        for b in batches(
            documents,
            configure(objective__anchors_per_document=limit, run__epochs=1, data__max_length=100,
                      pipeline__token_budget=100, window__tokens=900),
            layout=layout,
        )
        if 0 in b.documents
    )  # fmt: skip
    assert blocks_of(alone)[0] == blocks_of(batch)[0]
