"""The compiled drafter step over FlexAttention: what SDPA gives, without a wait or a recompilation."""

import dataclasses
import random

import pytest
import torch

from dflash.attention import full, sliding
from dflash.batch import Batch, HiddenStates, Layout, WindowInfo
from dflash.contract.config import load_config
from dflash.cuda import CudaDevice
from dflash.drafter import DrafterSpec, init_drafter
from dflash.drafter_kernels import plan_batch
from dflash.objective import _compiled_terms
from dflash.replicas import Replica

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # compilers talk
]

block_size, vocabulary = 16, 1000
spec = DrafterSpec(
    hidden=256,
    layers=3,
    heads=8,
    kv_heads=2,
    head_dim=64,
    intermediate=512,
    taps=(0, 1),
    block_size=block_size,
    layer_types=(sliding, sliding, full),
    sliding_window=100,
    mask_token_id=3,
    rope_theta=1e4,
    rms_eps=1e-6,
    vocab=vocabulary,
    max_positions=4096,
    target_layers=4,
)


@pytest.fixture(autouse=True)
def fresh_loss():
    """Graphs of the loss that other tests' shapes did not shape: all of a process share them."""
    _compiled_terms.cache_clear()


def make_batch(lengths, anchors, seed):
    rng = random.Random(seed)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    chosen = [
        s + a
        for s, n in zip(starts, lengths, strict=True)
        for a in sorted(rng.sample(range(n), min(n, anchors)))
    ]
    ids = torch.randint(vocabulary, positions.shape, generator=torch.Generator().manual_seed(seed))
    slots = (torch.tensor(chosen)[:, None] + torch.arange(block_size)).clamp(max=len(ids) - 1)
    weights = (numbers[slots] == numbers[slots[:, :1]]) & (torch.arange(block_size) > 0)
    window = WindowInfo(**dict.fromkeys(WindowInfo.__dataclass_fields__, 1))
    return Batch(
        id=0,
        window=dataclasses.replace(window, denominator=float(weights.sum())),
        documents=tuple(range(len(lengths))),
        lengths=tuple(lengths),
        input_ids=ids,
        positions=positions,
        document_ids=numbers,
        anchors=torch.tensor(chosen),
        labels=ids[slots],
        weights=weights.float(),
        layout=Layout(rows=1, width=len(ids), slots=torch.arange(len(ids)), packed=True),
    )


batches = [
    make_batch((150, 290, 33, 556), 9, 0),
    make_batch((700, 900, 15), 40, 1),
    make_batch((2000, 5), 77, 2),
]


def replica(attention, dtype, checkpointing="none"):
    config = load_config(
        None,
        [
            f"drafter.attention={attention}",
            f"drafter.dtype={dtype}",
            f"drafter.checkpointing={checkpointing}",
            "objective.loss=dpace",
            "objective.chunk_blocks=32",
        ],
    )
    generator = torch.Generator().manual_seed(7)
    embedding, head = (0.3 * torch.randn(vocabulary, 256, generator=generator) for _ in range(2))
    return Replica(init_drafter(spec, 0), embedding, head, CudaDevice(0), config)


def train(one, batch):
    """Loss and gradients of a batch."""
    generator = torch.Generator().manual_seed(batch.tokens)
    taps = torch.randn(batch.tokens, 512, generator=generator).cuda().to(one.drafter.dtype)
    one.train(HiddenStates(batch=plan_batch(batch, one.config.drafter, spec, "cuda"), taps=taps))
    return one.take_figures(), one.take_gradients()


def distance(some, others):
    """Relative distance of two lists of gradients, taken together."""
    pairs = list(zip(some, others, strict=True))
    gap = sum(float((a - b).float().square().sum()) for a, b in pairs)
    return (gap / sum(float(b.float().square().sum()) for _, b in pairs)) ** 0.5


def test_it_computes_what_sdpa_by_document_computes():
    exact, plain, flex = replica("sdpa", "float32"), replica("sdpa", "bfloat16"), replica("flex", "bfloat16")
    for batch in batches:
        (right, wanted), (_, rough), (figures, found) = (train(x, batch) for x in (exact, plain, flex))
        noise = distance(rough, wanted)
        assert distance(found, wanted) < 1.5 * noise < 0.2
        assert float(figures[0]) == pytest.approx(float(right[0]), rel=5e-3)
        assert float(figures[3]) == float(right[3]) == batch.tokens, "rows of states"
        counted = 4 + spec.block_size  # where the row's slots that count begin
        assert torch.equal(figures[counted:], right[counted:])
        assert float(figures[counted:].sum()) > 0


def test_checkpointed_layers_give_the_same_gradients():
    kept, again = replica("flex", "bfloat16"), replica("flex", "bfloat16", checkpointing="layers")
    (_, wanted), (_, found) = (train(x, batches[0]) for x in (kept, again))
    assert distance(found, wanted) < 1e-2


def test_other_sizes_need_no_compilation_and_no_wait_for_the_device():
    one = replica("flex", "bfloat16")
    for batch in batches[:2]:
        train(one, batch)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    batch = plan_batch(batches[2], one.config.drafter, spec, "cuda")
    item = HiddenStates(batch=batch, taps=torch.randn(batch.tokens, 512, device="cuda", dtype=torch.bfloat16))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        one.train(item)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_batches_of_any_size_need_no_compilation():
    """The compiler likes to decide by sizes: one tile, or so many rows that other kernels pay."""
    one = replica("flex", "bfloat16")
    for batch in batches[:2]:
        train(one, batch)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for seed, (lengths, anchors) in enumerate([((60,), 1), ((12_000, 11_000), 1), ((900, 800), 700)]):
        train(one, make_batch(lengths, anchors, seed))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
