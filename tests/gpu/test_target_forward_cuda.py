"""One flat row with variable-length attention on CUDA: what padded SDPA gives, and neighbours unseen."""

import random

import pytest
import torch

from dflash.batch import Batch, WindowInfo
from dflash.contract.config import load_config
from dflash.leak_probe import choose_layout, keeps_apart
from dflash.packing import lay_out, positions_within
from dflash.target import Target, load_target
from dflash.target_attention import attend_documents

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # compilers talk
]

cuda = torch.device("cuda", 0)
lengths = (150, 1, 90, 33, 256)
long_lengths = (1100, 40, 1280, 1280, 7, 1030)  # of which cuDNN attends four on Hopper
# bfloat16 rounds to 3 digits, and six layers add up; what sees a neighbour is off by tens of percent.
tolerance = 5e-2


def load(*changes: str):
    return load_target(load_config(None, ["target.dtype=bfloat16", *changes]), "cuda")


@pytest.fixture(scope="module")
def flat() -> Target:
    return Target(load(), cuda)


def run(target: Target, kind: str, documents: list[torch.Tensor]) -> torch.Tensor:
    sizes = torch.tensor([len(document) for document in documents]).numpy()
    positions = torch.from_numpy(positions_within(sizes))
    return target.run(torch.cat(documents), positions, tuple(sizes.tolist()), lay_out(sizes, kind))


def documents(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    rng = random.Random(seed)
    return [torch.tensor([rng.randrange(4096) for _ in range(size)]) for size in sizes]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_auto_takes_a_flat_row_where_the_probe_proves_it_safe(flat: Target) -> None:
    assert flat.varlen
    assert flat.dense == ("cuDNN" in flat.kernel) == (torch.cuda.get_device_capability() >= (9, 0))
    assert keeps_apart(flat, "flat")
    assert choose_layout(load_config(None), flat) == "flat"


def test_the_kernel_attends_as_sdpa_by_document_does() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((530, 8, 64), (530, 2, 64), (530, 2, 64))
    query, key, value = (torch.randn(s, generator=generator).bfloat16() for s in shapes)
    starts = torch.tensor([0, 150, 151, 241, 274, 530], dtype=torch.int32)
    host = starts.long()
    exact = attend_documents(query.float(), key.float(), value.float(), starts, host, 0.125)
    found = attend_documents(query.to(cuda), key.to(cuda), value.to(cuda), starts.to(cuda), host, 0.125)
    assert relative(found.cpu(), exact) < 1e-2


@pytest.mark.parametrize("sizes", [lengths, long_lengths])
def test_a_flat_row_gives_the_taps_of_padded_sdpa(flat: Target, sizes: tuple[int, ...]) -> None:
    chosen = documents(*sizes)
    padded = run(Target(load("target.attention=sdpa"), cuda), "padded", chosen)
    assert relative(run(flat, "flat", chosen), padded) < tolerance


@pytest.mark.parametrize("sizes", [lengths, long_lengths])
@pytest.mark.parametrize("compile_layers", ["off", "on"])
def test_neighbours_change_nothing_to_the_bit(compile_layers: str, sizes: tuple[int, ...]) -> None:
    target = Target(load(f"target.compile={compile_layers}"), cuda)
    first, *others = documents(*sizes)
    (another,) = documents(sizes[0], seed=1)
    before, after = (run(target, "flat", [head, *others]) for head in (first, another))
    assert torch.equal(before[sizes[0] :], after[sizes[0] :])
    assert not torch.equal(before[: sizes[0]], after[: sizes[0]])
    before, after = (run(target, "flat", [*reversed(others), head]) for head in (first, another))
    assert torch.equal(before[: -sizes[0]], after[: -sizes[0]])


def test_compiled_layers_give_the_taps_of_plain_ones_for_all_lengths_with_one_graph(flat: Target) -> None:
    target = Target(load("target.compile=on"), cuda)
    run(target, "flat", documents(40, 50))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    rng = random.Random(0)
    for count in range(1, 12):
        chosen = documents(*(rng.randrange(2, 300 if count % 3 else 1500) for _ in range(count)), seed=count)
        assert relative(run(target, "flat", chosen), run(flat, "flat", chosen)) < tolerance
    assert [function.failure for function in target.compiled] == [None]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


@pytest.mark.parametrize("lengths", [lengths, long_lengths])
def test_a_forward_only_enqueues(flat: Target, lengths: tuple[int, ...]) -> None:
    """No wait for the device in it: the next batch is prepared while this one runs."""
    sizes = torch.tensor(lengths).numpy()
    batch = Batch(
        id=0,
        window=WindowInfo(**dict.fromkeys(WindowInfo.__dataclass_fields__, 1)),
        documents=tuple(range(len(lengths))),
        lengths=lengths,
        input_ids=torch.cat(documents(*lengths)),
        positions=torch.from_numpy(positions_within(sizes)),
        document_ids=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        anchors=torch.zeros(0, dtype=torch.int64),
        labels=torch.zeros(0, 8, dtype=torch.int64),
        weights=torch.zeros(0, 8),
        layout=lay_out(sizes, "flat"),
    )
    flat.forward(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        flat.forward(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
