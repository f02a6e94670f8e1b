"""A space as arrays, and which configurations lie next to each other."""

from __future__ import annotations

from autotune.free_space import FreeSpace
from autotune.guided.table import Table

space = FreeSpace(
    {
        "pipeline.split": ("1-3", "2-2", "3-1", "2-1", "colocated-2"),
        "pipeline.token_budget": (16384, 4096, 8192),
        "transport.preset": ("host", "peer"),
    },
    allowed=lambda v: not v["pipeline.split"].startswith("colocated") or v["transport.preset"] == "peer",
)
table = Table.of(space)


def near(split: str, budget: int, preset: str) -> set[tuple[object, ...]]:
    values = {"pipeline.split": split, "pipeline.token_budget": budget, "transport.preset": preset}
    row = table.row(values)
    assert row is not None
    return {space.point(table.configurations[other]) for other in table.neighbours(row)}


def test_every_configuration_has_its_row() -> None:
    assert len(table) == space.size
    assert [table.row(values) for values in space.configurations] == list(range(space.size))
    assert (
        table.row({"pipeline.split": "9-9", "pipeline.token_budget": 4096, "transport.preset": "host"})
        is None
    )


def test_neighbours_are_one_step_of_one_knob_away() -> None:
    found = near("2-2", 8192, "peer")
    assert {("2-2", 4096, "peer"), ("2-2", 16384, "peer"), ("2-2", 8192, "host")} <= found
    assert {("1-3", 8192, "peer"), ("3-1", 8192, "peer"), ("2-1", 8192, "peer")} <= found
    assert ("2-2", 8192, "peer") not in found


def test_numbers_step_by_their_order_not_by_that_of_the_choices() -> None:
    assert ("2-2", 16384, "host") not in near("2-2", 4096, "host")


def test_a_step_may_take_another_knob_along() -> None:
    assert ("2-1", 8192, "peer") in near("2-1", 8192, "host")
    assert all(point[2] == "peer" for point in near("2-2", 8192, "host") if point[0] == "colocated-2")


def test_likeness_falls_with_distance() -> None:
    splits, sizes, presets = table.likeness
    assert sizes[1, 2] > sizes[1, 0]  # 4096 is nearer to 8192 than to 16384
    assert splits[0, 1] > splits[0, 2]
    assert presets.tolist() == [[1.0, 0.0], [0.0, 1.0]]
