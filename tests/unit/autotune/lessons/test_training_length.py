"""Days of training, from what a run says of its data."""

import json

import pytest

from autotune.lessons.training_length import TrainingLength, read_length


def write_run(path, **manifest):
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"schema": 1, **manifest}))
    return path


def test_days_are_tokens_times_epochs_over_the_rate():
    """Story 2: about 1.9 billion tokens, 6 epochs, 14.8 Ktok/s: 8.8 days."""
    length = TrainingLength(epochs=6, epoch_tokens=1_875_000_000)
    assert length.days(14_800) == pytest.approx(8.8, abs=0.01)
    assert length.days(None) is None


def test_the_first_run_that_knows_its_data_tells(tmp_path):
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "run.json").write_text("{")
    silent = write_run(tmp_path / "silent", memory_plan={"facts": {"data_tokens": None}})
    knowing = write_run(tmp_path / "knowing", memory_plan={"facts": {"data_tokens": 5000}})
    length = read_length(2, [tmp_path / "gone", torn, silent, knowing])
    assert (length.epochs, length.epoch_tokens, length.reason) == (2, 5000, None)


def test_what_nobody_knows_has_a_reason(tmp_path):
    length = read_length(2, [write_run(tmp_path / "silent")])
    assert length.days(100.0) is None
    assert length.reason == "no run says how many tokens the data has"
    assert read_length(None, []).reason == "no training configuration is behind it"
