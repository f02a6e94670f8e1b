"""The field stories on real cards: every run can be configured, and the search may choose what they chose."""

from __future__ import annotations

import pytest

from benchmarks.story_cells import story_table
from benchmarks.story_runs import StoryCase, base, stories


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("cards", stories)
def test_every_run_takes_all_cards_and_trains_the_same_windows(cards: int, tiny: bool) -> None:
    case = StoryCase(cards, tiny)
    configs = [case.config(run) for run in (base, *stories[cards])]
    assert [config.split.devices for config in configs] == [2, *([cards] * len(stories[cards]))]
    assert len({config.window.tokens for config in configs}) == 1
    largest = max(case.choices["pipeline.token_budget"])
    assert all(config.window.tokens >= largest * config.split.drafters for config in configs)
    assert {config.pipeline.split for config in configs[1:]} == set(case.choices["pipeline.split"])


def test_names_are_file_names_and_each_is_there_once() -> None:
    for runs in stories.values():
        names = [run.name for run in runs]
        assert len(set(names)) == len(names)
        assert not any("/" in name for name in names)


def test_a_table_says_where_a_figure_is_missing() -> None:
    full = {
        "name": "peer 2-2",
        "measured": 1000.0,
        "measured_low": 900.0,
        "measured_high": 1100.0,
        "predicted": 1050.0,
        "error": 0.05,
        "gil_waits": {"target 0": 0.02, "drafter 1": 0.11},
    }
    head, rows = story_table({"rows": [full, {"name": "colocated-4", "measured": None}]})
    told = [dict(zip(head, row, strict=True)) for row in rows]
    assert told[0]["most GIL wait"] == "drafter 1: 11.0 %"
    assert told[0]["off by"] == "5.0 %"
    assert told[1]["tokens/s"] is None
    assert told[1]["90 % interval"] is None
