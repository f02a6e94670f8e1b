from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.examination import examine
from profiler.forecast import predictor
from reports.run_markdown import describe_run
from tests.played_pipeline import play


def test_a_run_is_fitted_once_and_no_setting_played_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = play(
        tmp_path / "run", targets=2, preset="host", target_copy_s=0.5, drafter_copy_s=0.05, windows=30
    )
    fits: list[Any] = []
    plays: list[Any] = []
    fit_model, simulate = predictor.fit_model, predictor.simulate
    monkeypatch.setattr(predictor, "fit_model", lambda runs: fits.append(runs) or fit_model(runs))

    def note(model: Any, setting: Any, windows: Any, **how: Any) -> Any:
        plays.append((id(model), setting, how["seed"]))
        return simulate(model, setting, windows, **how)

    monkeypatch.setattr(predictor, "simulate", note)
    examined = examine(path)
    assert examined.diagnosis.primary is not None
    assert examined.diagnosis.primary.predicted_gain is not None
    assert "### What if" in describe_run(examined)
    assert len(fits) == 1
    assert plays
    assert len(plays) == len(set(plays))
