"""C021 and C024: nothing of the future, of other blocks or of other documents reaches a prediction.

Real windows, target, replica and objective. A batch is trained with the weights of some predictions only, so
that its numerator and its gradients are theirs alone; what must not be seen is changed, and both must stay
the same to the bit.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dflash.attention import SdpaView
from dflash.batch import Batch, HiddenStates
from dflash.contract.config import TrainConfig, load_config
from dflash.data.documents import Document
from dflash.devices import LogicalDevice
from dflash.drafter import DrafterSpec, init_drafter
from dflash.flex_attention import FlexView
from dflash.objective import block_inputs
from dflash.packing import LayoutKind
from dflash.replicas import Replica
from dflash.target import LoadedTarget, Target, load_target
from dflash.window import batches

cpu = torch.device("cpu")
block_size, window_keys = 4, 6
lengths = (14, 23, 8)  # packed, the first and the last share a row
vocabulary = 200  # of the target's; texts here hold the first half
knobs = (
    "target.attention=varlen",  # flat rows; rows with padding go to SDPA
    "drafter.layers=3",
    "drafter.tap_count=2",
    "drafter.heads=2",
    "drafter.kv_heads=1",
    "drafter.head_dim=8",
    "drafter.intermediate=32",
    f"drafter.block_size={block_size}",
    f"drafter.sliding_window={window_keys}",
    "data.max_length=64",
    "pipeline.token_budget=70",
    "window.tokens=70",
    "run.epochs=1",
)
layouts: tuple[LayoutKind, ...] = ("flat", "packed", "padded")


def configure(*changes: str) -> TrainConfig:
    return load_config(None, (*knobs, *changes))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Work this small is slower on several, far slower where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def loaded() -> LoadedTarget:
    return load_target(configure())


@pytest.fixture(scope="module")
def target(loaded: LoadedTarget) -> Target:
    return Target(loaded, cpu)


def make_replica(loaded: LoadedTarget, layer_types: str, layers: int = 3) -> Replica:
    config = configure(f"drafter.layer_types={layer_types}", f"drafter.layers={layers}")
    spec = DrafterSpec.of(config.drafter, loaded.spec, loaded.taps, mask_token_id=vocabulary - 1)
    embedding, head = loaded.embedding[:vocabulary], loaded.head[:vocabulary]
    return Replica(init_drafter(spec, 0), embedding, head, LogicalDevice(0), config)


class Texts:
    """Documents of random tokens with holes in what is supervised."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.ids = [[rng.randrange(100) for _ in range(n)] for n in lengths]
        self.masks = [[rng.random() < 0.8 for _ in range(n)] for n in lengths]
        for (
            mask
        ) in self.masks:  # blocks run over the end, where the next document's first tokens are supervised
            mask[:3] = mask[-3:] = [True] * 3

    def batch(self, layout: LayoutKind, anchors: int) -> Batch:
        """All of them in one batch, as the trainer makes it."""
        items = tuple(
            Document(ids=np.array(ids, np.int32), loss_mask=np.array(mask), file="made", line=line)
            for line, (ids, mask) in enumerate(zip(self.ids, self.masks, strict=True))
        )
        documents = FewDocuments(items)
        config = configure(f"objective.anchors_per_document={anchors}")
        (batch,) = batches(documents, config, layout=layout)  # type: ignore[arg-type]
        assert sorted(batch.documents) == [0, 1, 2]
        return batch


@dataclasses.dataclass
class FewDocuments:
    items: Sequence[Document]

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(item.ids) for item in self.items], np.int64)


def predicted(batch: Batch) -> tuple[Tensor, Tensor]:
    """Position in its document that each slot predicts, and that document's number in the batch: [A, b]."""
    places = batch.positions[batch.anchors][:, None] + torch.arange(block_size)
    return places, batch.document_ids[batch.anchors][:, None].expand(-1, block_size)


def trained(replica: Replica, batch: Batch, taps: Tensor, chosen: Tensor) -> list[Tensor]:
    """Loss numerator and gradients of the predictions `chosen` [A, b] alone."""
    replica.train(HiddenStates(batch=dataclasses.replace(batch, weights=batch.weights * chosen), taps=taps))
    figures, gradients = replica.take_figures(), replica.take_gradients()
    assert figures is not None
    return [figures[0], *(torch.zeros(0) if g is None else g for g in gradients)]


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def start_of(batch: Batch, document: int) -> int:
    return sum(batch.lengths[:document])


@pytest.mark.parametrize(  # random anchors at any spacing; every candidate
    ("layer_types", "anchors"), [("full", 5), ("full", 100), ("sliding", 100), ("mixed", 4)]
)
def test_a_state_never_reaches_a_prediction_at_or_before_it(
    loaded: LoadedTarget, target: Target, layer_types: str, anchors: int
) -> None:
    replica = make_replica(loaded, layer_types)
    batch = Texts(anchors).batch("packed", anchors)
    taps = target.forward(batch)
    places, owners = predicted(batch)
    anchored = places[:, :1].expand(-1, block_size)
    reached = 0
    for document in range(3):
        for position in range(0, batch.lengths[document], 8):
            changed = taps.clone()
            changed[start_of(batch, document) + position] += 1.0
            mine = owners == document
            assert bool((~mine | (places > position) | (anchored <= position)).all())
            blind = (~mine | (anchored <= position)).float()  # holds all that predict up to `position`
            assert same(trained(replica, batch, taps, blind), trained(replica, batch, changed, blind))
            rest = 1 - blind
            if bool((batch.weights * rest).any()):
                seen = not same(trained(replica, batch, taps, rest), trained(replica, batch, changed, rest))
                reached += seen
                assert seen or layer_types == "sliding"
    assert reached > 3


@pytest.mark.parametrize(("layout", "anchors"), [("flat", 4), ("flat", 100), ("packed", 100), ("padded", 4)])
def test_a_token_never_reaches_a_prediction_at_or_before_it(
    loaded: LoadedTarget, target: Target, layout: LayoutKind, anchors: int
) -> None:
    """Its own label aside, which is the token itself."""
    replica = make_replica(loaded, "mixed")
    texts = Texts(7)
    batch = texts.batch(layout, anchors)
    taps = target.forward(batch)
    places, owners = predicted(batch)
    anchored = places[:, :1].expand(-1, block_size)
    for document, number in enumerate(batch.documents):
        for position in range(1, batch.lengths[document], 8):
            other = Texts(7)
            other.ids[number][position] = 100 + position
            changed = other.batch(layout, anchors)
            assert torch.equal(changed.anchors, batch.anchors)
            changed_taps = target.forward(changed)
            changed = dataclasses.replace(changed, labels=batch.labels)
            blind = ((owners != document) | (places <= position)).float()
            assert same(trained(replica, batch, taps, blind), trained(replica, changed, changed_taps, blind))
            seeing = ((owners == document) & (anchored >= position)).float()
            if bool((batch.weights * seeing).any()):
                after = trained(replica, changed, changed_taps, seeing)
                assert not same(trained(replica, batch, taps, seeing), after)


@pytest.mark.parametrize("layer_types", ["full", "sliding", "mixed"])
def test_blocks_that_overlap_do_not_see_each_other(
    loaded: LoadedTarget, target: Target, layer_types: str
) -> None:
    replica = make_replica(loaded, layer_types)
    batch = Texts(3).batch("packed", 100)
    taps = target.forward(batch)
    gaps = batch.anchors.diff()
    assert bool((gaps < block_size).any())
    for block, anchor in list(enumerate(batch.anchors.tolist()))[::7]:
        ids = batch.input_ids.clone()
        ids[anchor] = (ids[anchor] + 1) % 100
        changed = dataclasses.replace(batch, input_ids=ids)
        others = torch.ones(len(batch.anchors), block_size)
        others[block] = 0
        assert same(trained(replica, batch, taps, others), trained(replica, changed, taps, others))
        assert not same(
            trained(replica, batch, taps, 1 - others), trained(replica, changed, taps, 1 - others)
        )


@pytest.mark.parametrize("layer_types", ["full", "sliding"])
def test_the_gradient_of_a_prediction_reaches_exactly_the_states_it_may_see(
    loaded: LoadedTarget, target: Target, layer_types: str
) -> None:
    """Windows count from the query. One layer: with more, a slot also sees what others of its block saw."""
    replica = make_replica(loaded, layer_types, layers=1)
    batch = Texts(5).batch("packed", 6)
    taps = target.forward(batch)
    looked_at = 0
    for block, anchor in enumerate(batch.anchors.tolist()):
        for slot in range(1, block_size):
            if batch.weights[block, slot] == 0:
                continue
            chosen = torch.zeros(len(batch.anchors), block_size)
            chosen[block, slot] = 1
            leaf = taps.clone().requires_grad_()
            trained(replica, batch, leaf, chosen)
            assert leaf.grad is not None
            reached = leaf.grad.abs().sum(-1) > 0
            near = batch.positions[anchor] + slot - batch.positions < window_keys
            allowed = (batch.document_ids == batch.document_ids[anchor]) & (
                torch.arange(batch.tokens) < anchor
            )
            assert torch.equal(reached, allowed & near if layer_types == "sliding" else allowed)
            looked_at += 1
    assert looked_at > 20


@pytest.mark.parametrize(
    ("layout", "layer_types"),
    [("flat", "mixed"), ("packed", "mixed"), ("packed", "full"), ("padded", "full")],
)
@pytest.mark.parametrize("changed_one", [0, 1, 2])
def test_another_text_leaves_the_other_documents_of_the_pack_as_they_were(
    loaded: LoadedTarget, target: Target, layout: LayoutKind, layer_types: str, changed_one: int
) -> None:
    """C024: exact equality of loss and gradients."""
    replica = make_replica(loaded, layer_types)
    texts, other = Texts(11), Texts(11)
    other.ids[changed_one] = Texts(12).ids[changed_one]
    batch, changed = texts.batch(layout, 8), other.batch(layout, 8)
    taps, changed_taps = target.forward(batch), target.forward(changed)
    owners = torch.tensor(batch.documents)[batch.document_ids[batch.anchors]][:, None].expand(-1, block_size)
    others = (owners != changed_one).float()
    before = trained(replica, batch, taps, others)
    assert same(before, trained(replica, changed, changed_taps, others))
    assert float(before[0]) > 0
    own = 1 - others
    assert not same(trained(replica, batch, taps, own), trained(replica, changed, changed_taps, own))


@pytest.mark.parametrize("layout", layouts)
@pytest.mark.parametrize("seed", range(3))
def test_blocks_never_cross_a_boundary_and_positions_restart(layout: LayoutKind, seed: int) -> None:
    texts = Texts(seed)
    batch = texts.batch(layout, 100)
    first = 0
    for document, (number, length) in enumerate(zip(batch.documents, batch.lengths, strict=True)):
        assert batch.positions[first : first + length].tolist() == list(range(length))
        assert batch.input_ids[first : first + length].tolist() == texts.ids[number]
        for block in (batch.document_ids[batch.anchors] == document).nonzero().flatten().tolist():
            anchor = int(batch.positions[batch.anchors[block]])
            for slot in range(block_size):
                place = anchor + slot
                counts = slot > 0 and place < length and texts.masks[number][place]
                assert (float(batch.weights[block, slot]) > 0) == counts
                if counts:
                    assert int(batch.labels[block, slot]) == texts.ids[number][place]
        first += length


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("view", [SdpaView, FlexView])
def test_neither_kernel_lets_the_future_or_a_neighbour_in(
    loaded: LoadedTarget, target: Target, view: type[SdpaView] | type[FlexView]
) -> None:
    """FlexAttention has no gradient on the CPU: here the losses of all predictions, one by one."""
    replica = make_replica(loaded, "mixed")
    batch = Texts(2).batch("packed", 100)
    taps = target.forward(batch)
    anchored = batch.positions[batch.anchors]
    owners = batch.document_ids[batch.anchors]
    before = losses(replica, view, batch, taps)
    for document in range(3):
        for position in range(0, batch.lengths[document], 12):
            changed = taps.clone()
            first = start_of(batch, document)
            changed[first + position : first + batch.lengths[document]] += 1.0
            same_block = losses(replica, view, batch, changed) == before
            blind = (owners != document) | (anchored <= position)
            assert bool(same_block[blind].all())
            assert not bool(same_block[~blind].all(dim=1).any())


def losses(replica: Replica, view: type[SdpaView] | type[FlexView], batch: Batch, taps: Tensor) -> Tensor:
    """Cross entropy of every slot, [A, b]."""
    ids, positions = block_inputs(batch, replica.drafter.spec.mask_token_id)
    with torch.no_grad():
        hidden = replica.drafter(
            taps,
            batch.positions,
            functional.embedding(ids, replica.embedding),
            positions,
            view.of(batch, replica.drafter.spec, cpu),
        )
        logits = functional.linear(hidden, replica.head)
        return functional.cross_entropy(logits, batch.labels.flatten(), reduction="none").view_as(
            batch.labels
        )
