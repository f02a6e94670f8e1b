from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.knobs import flatten
from profiler.examination import examine
from profiler.finding import Diagnosis, Remedy
from profiler.forecast.run_forecast import RunForecast
from reports.what_if import ChangeRow, list_changes
from tests.played_pipeline import play
from tests.run_builder import RunBuilder


@dataclasses.dataclass(frozen=True)
class Read:
    forecast: RunForecast
    diagnosis: Diagnosis

    def rows(self, **changes: Any) -> tuple[ChangeRow, ...]:
        return list_changes(self.forecast, dataclasses.replace(self.diagnosis, **changes))


def read(path: Path) -> Read:
    examined = examine(path)
    return Read(examined.forecast, examined.diagnosis)


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Two targets that copy on their own time to one drafter."""
    path = tmp_path_factory.mktemp("runs") / "copying"
    return read(play(path, targets=2, preset="host", target_copy_s=0.5, drafter_copy_s=0.05, windows=30))


def plain(words: str) -> str:
    return words.replace("\u00a0", " ")


def test_the_remedy_comes_first_with_gain_interval_and_what_to_apply(copying: Read) -> None:
    first = copying.rows()[0]
    primary = copying.diagnosis.primary
    assert primary is not None
    assert primary.remedy is not None
    assert first.cause == primary.cause
    assert first.gain.startswith("+")
    assert " to " in first.rate
    assert "tok/s" in first.rate
    assert first.limit
    assert flatten(tomllib.loads(first.toml)) == dict(primary.remedy.knobs)
    assert "--set transport.preset=peer" in first.settings


def test_neighbours_are_faster_sound_and_not_the_remedy_again(copying: Read) -> None:
    first, *others = copying.rows()
    assert others
    assert len(others) <= 3
    assert copying.forecast.timeline.config is not None
    for row in others:
        assert row.cause is None
        assert row.gain.startswith("+")
        knobs = flatten(tomllib.loads(row.toml))
        changed = copying.forecast.timeline.config.replacing(knobs)
        assert changed.split.targets + changed.split.drafters == 3
        assert row.toml != first.toml


def test_what_was_never_seen_is_said(copying: Read) -> None:
    assert any("peer" in doubt for doubt in copying.rows()[0].doubts)


def test_a_remedy_without_knobs_has_the_gain_of_removing_its_cause(copying: Read) -> None:
    primary = copying.diagnosis.primary
    assert primary is not None
    by_hand = dataclasses.replace(
        primary, remedy=Remedy("Pack less."), predicted_gain=0.25, predicted_gain_reason=None
    )
    row = copying.rows(findings=(by_hand,))[0]
    assert (plain(row.gain), row.toml, row.settings) == ("+25 %", "", "")
    assert row.rate.startswith("to ")
    unknown = dataclasses.replace(by_hand, predicted_gain=None, predicted_gain_reason="not yet known")
    row = copying.rows(findings=(unknown,))[0]
    assert (row.gain, row.rate) == ("n/a: not yet known", "")


def test_remedies_of_rejected_causes_are_not_offered(copying: Read) -> None:
    rejected = [dataclasses.replace(f, verdict="rejected") for f in copying.diagnosis.findings]
    assert all(row.cause is None for row in copying.rows(findings=tuple(rejected)))


def test_a_stranger_without_our_configuration_gets_reasons_not_numbers(copying: Read) -> None:
    stranger = RunForecast(dataclasses.replace(copying.forecast.timeline, config=None))
    rows = list_changes(stranger, copying.diagnosis)
    assert len(rows) == len([f for f in copying.diagnosis.findings if f.supported and f.remedy])
    assert all(not row.limit for row in rows)


def test_too_little_to_fit_is_no_failure(tmp_path: Path) -> None:
    assert read(play(tmp_path / "short", windows=3)).rows() is not None
    assert read(RunBuilder(tmp_path / "empty").finish("failed")).rows() is not None
