"""What a run would gain by changes: the remedies of what was found, then neighbouring settings.

Rates and intervals are the forecast's; where it cannot tell, the row says why. Neighbours change nothing but
how the pipeline is laid out, so that the run trains the same and needs no other devices. Knows nothing of how
a table is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError, DFlashError
from dflash.contract.sections import presets
from profiler.finding import Diagnosis, Finding, Scalar
from profiler.forecast.predictor import Prediction, Predictor
from profiler.forecast.run_forecast import RunForecast
from profiler.forecast.setting import Setting
from reports import text
from reports.finding_rows import say_settings, say_toml

no_config: Final = "the run has no configuration of ours"
_most_neighbours: Final = 3
_least_gain: Final = 0.02  # of a neighbour: less is not worth a row
_few_doubts: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A change that is worth a try, in words."""

    reason: str  # the cause it is against, or that it is a neighbour
    words: str
    condition: str
    gain: str
    rate: str  # with its interval; empty where unknown
    limit: str  # what would set the pace then
    doubts: tuple[str, ...]  # how far the forecast goes beyond what was seen
    toml: str
    settings: str
    cause: str | None = None


def list_changes(forecast: RunForecast, diagnosis: Diagnosis) -> tuple[ChangeRow, ...]:
    """Rows in the order of the findings, neighbours after them, the best first."""
    remedies = [f for f in diagnosis.findings if f.remedy is not None and f.verdict != "rejected"]
    config, predictor = forecast.timeline.config, _fit(forecast)
    rows = [_remedy_row(finding, config, predictor, diagnosis) for finding in remedies]
    taken = [dict(f.remedy.knobs) for f in remedies if f.remedy is not None]
    return (*rows, *_neighbour_rows(config, predictor, taken, diagnosis))


def _fit(forecast: RunForecast) -> Predictor | str:
    """The model of the run, or why there is none."""
    if forecast.timeline.config is None:
        return no_config
    try:
        return forecast.predictor
    except DFlashError as error:
        return error.what


def _remedy_row(
    finding: Finding, config: TrainConfig | None, predictor: Predictor | str, diagnosis: Diagnosis
) -> ChangeRow:
    assert finding.remedy is not None
    knobs = finding.remedy.knobs
    told: Prediction | str = _predict(config, predictor, knobs) if knobs else "no knob does it"
    gain, reason = finding.predicted_gain, finding.predicted_gain_reason
    rate = ""
    if isinstance(told, Prediction):
        gain = told.ratio - 1
    elif gain is not None and diagnosis.throughput.tokens_per_s is not None:
        rate = f"to {text.rate(diagnosis.throughput.tokens_per_s * (1 + gain))}"
    return _row(
        f"against {finding.cause}",
        finding.remedy.text,
        knobs,
        told,
        gain=text.missing(reason) if gain is None else _signed(gain),
        rate=rate,
        condition=finding.condition or "",
        cause=finding.cause,
    )


def _neighbour_rows(
    config: TrainConfig | None,
    predictor: Predictor | str,
    taken: list[dict[str, Scalar]],
    diagnosis: Diagnosis,
) -> Iterator[ChangeRow]:
    """The best of the other presets and splits on as many devices, where they beat the run as it is."""
    if config is None or isinstance(predictor, str) or diagnosis.throughput.tokens_per_s is None:
        return
    settings = [(knobs, Setting.of(changed)) for knobs, changed in _neighbours(config) if knobs not in taken]
    rates = predictor.rank([predictor.now, *(setting for _, setting in settings)])
    best = sorted(zip(rates[1:], range(len(settings)), strict=True), reverse=True)[:_most_neighbours]
    for rate, place in best:
        knobs, setting = settings[place]
        if rate < (1 + _least_gain) * rates[0]:
            continue
        told = predictor.predict(setting)
        words = " and ".join(f"{path} = {value}" for path, value in knobs.items())
        yield _row("another layout", words, knobs, told, gain=_signed(told.ratio - 1))


def _neighbours(config: TrainConfig) -> Iterator[tuple[dict[str, Scalar], TrainConfig]]:
    split = config.split
    moved = [] if split.colocated else [-1, 1]
    splits = [f"{split.targets + by}-{split.drafters - by}" for by in moved]
    for preset in (config.transport.preset, *(name for name in presets if name != config.transport.preset)):
        for layout in (config.pipeline.split, *splits):
            knobs: dict[str, Scalar] = {}
            if layout != config.pipeline.split:
                knobs["pipeline.split"] = layout
            if preset != config.transport.preset:
                knobs["transport.preset"] = preset
            if not knobs:
                continue
            try:
                yield knobs, config.replacing(knobs)
            except ConfigError:
                continue


def _predict(
    config: TrainConfig | None, predictor: Predictor | str, knobs: Mapping[str, Scalar]
) -> Prediction | str:
    if config is None:
        return no_config
    if isinstance(predictor, str):
        return predictor
    try:
        return predictor.predict(Setting.of(config.replacing(knobs)))
    except DFlashError as error:
        return error.what


def _row(
    reason: str,
    words: str,
    knobs: Mapping[str, Scalar],
    told: Prediction | str,
    *,
    gain: str,
    rate: str = "",
    condition: str = "",
    cause: str | None = None,
) -> ChangeRow:
    if isinstance(told, Prediction):
        rate = f"{text.rate(told.tokens_per_s)} ({text.rate_range(told.low, told.high)})"
    return ChangeRow(
        reason=reason,
        words=words,
        condition=condition,
        gain=gain,
        rate=rate,
        limit=told.limit if isinstance(told, Prediction) else "",
        doubts=tuple(doubt.text for doubt in told.doubts[:_few_doubts])
        if isinstance(told, Prediction)
        else (),
        toml=say_toml(knobs),
        settings=say_settings(knobs),
        cause=cause,
    )


def _signed(gain: float) -> str:
    return f"{'+' if gain >= 0 else '−'}{text.share(abs(gain))}"
