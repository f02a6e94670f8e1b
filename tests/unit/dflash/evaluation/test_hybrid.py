"""One pass over the text of a hybrid tells what draft and verify, without any cache, come to by block."""

import pytest
import torch

from dflash.attention import SdpaView, full
from dflash.contract.sections import TargetConfig
from dflash.drafter import DrafterSpec, init_drafter
from dflash.evaluation.acceptance import Answer, measure_text
from dflash.evaluation.whole_target import WholeTarget
from dflash.objective import train_objective

cpu = torch.device("cpu")
prompts, new_tokens, block_size = ([5, 6, 7, 8], [9, 10, 300]), 14, 5


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Many small products: more threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target():
    return WholeTarget(TargetConfig(model="random:tiny-hybrid"), cpu, (0, 3))


@pytest.fixture(scope="module")
def texts(target):
    answers = target.answer(prompts, new_tokens, frozenset())
    return [torch.tensor(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)]


@pytest.fixture(scope="module")
def drafter(target, texts):
    """Learns the two texts by heart, but not to the end."""
    spec = DrafterSpec(
        hidden=96,
        layers=1,
        heads=4,
        kv_heads=2,
        head_dim=8,
        intermediate=64,
        taps=(0, 3),
        block_size=block_size,
        layer_types=(full,),
        sliding_window=1,
        mask_token_id=4000,
        rope_theta=10_000.0,
        rms_eps=1e-6,
        vocab=4096,
        max_positions=64,
        target_layers=8,
    )
    drafter = init_drafter(spec, 0)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=6e-3)
    states = [target.read(ids).taps for ids in texts]
    for _ in range(11):
        for prompt, ids, taps in zip(prompts, texts, states, strict=True):
            anchors = torch.arange(len(prompt), len(ids) - block_size + 1)
            labels = ids[anchors[:, None] + torch.arange(block_size)]
            hidden = draft_states(drafter, target, taps, ids, anchors, block_size)
            weights = torch.ones(labels.shape).index_fill_(1, torch.tensor([0]), 0.0)
            terms = train_objective(
                hidden, target.head, labels, weights, loss="dflash", dpace_alpha=0.5, chunk_blocks=0
            )
            optimizer.zero_grad()
            (terms.numerator / weights.sum()).backward()
            optimizer.step()
    return drafter.requires_grad_(False)


def draft_states(drafter, target, taps, ids, anchors, size):
    """States [Q, H] of blocks of so many slots."""
    blocks = torch.full((len(anchors), size), drafter.spec.mask_token_id)
    blocks[:, 0] = ids[anchors]
    places = anchors[:, None] + torch.arange(size)
    view = SdpaView.over(anchors, [len(anchors)], (len(taps),), size, drafter.spec, cpu)
    return drafter(taps, torch.arange(len(taps)), target.embedding[blocks.flatten()], places.flatten(), view)


def decode(target, drafter, prompt):
    """Draft and verify with every pass made anew over the whole text: its text and acceptance lengths."""
    ids = [*prompt, int(target.read(torch.tensor(prompt)).greedy[-1])]
    place, end, lengths = len(prompt), len(prompt) + new_tokens, []
    while place + 1 < end:
        taps = target.read(torch.tensor(ids[:place])).taps
        size = min(block_size, end - place)
        states = draft_states(drafter, target, taps, torch.tensor(ids), torch.tensor([place]), size)
        drafts = (states[1:] @ target.head.T).argmax(-1).tolist()
        verified = target.read(torch.tensor(ids + drafts)).greedy[place:].tolist()
        right = next(
            (i for i, (d, v) in enumerate(zip(drafts, verified, strict=False)) if d != v), len(drafts)
        )
        brought = [*drafts[:right], verified[right]][: end - place - 1]
        ids += brought
        place += len(brought)
        lengths.append(len(brought))
    return ids, lengths


def test_lengths_and_text_are_those_of_decoding(target, drafter, texts):
    seen = set()
    for prompt, ids in zip(prompts, texts, strict=True):
        decoded, lengths = decode(target, drafter, prompt)
        whole = Answer(start=len(prompt), end=len(ids), limit=len(ids))
        (measured,) = measure_text(
            drafter, target.embedding, target.head, taps=target.read(ids).taps, ids=ids, answers=(whole,)
        )
        assert decoded == ids.tolist()
        assert list(measured.lengths) == lengths
        seen |= set(lengths)
    assert len(seen) > 2  # some blocks brought much, others little
