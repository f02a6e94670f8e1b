"""Of combinations that run alike, one is tried: the start's own name, or the one next to others."""

import itertools

import pytest

from autotune.space import Dimension, SearchSpace, no_difference
from dflash.contract.config import load_config
from dflash.contract.errors import ConfigError

presets = ("host", "shared", "pinned", "peer", "auto")
parts = {
    "transport.queue": ("preset", "shared", "per_drafter"),
    "transport.path": ("preset", "pageable", "pinned", "peer"),
    "transport.dispatch": ("preset", "round_robin", "least_depth", "local"),
}


def space_over(*assignments, **choices):
    base = load_config(None, ["window.tokens=65536", *assignments])
    named = {name.replace("__", "."): values for name, values in choices.items()}
    return SearchSpace(tuple(Dimension(path, values) for path, values in named.items()), base, 8)


def tried(space, split):
    return [v["transport.preset"] for v in space.configurations if v["pipeline.split"] == split]


def test_one_drafter_does_not_tell_queues_apart():
    space = space_over("transport.preset=host", pipeline__split=("1-1", "1-2"), transport__preset=presets[:4])
    assert tried(space, "1-1") == ["host", "pinned", "peer"]
    assert tried(space, "1-2") == ["host", "shared", "pinned", "peer"]
    reason = space.why_not({"pipeline.split": "1-1", "transport.preset": "shared"})
    assert "is joined in the same way with transport.preset = peer" in reason


def test_the_starts_own_name_is_kept():
    space = space_over(
        "transport.preset=shared", pipeline__split=("1-1", "1-2"), transport__preset=("shared", "peer")
    )
    assert tried(space, "1-1") == ["shared"]
    assert space.baseline in space.configurations


def test_colocated_splits_copy_nothing_whatever_the_transport():
    space = space_over(
        "transport.preset=host", pipeline__split=("1-1", "colocated-2"), transport__preset=presets
    )
    assert tried(space, "colocated-2") == ["peer"]


def test_a_colocated_start_keeps_its_own():
    space = space_over("pipeline.split=colocated-1", "transport.preset=host",
                       pipeline__split=("colocated-1", "1-1"), transport__preset=presets)  # fmt: skip
    assert tried(space, "colocated-1") == ["host"]


def test_places_are_the_same_where_nobody_needs_to_share():
    space = space_over(pipeline__split=("1-1", "2-2", "4-4"), devices__gpus=(0, 2))
    assert [tuple(values.values()) for values in space.configurations] == [
        ("1-1", 0), ("2-2", 0), ("2-2", 2), ("4-4", 0), ("4-4", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("split", ["1-1", "2-2", "colocated-2"])
@pytest.mark.parametrize("preset", presets)
def test_every_way_of_travelling_has_one_name(split, preset):
    base = [f"pipeline.split={split}", f"transport.preset={preset}"]
    named = {path.replace(".", "__"): choices for path, choices in parts.items()}
    space = space_over(*base, transport__preset=presets, **named)
    ways = [way_of(space.config(values)) for values in space.configurations]
    every = set()
    for point in itertools.product(*(dimension.choices for dimension in space.dimensions)):
        values = dict(zip(space.paths, point, strict=True))
        try:
            every.add(way_of(space.config(values)))
        except ConfigError:
            assert split == "colocated-2"
    assert len(ways) == len(set(ways)), "no way twice"
    assert set(ways) == every, "no way is lost"
    assert {out.kind for out in space.ruled_out} >= {no_difference}


def way_of(config):
    """What the trainer makes of it, less what its split cannot tell apart."""
    choice = config.transport_choice
    if config.split.colocated:
        return "colocated"
    return choice.path if config.split.drafters == 1 else (choice.queue, choice.path, choice.dispatch)
