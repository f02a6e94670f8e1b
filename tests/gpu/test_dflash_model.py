"""Target, drafter and objective on CUDA: the same numbers as on the CPU, without waiting for the device."""

import random

import pytest
import torch

from dflash.attention import SdpaView, upload
from dflash.batch import Batch, Layout, WindowInfo
from dflash.contract.config import load_config
from dflash.drafter import DrafterSpec, init_drafter
from dflash.leak_probe import keeps_apart
from dflash.objective import block_inputs, train_objective
from dflash.target import Target, load_target

pytestmark = [
    pytest.mark.gpu,
    # What torch says when a backward thread begins with a matrix product; harmless.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

config = load_config(None, ["drafter.layer_types=mixed", "drafter.sliding_window=20", "drafter.layers=3"])
mask_token_id, block_size = 3, 8


def make_batch(lengths=(150, 90, 33, 256), anchors=8):
    rng = random.Random(0)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    ids = torch.tensor([rng.randrange(4096) for _ in positions])
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    chosen = [
        s + a for s, n in zip(starts, lengths, strict=True) for a in sorted(rng.sample(range(n), anchors))
    ]
    slots = (torch.tensor(chosen)[:, None] + torch.arange(block_size)).clamp(max=len(ids) - 1)
    weights = (numbers[slots] == numbers[slots[:, :1]]) & (torch.arange(block_size) > 0)
    return Batch(
        id=0,
        window=WindowInfo(**dict.fromkeys(WindowInfo.__dataclass_fields__, 1)),
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


class Side:
    """Everything on one device."""

    def __init__(self, device, dtype):
        self.device = torch.device(device)
        loaded = load_target(config.replacing({"target.dtype": dtype}))
        self.target = Target(loaded, self.device)
        spec = DrafterSpec.of(config.drafter, loaded.spec, loaded.taps, mask_token_id=mask_token_id)
        self.drafter = init_drafter(spec, 0).to(self.device, loaded.embedding.dtype)
        self.embedding, self.head = loaded.embedding.to(self.device), loaded.head.to(self.device)

    def train(self, batch):
        """Taps, and the numerator with gradients in the drafter."""
        taps = self.target.forward(batch)
        view = SdpaView.of(batch, self.drafter.spec, self.device)
        ids, positions = (upload(x, self.device) for x in block_inputs(batch, mask_token_id))
        embedded = torch.nn.functional.embedding(ids, self.embedding)
        hidden = self.drafter(taps, upload(batch.positions, self.device), embedded, positions, view)
        terms = train_objective(
            hidden,
            self.head,
            upload(batch.labels, self.device),
            upload(batch.weights, self.device),
            loss="dpace",
            dpace_alpha=0.5,
            chunk_blocks=5,
        )
        terms.numerator.backward()
        return taps, terms


def relative(found, expected):
    return ((found.cpu().double() - expected.double()).norm() / expected.double().norm()).item()


def differences(found, expected):
    """Relative errors of taps, numerator and every gradient."""
    (side, taps, terms), (other, other_taps, other_terms) = found, expected
    gradients = zip(side.drafter.parameters(), other.drafter.parameters(), strict=True)
    return [
        relative(taps, other_taps),
        relative(terms.numerator.detach(), other_terms.numerator.detach()),
        *(relative(own.grad, reference.grad) for own, reference in gradients),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_gives_the_numbers_of_the_cpu(dtype):
    batch = make_batch()
    exact, rough, cuda = (
        (side, *side.train(batch))
        for side in (Side("cpu", "float32"), Side("cpu", "bfloat16"), Side("cuda", dtype))
    )
    # What bfloat16 costs depends on the weights, so the CPU says how much is fair.
    allowed = [1e-4 if dtype == "float32" else 1e-3 + 2 * error for error in differences(rough, exact)]
    for error, limit in zip(differences(cuda, exact), allowed, strict=True):
        assert error < limit
    assert cuda[2].counted.item() == exact[2].counted.item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packing_is_proven_safe_on_cuda(dtype):
    assert keeps_apart(Side("cuda", dtype).target, "packed")


def test_a_step_never_waits_for_the_device():
    batch, side = make_batch(), Side("cuda", "bfloat16")
    side.train(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        side.train(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_chunks_bound_the_memory_of_logits():
    blocks, vocabulary, width = 512, 32768, 128
    head = torch.randn(vocabulary, width, device="cuda", dtype=torch.bfloat16)
    labels = torch.zeros(blocks, block_size, dtype=torch.long, device="cuda")
    peaks = {}
    for chunk in (0, 16):
        hidden = torch.randn(
            blocks * block_size, width, device="cuda", dtype=torch.bfloat16, requires_grad=True
        )
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        terms = train_objective(
            hidden,
            head,
            labels,
            torch.ones_like(labels).float(),
            loss="dflash",
            dpace_alpha=0.5,
            chunk_blocks=chunk,
        )
        terms.numerator.backward()
        peaks[chunk] = torch.cuda.max_memory_allocated() - before
    assert peaks[16] < peaks[0] / 8
