"""Where the lines of a ledger come from: places, moments, queues, transports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dflash.contract.activations import BatchShape, DrafterShape, DrafterWork, TargetShape, total
from dflash.contract.memory_plan import (
    Facts,
    Ledger,
    code_name,
    find_remedy,
    host,
    levers,
    plan_memory,
    slack_name,
    slack_share,
)
from dflash.contract.sections import TransportChoice

target = TargetShape(
    hidden=64,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    inner=192,
    vocab=1000,
    tied=False,
    body_parameters=250_000,
    loaded_parameters=400_000,
    each_bytes=2,
)
drafter = DrafterShape(
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=192,
    taps=3,
    block_size=4,
    kinds=1,
    vocab=1000,
    each_bytes=2,
)
batch = BatchShape(documents=((100, 40), (60, 20)), rows=1, width=160, masked=False)
peer = TransportChoice("per_drafter", "peer", "least_depth", 2)
facts = Facts(
    target=target,
    drafter=drafter,
    batch=batch,
    targets=("cuda:0",),
    drafters=("cuda:1",),
    transport=peer,
    several_batches=True,
    compiled_target=True,
    compiled_drafter=True,
    checkpointing=False,
    chunk_blocks=16,
    token_budget=200,
    longest=100,
    data_tokens=5000,
    prefetch_depth=4,
    checkpoints=True,
)
item = 160 * 3 * 64 * 2  # tokens × taps × width × bytes


def sizes(ledger: Ledger, place: str) -> dict[str, int]:
    return {line.name: line.bytes for line in ledger.at(place)}


def test_the_lines_of_a_place_add_up_and_come_largest_first() -> None:
    ledger = plan_memory(facts)
    assert ledger.places == ("cuda:0", "cuda:1", host)
    for place in ledger.places:
        lines = [line.bytes for line in ledger.at(place)]
        assert lines == sorted(lines, reverse=True)
        assert ledger.needed_bytes(place) == sum(lines)
    document = ledger.to_json({"cuda:0": 5})["places"][0]
    assert document["needed_bytes"] == sum(line["bytes"] for line in document["lines"])
    assert document["free_bytes"] == 5


def test_weights_masters_and_moments_follow_precision() -> None:
    parameters = drafter.parameters
    halves = sizes(plan_memory(facts), "cuda:1")
    assert halves["drafter 0: weights"] == 2 * parameters
    assert halves["float32 masters"] == 4 * parameters
    assert halves["Adam's moments"] == 8 * parameters
    assert halves["drafter 0: frozen embedding and head"] == 2 * 1000 * 64 * 2
    whole = sizes(plan_memory(replace(facts, drafter=replace(drafter, each_bytes=4))), "cuda:1")
    assert whole["drafter 0: weights"] == 4 * parameters
    assert "float32 masters" not in whole


def test_a_tied_head_is_held_once() -> None:
    tied = plan_memory(replace(facts, target=replace(target, tied=True)))
    assert sizes(tied, "cuda:1")["drafter 0: frozen embedding and head"] == 1000 * 64 * 2


def test_masters_are_the_first_drafters_alone() -> None:
    ledger = plan_memory(replace(facts, drafters=("cuda:1", "cuda:2")))
    assert "Adam's moments" in sizes(ledger, "cuda:1")
    assert "Adam's moments" not in sizes(ledger, "cuda:2")


def test_roles_on_one_gpu_are_added_up() -> None:
    apart = plan_memory(facts)
    together = plan_memory(replace(facts, targets=("cuda:0",), drafters=("cuda:0",)))
    both = sizes(together, "cuda:0")
    for name, size in (*sizes(apart, "cuda:0").items(), *sizes(apart, "cuda:1").items()):
        if name not in (slack_name, code_name, "target 0: send buffers"):
            assert both[name] == size
    assert both["target 0: send buffers"] == item  # handed over: nothing is on its way
    assert sizes(apart, "cuda:0")["target 0: send buffers"] == 2 * item


def test_equal_roles_share_a_line() -> None:
    ledger = plan_memory(replace(facts, drafters=("cuda:1", "cuda:1")))
    assert sizes(ledger, "cuda:1")["drafters 0, 1: weights"] == 2 * 2 * drafter.parameters


@pytest.mark.parametrize(
    ("choice", "targets", "drafters", "received"),
    [
        (peer, 1, 1, 2 + 2 + 1),
        (peer, 3, 1, 2 + 2 + 3),
        (replace(peer, depth=7), 1, 1, 2 + 7 + 1),
        (replace(peer, dispatch="local"), 2, 2, 2 + 2 + 1),
        (TransportChoice("shared", "peer", "round_robin", 4), 2, 3, 2 + 2),
        (TransportChoice("shared", "pageable", "round_robin", 4), 2, 3, 2),
    ],
)
def test_a_drafter_holds_what_it_trains_and_what_waits_before_it(
    choice: TransportChoice, targets: int, drafters: int, received: int
) -> None:
    places = tuple(f"cuda:{index}" for index in range(targets + drafters))
    ledger = plan_memory(
        replace(facts, transport=choice, targets=places[:targets], drafters=places[targets:])
    )
    assert sizes(ledger, places[targets])["drafter 0: received states"] == received * item


def test_the_host_holds_what_passes_through_it() -> None:
    pageable = TransportChoice("shared", "pageable", "round_robin", 60)
    # A queue as deep as that outweighs loading.
    assert sizes(plan_memory(replace(facts, transport=pageable)), host)["queued states"] == 62 * item
    pinned = replace(facts, transport=replace(peer, path="pinned"), token_budget=100_000)
    assert sizes(plan_memory(pinned), host)["slabs of pinned memory"] == 2 * 5000 * 3 * 64 * 2
    assert "slabs of pinned memory" not in sizes(plan_memory(facts), host)


def test_the_host_is_at_its_worst_while_it_loads_trains_or_saves() -> None:
    large = replace(facts, target=replace(target, loaded_parameters=4_000_000))
    assert plan_memory(large).moments[host] == "loading"
    small = replace(facts, target=replace(target, loaded_parameters=1), drafters=("cuda:1",))
    assert plan_memory(small).moments[host] == "writing a checkpoint"
    assert sizes(plan_memory(small), host)["checkpoint on its way to disk"] == 12 * drafter.parameters
    never = replace(small, checkpoints=False, transport=TransportChoice("shared", "pageable", "local", 90))
    assert plan_memory(never).moments[host] == "training"


def test_logical_devices_hold_everything_in_the_host() -> None:
    ledger = plan_memory(replace(facts, targets=(host,), drafters=(host,), compiled_drafter=False))
    assert ledger.places == (host,)
    names = sizes(ledger, host)
    assert {"target 0: weights", "drafter 0: activations", "frozen embedding and head"} <= set(names)
    assert slack_name not in names


def test_a_drafter_is_counted_at_its_worst_moment() -> None:
    assert plan_memory(facts).moments["drafter 0"] == "head"
    few_words = replace(drafter, vocab=10)
    assert plan_memory(replace(facts, drafter=few_words)).moments["drafter 0"] == "backward"
    nothing = replace(facts, batch=BatchShape(documents=((1, 1),), rows=1, width=1, masked=False))
    alone = replace(nothing, several_batches=False, drafter=few_words, compiled_drafter=False)
    assert plan_memory(alone).moments["drafter 0"] == "optimizer step"


def test_gradients_wait_only_where_a_window_has_several_batches() -> None:
    assert sizes(plan_memory(facts), "cuda:1")["drafter 0: gradients"] == 4 * drafter.parameters
    assert "drafter 0: gradients" not in sizes(plan_memory(replace(facts, several_batches=False)), "cuda:1")


def test_the_leader_holds_what_arrives_from_drafters_on_other_devices() -> None:
    def arriving(drafters: tuple[str, ...], place: str) -> int | None:
        ledger = plan_memory(replace(facts, drafters=drafters))
        lines = sizes(ledger, place).items()
        return next((size for name, size in lines if name.endswith("gradients of other drafters")), None)

    each = drafter.parameters * 4
    assert arriving(("cuda:1", "cuda:2", "cuda:3"), "cuda:1") == 2 * each
    assert arriving(("cuda:1", "cuda:2", "cuda:3"), "cuda:2") is None
    assert arriving(("cuda:1", "cuda:1"), "cuda:1") is None  # they are there already


def test_slack_is_a_share_of_what_comes_and_goes() -> None:
    ledger = plan_memory(facts)
    passing = sum(line.bytes for line in ledger.lines if line.place == "cuda:1" and line.passing)
    assert sizes(ledger, "cuda:1")[slack_name] == int(slack_share * passing)
    rest = ledger.needed_bytes("cuda:1") - ledger.allocated_bytes("cuda:1")
    assert rest == sizes(ledger, "cuda:1")[slack_name] + sizes(ledger, "cuda:1")[code_name]


def test_every_lever_needs_less() -> None:
    roomy = replace(facts, chunk_blocks=0)
    needed = plan_memory(roomy).needed_bytes("cuda:1")
    found = {lever.setting: plan_memory(lever.facts).needed_bytes("cuda:1") for lever in levers(roomy)}
    assert list(found) == [
        "objective.chunk_blocks=32",
        "transport.depth=1",
        "drafter.checkpointing=layers",
        "pipeline.token_budget=100",
    ]
    assert all(size < needed for size in found.values())


def test_one_setting_is_named_where_one_is_enough_and_the_cheapest_few_where_not() -> None:
    roomy = replace(facts, chunk_blocks=0, token_budget=800)

    def limit(size: int) -> Callable[[Ledger], bool]:
        return lambda ledger: ledger.needed_bytes("cuda:1") <= size

    single = {lever.setting: plan_memory(lever.facts).needed_bytes("cuda:1") for lever in levers(roomy)}
    assert find_remedy(roomy, limit(max(single.values()))) in {(setting,) for setting in single}
    found = find_remedy(roomy, limit(min(single.values()) - 1))
    assert found is not None
    assert found[:2] == ("objective.chunk_blocks=32", "transport.depth=1")
    assert find_remedy(roomy, limit(0)) is None


def test_a_budget_is_not_halved_below_the_longest_document() -> None:
    assert all("budget" not in lever.setting for lever in levers(replace(facts, longest=101)))


def test_chunks_bound_the_logits() -> None:
    def logits(chunk_blocks: int) -> int:
        work = DrafterWork(
            shape=drafter,
            batch=batch,
            compiled=True,
            fused_loss=True,
            checkpointing=False,
            chunk_blocks=chunk_blocks,
        )
        return total(work.head()[:1])

    assert logits(0) == logits(60) == 2 * 60 * 4 * 1000 * 2  # logits and gradient of all blocks
    assert logits(20) == 3 * 20 * 4 * 1000 * 2  # and the gradient of the chunk before


def test_half_of_one_flat_row_is_as_wide_as_half_of_all_documents() -> None:
    flat = BatchShape(documents=((100, 4),) * 8, rows=1, width=800, masked=False)
    assert (flat.halved().rows, flat.halved().width) == (1, 400)
    padded = BatchShape(documents=((100, 4),) * 8, rows=8, width=100, masked=False)
    assert (padded.halved().rows, padded.halved().width) == (4, 100)


def test_half_a_batch_has_half_the_documents_or_half_of_one() -> None:
    assert batch.halved().documents == ((100, 40),)
    assert batch.halved().halved().documents == ((50, 40),)
