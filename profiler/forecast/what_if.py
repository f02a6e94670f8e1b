"""The answer to "what if": today's and predicted figures for one change of a run's configuration.

Only knobs of the pipeline can be asked about: what changes the work itself (layers, taps, anchors) takes a
run. Knows nothing of command lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import RunError, UsageError
from dflash.contract.knobs import parse_assignments
from profiler.capacity import measure_loads
from profiler.comparability import check_comparable
from profiler.forecast.limit import measure_limit
from profiler.forecast.memory import MemoryForecast, forecast_memory, read_facts
from profiler.forecast.model import PipelineModel
from profiler.forecast.observations import declared_links, observe_run
from profiler.forecast.predictor import Prediction, Predictor
from profiler.forecast.setting import Setting
from profiler.hardware_limit import Limit
from profiler.run import Run
from profiler.throughput import Throughput, measure_throughput
from profiler.timeline import Timeline

asked: Final = (
    "pipeline.split",
    "pipeline.schedule",
    "pipeline.token_budget",
    "pipeline.prefetch_depth",
    "transport.preset",
    "transport.queue",
    "transport.path",
    "transport.dispatch",
    "transport.depth",
    "devices.gpus",
    "devices.link_gigabytes_per_s",
    "devices.pinned_gigabytes_per_s",
    "devices.pageable_gigabytes_per_s",
    "devices.link_latency_us",
    "window.tokens",
    "run.epochs",
)
"""Knobs that a forecast knows the effect of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Today's figures, those predicted, and what they rest on."""

    changes: Mapping[str, Any]
    today: Throughput
    prediction: Prediction
    epochs: int
    data_tokens: int | None  # of an epoch
    memory: MemoryForecast
    limit: Limit  # of the hardware, with the split that was asked about
    assumptions: tuple[str, ...]

    @property
    def gain(self) -> float:
        """Relative to today."""
        return self.prediction.ratio - 1.0

    def days(self, tokens_per_s: float | None) -> float | None:
        """Days of training for all epochs at that rate; None when the run does not say how much there is."""
        if not tokens_per_s or self.data_tokens is None:
            return None
        return self.data_tokens * self.epochs / tokens_per_s / 86_400

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        prediction = self.prediction
        return {
            "changes": {name: list(v) if isinstance(v, tuple) else v for name, v in self.changes.items()},
            "today": {
                "tokens_per_s": self.today.tokens_per_s,
                "low": self.today.low,
                "high": self.today.high,
                "days": self.days(self.today.tokens_per_s),
            },
            "predicted": {
                "tokens_per_s": prediction.tokens_per_s,
                "low": prediction.low,
                "high": prediction.high,
                "gain": self.gain,
                "closed_form_tokens_per_s": prediction.closed_form_tokens_per_s,
                "limit": prediction.limit,
                "shares": {stage: dict(parts) for stage, parts in prediction.shares.items()},
                "days": self.days(prediction.tokens_per_s),
            },
            "epochs": self.epochs,
            "data_tokens": self.data_tokens,
            "memory": asdict(self.memory),
            "device_limit": {
                "tokens_per_s": self.limit.as_split,
                "best_tokens_per_s": self.limit.tokens_per_s,
                "best_split": self.limit.split,
                "reason": self.limit.reason,
            },
            "assumptions": list(self.assumptions),
        }


def ask(runs: Sequence[Run], assignments: Sequence[str], ceilings: Path | None = None) -> WhatIf:
    """What `assignments` (knob=value) would do to the first run; the model is fitted on all of them.

    `ceilings`: the file of what this machine's GPUs can do at best. Raises UsageError for knobs that no
    forecast is made for, ConfigError for a configuration that cannot be, RunError for runs that do not serve.
    """
    first = runs[0]
    if first.config is None:
        raise RunError(
            "the run has no configuration of ours, so there are no knobs to change",
            where=str(first.path),
            remedy="`dflash-profile diagnose` predicts the gains of its remedies",
        )
    changes = parse_assignments(assignments, all_knobs)
    _check_asked(changes)
    config = first.config.replacing(changes)
    for other in runs[1:]:
        check_comparable(first, other)
    timelines = [Timeline.of(run) for run in runs]
    predictor = Predictor([observe_run(run, line) for run, line in zip(runs, timelines, strict=True)])
    prediction = predict_config(predictor, first.config, config)
    facts = read_facts(first)
    return WhatIf(
        changes=changes,
        today=measure_throughput(timelines[0]),
        prediction=prediction,
        epochs=config.run.epochs,
        data_tokens=None if facts is None else facts.data_tokens,
        memory=forecast_memory(first, config),
        limit=measure_limit(first, timelines[0], measure_loads(timelines[0]), ceilings, config),
        assumptions=tuple(_assume(predictor, prediction, first)),
    )


def predict_config(predictor: Predictor, now: TrainConfig, then: TrainConfig) -> Prediction:
    """What the first run of `predictor`, which had the configuration `now`, would come to with `then`."""
    model = _with_links(predictor.model, now, then) if predictor.runs[0].emulated else None
    return predictor.predict(Setting.of(then), model)


def _with_links(model: PipelineModel, now: TrainConfig, then: TrainConfig) -> PipelineModel:
    """The model with the links of logical devices as fast as they are declared to be."""
    before, after = declared_links(now), declared_links(then)
    changed = {path: line for path, line in after.items() if line != before[path]}
    return replace(model, links={**model.links, **changed})


def _check_asked(changes: Mapping[str, Any]) -> None:
    other = sorted(set(changes) - set(asked))
    if other:
        raise UsageError(
            f"no forecast is made for {', '.join(other)}",
            where="--set",
            expected=f"knobs of the pipeline: {', '.join(asked)}",
            remedy="record a short run with it: what changes the work itself must be measured",
        )


def _assume(predictor: Predictor, prediction: Prediction, run: Run) -> list[str]:
    off = predictor.correction - 1.0
    side = "below" if off > 0 else "above"
    told = [f"the model is {abs(off):.1%} {side} the run it was fitted on; corrected"]
    told += [f"beyond what was seen: {doubt.text}" for doubt in prediction.doubts]
    if run.emulated:
        told.append("on logical devices: times say nothing of GPUs")
    return told
