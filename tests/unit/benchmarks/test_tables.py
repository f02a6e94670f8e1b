"""Recorded results become tables that say what the files say."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.table_cells import cell, table
from benchmarks.tables import page


def step(milliseconds: float) -> dict[str, float | int]:
    return {"median": milliseconds, "smallest": milliseconds - 1, "largest": milliseconds + 1, "n": 9}


def side(name: str, milliseconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "step_ms": step(milliseconds),
        "context_tokens_per_s": 8192e3 / milliseconds,
        "model_tflop_per_s": 400.0,
        "peak_gb": 28.4,
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (49123.4, "49,123"),
        (0.0, "0"),
        (0.25, "0.25"),
        (0.00002, "2.0e-05"),
        (step(218.0), "218 (217 to 219)"),
        ([1.5, 2.5], "1.5, 2.5"),
        ([], "none"),
        ("a|b", "a\\|b"),
    ],
)
def test_a_cell_shows_its_value(value: object, text: str) -> None:
    assert cell(value) == text


def test_a_table_without_rows_is_left_out() -> None:
    assert table(["a"], []) == ""


def test_a_duel_shows_both_sides_and_whether_they_agree() -> None:
    row = {
        "case": "a",
        "times_as_fast": step(1.3),
        "ours": side("dflash-tune", 160.0),
        "theirs": side("SpecForge", 218.0),
        "agreement": {
            "same": True,
            "loss": {"ours": 11.93, "theirs": 11.94},
            "largest_distance": {"ours": 0.02, "theirs": 0.03},
        },
    }
    document = {"benchmark": "against_specforge", "gpus": ["NVIDIA H200"], "utc": "2030-01-02", "rows": [row]}
    text = page({"against_specforge_h200_2030-01-02.json": document})
    assert "1 × NVIDIA H200" in text
    assert "| a | dflash-tune | 160 (159 to 161) | 51,200 | 400 | 28.4 | 1.3 (0.3 to 2.3) |" in text
    assert "| a | SpecForge | 218 (217 to 219) |" in text


def test_pipelines_are_held_against_the_fastest_naive_one_of_their_setting() -> None:
    rows = [
        {"setting": setting, "name": name, "tokens_per_s": rate, "interval_90": [rate, rate]}
        | {"peak_gb": [20.0], "rss_growth_gb": 3.0}
        for setting, name, rate in (
            ("big", "naive, peer", 200.0),
            ("big", "naive, host", 100.0),
            ("big", "peer", 300.0),
            ("mixed", "peer", 300.0),
        )
    ]
    text = page({"x.json": {"benchmark": "pipeline", "rows": rows}})
    assert "| big | peer | 300 (300 to 300) | 1.5 | n/a | n/a |" in text
    assert "| mixed | peer | 300 (300 to 300) | n/a |" in text


def test_an_unknown_benchmark_shows_the_rows_it_has() -> None:
    document = {"rows": [{"path": "peer", "gb_per_s": 388.0, "samples": [1, 2, 3, 4, 5]}]}
    text = page({"new_thing_h200_2030-01-02.json": document})
    assert "## new thing: new_thing_h200_2030-01-02.json" in text
    assert "| path | gb per s |" in text
    assert "| peer | 388 |" in text


def test_a_drafter_is_shown_as_it_learned_and_as_it_was_measured() -> None:
    curve = [{"step": 8, "loss": 7.5, "accuracy": 0.02}, {"step": 16, "loss": 5.25, "accuracy": 0.1}]
    held_out = {"step": 17, "documents": 48, "loss": 5.5, "accuracy": 0.12, "acceptance_length": 1.25}
    document = {
        "benchmark": "smollm2_drafter",
        "curve": curve,
        "held_out_curve": [held_out],
        "evaluation": {"acceptance": {"answers": 128, "pooled": 2.75, "pooled_interval": [2.5, 3.0]}},
        "wheel": {"prompts": 12, "same_lengths": 12, "same_text_as_greedy": 11, "pooled_wheel": 2.5},
    }
    drawn = page({"a.json": document})
    assert "| 17 | 48 held-out answers | 5.25 | 5.5 | 0.12 | 1.25 |" in drawn
    assert "answers of 128 held-out prompts | n/a | n/a | n/a | 2.75 (2.5 to 3, 95 %) |" in drawn
    assert "12 of these prompts; lengths equal for 12, text for 11 | n/a | n/a | n/a | 2.5 |" in drawn
    assert "acceptance length" in page({"a.json": {**document, "evaluation": None, "wheel": None}})
