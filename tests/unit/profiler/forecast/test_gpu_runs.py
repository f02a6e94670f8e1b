"""Forecasts from recorded runs of one H200, held against what other settings of the same work came to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dflash.contract.config import all_knobs
from dflash.contract.knobs import parse_assignments
from profiler.forecast.observations import observe_run
from profiler.forecast.predictor import Prediction, Predictor
from profiler.forecast.what_if import predict_config
from profiler.run import Run
from profiler.timeline import Timeline

data = Path(__file__).parents[3] / "data" / "runs" / "h200_one_gpu"
measured: dict[str, dict[str, float]] = json.loads((data / "measured.json").read_text(encoding="utf-8"))
again = "the base again"


def forecasts(run_name: str, settings: dict[str, float]) -> list[tuple[Prediction, float]]:
    """What that run makes of each setting of its base, and what it came to."""
    run, base = (Run.open(data / name) for name in (run_name, "large" if run_name == "host" else run_name))
    predictor = Predictor([observe_run(run, Timeline.of(run))])
    assert run.config is not None
    assert base.config is not None
    found = []
    for changes, rate in settings.items():
        own = {} if changes == again else parse_assignments(changes.split(), all_knobs)
        found.append((predict_config(predictor, run.config, base.config.replacing(own)), rate))
    return found


@pytest.mark.parametrize(
    ("run_name", "measured_as", "median", "ninth", "outside"),
    [
        ("large", "large", 0.05, 0.1, 1),
        ("small_windows", "small_windows", 0.05, 0.1, 0),
        # From pageable copies that hold up everything to all that they do not.
        ("host", "large", 0.06, 0.1, 1),
        # The same between two runs whose links nobody measured.
        ("pieces", "pieces", 0.12, 0.18, 0),
        ("host_alone", "host_alone", 0.12, 0.12, 0),
    ],
)
def test_forecasts_are_what_came_of_it(
    run_name: str, measured_as: str, median: float, ninth: float, outside: int
) -> None:
    found = forecasts(run_name, measured[measured_as])
    errors = [abs(forecast.tokens_per_s / rate - 1.0) for forecast, rate in found]
    assert np.median(errors) < median
    assert np.quantile(errors, 0.9) < ninth
    assert sum(not forecast.low <= rate <= forecast.high for forecast, rate in found) <= outside


def test_a_copy_that_nobody_measured_is_not_free() -> None:
    """What is taken for it is said, and the interval holds twice as fast and half as fast."""
    ((forecast, _),) = forecasts("pieces", {"transport=host": 18432.5})
    (told,) = [doubt.text for doubt in forecast.doubts if "was not measured" in doubt.text]
    assert "1.5 GB/s down and 5 GB/s up" in told
    assert forecast.high < 0.8 * measured["pieces"][again]
    assert forecast.high / forecast.low > 2.0
    ((known, _),) = forecasts("large", {"transport=host": 25053.6})
    assert not any("was not measured" in doubt.text for doubt in known.doubts)
    assert known.high / known.low < 1.5
