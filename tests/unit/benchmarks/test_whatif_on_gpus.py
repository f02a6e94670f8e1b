"""Runs of the page on forecasts are timed from their first window to their last, and end there."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.whatif_on_gpus import Page, again
from dflash.data.slices import hold_out


def test_no_run_ends_with_an_evaluation(tmp_path: Path) -> None:
    choice = argparse.Namespace(tiny=True, gpus=1, layers=2, anchors=16, changes=[], out=tmp_path)
    page = Page(choice, tmp_path)
    documents, held_out = hold_out(page.documents, page.configs[again])
    assert held_out is None
    assert len(documents.items) == 1200
    assert page.configs[again].run.checkpoint_every == -1
