import itertools
import threading
import warnings
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from dflash import dense_attention
from dflash.dense_attention import (
    Dense,
    DenseAttentionWarning,
    DenseKernel,
    Plan,
    Row,
    attend_by_length,
    most_plans,
    plan_calls,
    worth_dense,
)


@contextmanager
def short_units():
    """Documents of 16 tokens are long, and lengths are rounded up to eights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_attention, "worth_dense", 16)
        patch.setattr(dense_attention, "granule", 8)
        yield


def starts_of(lengths):
    return [0, *itertools.accumulate(lengths)]


def anything(_shape):
    return True


@pytest.mark.parametrize(
    ("lengths", "dense", "others"),
    [
        ([8192], [Dense(0, 1, 8192, 8192)], []),
        ([2048] * 4, [Dense(0, 4, 2048, 2048)], []),
        ([5], [], [range(1)]),
        ([1023, 1024], [Dense(1023, 1, 1024, 1024)], [range(1)]),
        (
            [100, 3000, 700, 4000, 392],
            [Dense(100, 1, 3000, 3072), Dense(3800, 1, 4000, 4096)],
            [range(1), range(2, 3), range(4, 5)],
        ),
        ([1500, 548], [Dense(0, 1, 1500, 1536)], [range(1, 2)]),
        ([548, 1500], [Dense(548, 1, 1500, 1536)], [range(1)]),
        ([1500, 1500], [Dense(0, 1, 1500, 1536), Dense(1500, 1, 1500, 1536)], []),
        (
            [10, 20, 1280, 1280, 1024, 30, 1280],
            [Dense(30, 2, 1280, 1280), Dense(2590, 1, 1024, 1024), Dense(3644, 1, 1280, 1280)],
            [range(2), range(5, 6)],
        ),
    ],
)
def test_long_documents_get_calls_of_their_own(lengths, dense, others):
    assert plan_calls(starts_of(lengths), anything) == Plan(tuple(dense), tuple(others))


def test_documents_of_a_shape_that_is_not_let_in_go_with_the_others():
    plan = plan_calls(starts_of([2048] * 3 + [1100]), {(2, 2048)}.__contains__)
    assert plan == Plan((Dense(2048, 2, 2048, 2048),), (range(1), range(3, 4)))


@given(st.lists(st.integers(1, 2200), min_size=1, max_size=12), st.integers(0, 4))
def test_every_token_is_attended_once(lengths, refused):
    starts = starts_of(lengths)
    plan = plan_calls(starts, lambda shape: shape[1] // 256 % 5 != refused)
    found = [(call.first, call.first + call.tokens) for call in plan.dense]
    found += [(starts[run.start], starts[run.stop]) for run in plan.others]
    edges = sorted(found)
    assert [first for first, _ in edges] == [0, *(last for _, last in edges[:-1])]
    assert edges[-1][1] == starts[-1]
    for call in plan.dense:
        assert call.length >= worth_dense
        assert call.given % 256 == 0
        assert 0 <= call.given - call.length < 256
        # Rows behind a document are another's, which must not be taken for one's own.
        assert call.documents == 1 or call.given == call.length


class Willing(DenseKernel):
    """On the CPU, too."""

    def suits(self, device, dtype, head_dim):
        return self.failure is None


class Counting:
    """Dense attention by SDPA, and what it was asked for."""

    def __init__(self):
        self.shapes = []

    def __call__(self, query, key, value, scale):
        self.shapes.append(tuple(query.shape[:2]))
        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        out = functional.scaled_dot_product_attention(
            *heads_first, is_causal=True, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)


class Others:
    """Attention document by document, and what it was asked for."""

    def __init__(self):
        self.lengths = []

    def __call__(self, query, key, value, starts, longest, scale):
        assert starts.dtype == torch.int32
        lengths = starts.diff().tolist()
        assert int(starts[0]) == 0
        assert sum(lengths) == len(query) == len(key) == len(value)
        assert max(lengths) == longest
        self.lengths.append(lengths)
        return by_document(query, key, value, lengths, scale)


def by_document(query, key, value, lengths, scale):
    dense = Counting()
    parts = zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
    return torch.cat([dense(*(x[None] for x in part), scale)[0] for part in parts])


def row_of(lengths, heads=4, key_heads=2, width=8):
    generator = torch.Generator().manual_seed(sum(lengths))
    query, key, value = (
        torch.randn(sum(lengths), h, width, generator=generator) for h in (heads, key_heads, key_heads)
    )
    starts = starts_of(lengths)
    return Row(
        query=query,
        key=key,
        value=value,
        starts=torch.tensor(starts, dtype=torch.int32),
        host_starts=starts,
        scale=0.3,
    )


def exact(row):
    return by_document(*row.tensors, row.starts.diff().tolist(), row.scale)


def close(found, row):
    torch.testing.assert_close(found, exact(row), rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([1, 3, 15, 16, 17, 24, 31, 32]), min_size=1, max_size=12))
def test_a_planned_row_is_attended_as_document_by_document(lengths):
    with short_units():
        row, dense, others = row_of(lengths), Willing(Counting()), Others()
        close(attend_by_length(row, dense, others), row)
    assert dense.failure is None


def test_what_is_alike_goes_in_one_call_and_what_is_short_in_another():
    with short_units():
        row, call, others = row_of([3, 32, 32, 5, 17, 2]), Counting(), Others()
        dense = Willing(call)
        assert dense.serves(row.kind, others)
        call.shapes.clear()
        others.lengths.clear()
        close(attend_by_length(row, dense, others), row)
    assert call.shapes == [(2, 32), (1, 24)]
    assert others.lengths == [[3, 5, 2]]


@pytest.mark.parametrize("lengths", [[32], [16, 16, 16], [19]])
def test_one_call_for_all_copies_nothing(lengths, monkeypatch):
    with short_units():
        row, dense = row_of(lengths), Willing(Counting())
        assert dense.serves(row.kind, Others())
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "new_empty", None)
            close(attend_by_length(row, dense, None), row)


def test_short_documents_alone_are_left_to_the_other_kernel_as_they_are():
    row, others = row_of([5, 1000, 3]), Others()
    close(attend_by_length(row, Willing(None), others), row)
    assert others.lengths == [[5, 1000, 3]]


def test_no_token_sees_what_lies_behind_its_document():
    with short_units():
        lengths = [17, 3, 20, 9]
        row, dense, others = row_of(lengths), Willing(Counting()), Others()
        before = attend_by_length(row, dense, others)
        for first, last in itertools.pairwise(row.host_starts):
            for x in row.tensors:
                x[first:last] += 1
            after = attend_by_length(row, dense, others)
            unseen = torch.ones(sum(lengths), dtype=torch.bool)
            unseen[first:last] = False
            assert torch.equal(before[unseen], after[unseen])
            assert not torch.equal(before[first:last], after[first:last])
            before = after


@pytest.mark.parametrize("layout", ["by head", "within a wider row"])
def test_strides_of_any_kind_are_served(layout):
    with short_units():
        row, others = row_of([20, 5, 32, 32, 9]), Others()
        if layout == "by head":
            tensors = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in row.tensors]
        else:
            tensors = torch.cat(row.tensors, dim=1).split([4, 2, 2], dim=1)
        odd = dense_attention.replace(row, **dict(zip(("query", "key", "value"), tensors, strict=True)))
        close(attend_by_length(odd, Willing(Counting()), others), row)


def test_plans_do_not_depend_on_the_length_of_the_row():
    with short_units():
        dense, others = Willing(Counting()), Others()
        for tail in range(1, 9):
            row = row_of([17, tail])
            tensors = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in row.tensors]
            row = dense_attention.replace(row, query=tensors[0], key=tensors[1], value=tensors[2])
            attend_by_length(row, dense, others)
        assert len(dense._threads.plans) == 1


class Broken(Counting):
    """Fails from a call on."""

    def __init__(self, error, from_call):
        super().__init__()
        self.error, self.from_call = error, from_call

    def __call__(self, *args):
        out = super().__call__(*args)
        if len(self.shapes) >= self.from_call:
            raise self.error
        return out


@pytest.mark.parametrize("from_call", [1, 2, 4, 5])
def test_a_kernel_that_fails_is_not_used_again_and_that_is_said_once(from_call):
    """While it is tried out (the first three calls), or with documents."""
    call, others = Broken(RuntimeError("No valid execution plans\nbuilt"), from_call), Others()
    dense = Willing(call)
    with short_units():
        row = row_of([17, 5, 30])
        with pytest.warns(DenseAttentionWarning, match="No valid execution plans$") as told:
            close(attend_by_length(row, dense, others), row)
        used = len(call.shapes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            close(attend_by_length(row, dense, others), row)
    assert len(told) == 1
    assert len(call.shapes) == used
    assert others.lengths[-2:] == [[17, 5, 30]] * 2
    assert not dense.serves((torch.device("cpu"), torch.float32, 1, 1, 8), others)


def test_running_out_of_memory_is_not_taken_for_a_failure_of_the_kernel():
    dense = Willing(Broken(torch.OutOfMemoryError("no more"), 4))
    with short_units(), pytest.raises(torch.OutOfMemoryError):
        attend_by_length(row_of([17]), dense, Others())
    assert dense.failure is None


def not_causal(query, key, value, scale):
    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    return functional.scaled_dot_product_attention(*heads_first, scale=scale, enable_gqa=True).transpose(1, 2)


def mixed_up_heads(query, key, value, scale):
    return Counting()(query, key.flip(2), value.flip(2), scale)


def not_numbers(query, key, value, scale):
    return torch.full_like(query, torch.nan)


def faint_leak(query, key, value, scale):
    return Counting()(query, key, value, scale) + 1e-6 * query.sum()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (not_causal, "off those of the other kernel"),
        (mixed_up_heads, "off those of the other kernel"),
        (not_numbers, "off those of the other kernel"),
        (faint_leak, "changes its bits"),
    ],
)
def test_a_kernel_that_does_not_agree_is_never_used(call, why):
    dense = Willing(call)
    row = row_of([1100, 10])
    with pytest.warns(DenseAttentionWarning, match=why):
        close(attend_by_length(row, dense, Others()), row)
    assert why in dense.failure


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    assert Willing(Counting()).serves(row_of([5]).kind, Others())
    assert torch.equal(torch.get_rng_state(), before)


def test_plans_of_a_thread_are_limited():
    call, others = Counting(), Others()
    dense = Willing(call)
    with short_units():
        for count in range(most_plans + 5):
            row = row_of([8 * (count + 2)], heads=1, key_heads=1)
            close(attend_by_length(row, dense, others), row)
        assert len(set(call.shapes[3:])) == most_plans
        others.lengths.clear()
        known = row_of([16], heads=1, key_heads=1)
        close(attend_by_length(known, dense, others), known)
        assert others.lengths == []
        new = row_of([8 * (most_plans + 2)], heads=1, key_heads=1)
        close(attend_by_length(new, dense, others), new)
        assert len(others.lengths) == 1


def test_threads_have_plans_of_their_own_and_try_the_kernel_out_once():
    call, others, rows = Counting(), Others(), [row_of([17, 4, 40]), row_of([33, 16, 2])]
    dense = Willing(call)
    gate, failures, plans = threading.Barrier(2), [], {}

    def work(index):
        try:
            gate.wait()
            for _ in range(100):
                close(attend_by_length(rows[index], dense, others), rows[index])
            plans[index] = {shape for *_, shape in dense._threads.plans}
        except BaseException as error:  # noqa: BLE001 - told by the test's thread
            failures.append(error)

    with short_units():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert plans == {0: {(1, 24), (1, 40)}, 1: {(1, 40), (1, 16)}}
    assert sum(shape in ((2, 8), (1, 8)) for shape in call.shapes) == 3


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "capability", "suits"),
    [
        ("cuda", torch.bfloat16, 128, (9, 0), True),
        ("cuda", torch.float16, 64, (10, 0), True),
        ("cuda", torch.bfloat16, 128, (8, 9), False),
        ("cuda", torch.float32, 128, (9, 0), False),
        ("cuda", torch.bfloat16, 256, (9, 0), False),
        ("cuda", torch.bfloat16, 36, (9, 0), False),
        ("cpu", torch.bfloat16, 128, (9, 0), False),
    ],
)
def test_what_suits_cudnn(device, dtype, head_dim, capability, suits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert DenseKernel(None).suits(torch.device(device), dtype, head_dim) is suits


def test_cudnn_is_asked_in_words_that_torch_knows():
    """Whatever this torch can do, its operator takes the arguments that we give it, by their names."""
    schema = torch.ops.aten._scaled_dot_product_cudnn_attention.default._schema
    names = [argument.name for argument in schema.arguments]
    positional = ["query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"]
    assert names == [*positional, "return_debug_mask", "scale"]
    meta = [torch.empty(2, 256, heads, 64, device="meta", dtype=torch.bfloat16) for heads in (8, 8, 8)]
    assert dense_attention.attend_with_cudnn(*meta, 0.1).shape == (2, 256, 8, 64)
