"""Runs of the page on forecasts are timed from their first window to their last, and end there."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.whatif_on_gpus import Page, again, settings
from dflash.data.slices import hold_out


def open_page(path: Path, gpus: int) -> Page:
    choice = argparse.Namespace(
        tiny=True, gpus=gpus, layers=2, anchors=16, changes=[], out=path, first=len(settings), skip=0
    )
    return Page(choice, path)


def test_no_run_ends_with_an_evaluation(tmp_path: Path) -> None:
    page = open_page(tmp_path, 1)
    documents, held_out = hold_out(page.documents, page.configs[again])
    assert held_out is None
    assert len(documents.items) == 1200
    assert page.configs[again].run.checkpoint_every == -1


def test_what_changes_nothing_is_no_setting(tmp_path: Path) -> None:
    assert open_page(tmp_path, 2).settings == settings
    assert open_page(tmp_path, 1).settings == tuple(each for each in settings if each != "devices.gpus=1")


def test_settings_that_were_run_before_are_left_out(tmp_path: Path) -> None:
    page = open_page(tmp_path, 1)
    page.choice.skip, page.choice.first = 3, 2
    whole = page.settings
    page.__post_init__()
    assert page.settings == whole[3:5]
