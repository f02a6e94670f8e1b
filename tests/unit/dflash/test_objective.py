import math

import pytest
import torch
from torch.nn import functional

from dflash import compiling
from dflash.objective import _compiled_terms, block_inputs, chunk_terms, train_objective

vocabulary, width, block_size = 23, 12, 5


def draw(blocks, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(blocks * block_size, width, generator=generator, requires_grad=True)
    head = torch.randn(vocabulary, width, generator=generator)
    labels = torch.randint(vocabulary, (blocks, block_size), generator=generator)
    weights = torch.rand(blocks, block_size, generator=generator)
    weights[:, 0] = 0
    weights[torch.rand(blocks, block_size, generator=generator) < 0.3] = 0
    return hidden, head, labels, weights


def terms_of(hidden, head, labels, weights, *, loss="dflash", dpace_alpha=0.5, chunk_blocks=0):
    return train_objective(
        hidden, head, labels, weights, loss=loss, dpace_alpha=dpace_alpha, chunk_blocks=chunk_blocks
    )


def plain_dpace(entropy, counts, alpha):
    """The definition, slot by slot."""
    total = 0.0
    for row, m in zip(entropy.tolist(), counts.tolist(), strict=True):
        q = [(1 - alpha) * math.exp(-ce) + alpha if c else 1.0 for ce, c in zip(row, m, strict=True)]
        reached = [math.prod(q[: j + 1]) for j in range(block_size)]
        for j in range(block_size):
            total += m[j] * row[j] * sum(reached[i] * m[i] for i in range(j, block_size))
    return total


def test_block_inputs_are_the_anchor_token_then_masks_at_consecutive_positions(make_batch):
    batch = make_batch([[10, 11, 12, 13], [20, 21, 22]], [[1], [0, 2]], 3)
    ids, positions = block_inputs(batch, 99)
    assert ids.tolist() == [11, 99, 99, 20, 99, 99, 22, 99, 99]
    assert positions.tolist() == [1, 2, 3, 0, 1, 2, 2, 3, 4]


def test_labels_past_a_documents_end_do_not_reach_the_loss(make_batch):
    """The next document's tokens stand there; weights of zero must keep them out."""
    first = make_batch([[1, 2, 3, 4], [5, 6, 7, 8, 9]], [[1, 2], [1]], block_size)
    second = make_batch([[1, 2, 3, 4], [15, 16, 17, 18, 19]], [[1, 2], [1]], block_size)
    hidden, head, _, _ = draw(3)
    assert not torch.equal(first.labels[:2], second.labels[:2])
    gradients = [
        torch.autograd.grad(terms_of(hidden, head, b.labels, b.weights).numerator, hidden)[0]
        for b in (first, second)
    ]
    own = 2 * block_size
    assert torch.equal(gradients[0][:own], gradients[1][:own])
    assert gradients[0][:own].abs().sum() > 0
    assert not torch.equal(gradients[0][own:], gradients[1][own:])


def test_numerator_is_the_weighted_cross_entropy():
    hidden, head, labels, weights = draw(7)
    entropy = functional.cross_entropy(hidden @ head.T, labels.flatten(), reduction="none")
    expected = (entropy.view_as(weights) * weights).sum()
    assert terms_of(hidden, head, labels, weights).numerator.item() == pytest.approx(
        expected.item(), rel=1e-6
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_dpace_numerator_follows_the_definition(alpha):
    hidden, head, labels, weights = draw(7)
    counts = (weights > 0).float()
    entropy = functional.cross_entropy(hidden @ head.T, labels.flatten(), reduction="none").view_as(weights)
    terms = terms_of(hidden, head, labels, counts, loss="dpace", dpace_alpha=alpha)
    assert terms.numerator.item() == pytest.approx(plain_dpace(entropy, counts, alpha), rel=1e-5)


def test_dpace_weights_carry_no_gradient():
    hidden, head, labels, weights = draw(4)
    counts = (weights > 0).float()
    numerator = terms_of(hidden, head, labels, counts, loss="dpace").numerator
    (gradient,) = torch.autograd.grad(numerator, hidden)
    entropy = functional.cross_entropy(hidden @ head.T, labels.flatten(), reduction="none").view_as(weights)
    q = torch.where(counts > 0, 0.5 * (-entropy.detach()).exp() + 0.5, 1.0)
    fixed = (q.cumprod(-1) * counts).flip(-1).cumsum(-1).flip(-1) * counts
    (expected,) = torch.autograd.grad((entropy * fixed).sum(), hidden)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("loss", ["dflash", "dpace"])
@pytest.mark.parametrize("chunk_blocks", [1, 2, 3, 7, 100])
def test_chunks_change_nothing_but_rounding(chunk_blocks, loss):
    hidden, head, labels, weights = draw(7)
    whole = terms_of(hidden, head, labels, weights, loss=loss)
    parts = terms_of(hidden, head, labels, weights, loss=loss, chunk_blocks=chunk_blocks)
    torch.testing.assert_close(parts.numerator, whole.numerator)
    assert torch.equal(parts.slot_correct, whole.slot_correct)
    assert torch.equal(parts.slot_counted, whole.slot_counted)
    gradients = [torch.autograd.grad(t.numerator, hidden)[0] for t in (whole, parts)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_accuracy_counts_slots_with_weight_whose_argmax_is_the_label():
    hidden, head, labels, weights = draw(6)
    best = (hidden @ head.T).argmax(-1).view_as(labels)
    right = torch.rand(labels.shape, generator=torch.Generator().manual_seed(4)) < 0.5
    labels = torch.where(right, best, (best + 1) % vocabulary)
    terms = terms_of(hidden, head, labels, weights, chunk_blocks=2)
    assert terms.slot_counted.tolist() == (weights > 0).sum(0).tolist()
    assert terms.slot_correct.tolist() == (right & (weights > 0)).sum(0).tolist()
    assert 0 < terms.correct.item() < terms.counted.item()


def test_logits_of_all_blocks_never_exist_at_once():
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-1:] == (vocabulary,):
                largest = max(largest, out.numel() // vocabulary)
            return out

    hidden, head, labels, weights = draw(40)
    saved = []
    with Watch(), torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        numerator = terms_of(hidden, head, labels, weights, chunk_blocks=4).numerator
        kept = [t for t in saved if t.shape[-1:] == (vocabulary,) and t.numel() > head.numel()]
        numerator.backward()
    assert largest == 4 * block_size
    assert not kept


def test_batch_without_a_counted_slot_gives_zero_and_a_zero_gradient():
    hidden, head, labels, weights = draw(2)
    terms = terms_of(hidden, head, labels, torch.zeros_like(weights))
    terms.numerator.backward()
    assert terms.numerator.item() == terms.counted.item() == 0
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))


def test_bfloat16_numerator_adds_up_in_float32():
    hidden, head, labels, weights = draw(7)
    exact = terms_of(hidden, head, labels, weights)
    rough = terms_of(hidden.bfloat16(), head.bfloat16(), labels, weights, chunk_blocks=2)
    assert rough.numerator.dtype == torch.float32
    assert rough.numerator.item() == pytest.approx(exact.numerator.item(), rel=2e-2)


def test_compiled_terms_take_one_compilation_for_any_number_of_blocks_in_any_part(monkeypatch):
    monkeypatch.setattr(compiling, "backend", "eager")
    terms = _compiled_terms.__wrapped__(torch.device("cpu"))
    graphs = []
    for count in (5, 3, 1, 7):
        labels, weights = torch.randint(11, (2 * count, 4)), torch.ones(2 * count, 4)
        weights[:, 0] = 0.0
        for part in [*zip(torch.tensor_split(labels, 2), torch.tensor_split(weights, 2), strict=True)][::-1]:
            chunk = torch.randn(count * 4, 11), *part
            with torch.no_grad():  # as in the pass that makes its own gradients
                pairs = zip(terms(*chunk, 0.5), chunk_terms(*chunk, 0.5), strict=True)
            for found, expected in pairs:
                torch.testing.assert_close(found, expected)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == graphs[:1] * 8
