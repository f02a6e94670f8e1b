"""What removing each supported cause would gain, by the forecast: fills `Finding.predicted_gain`.

A cause is removed where it sits in the model (copies off the stages, packing for nothing, no straggler,
no waits for the GIL); where it sits in a setting, the remedy's knobs are applied. What the model has no
place for is priced by the time it was measured to take. Knows nothing of how causes are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from dflash.contract.errors import DFlashError
from profiler.finding import Finding
from profiler.forecast.closed_form import estimate
from profiler.forecast.model import Line, PipelineModel
from profiler.forecast.predictor import Predictor
from profiler.forecast.run_forecast import RunForecast
from profiler.forecast.setting import Setting
from profiler.forecast.splits import choose_split, nearly_enough
from profiler.rules import drafter_too_slow, link_bound, shared_device_wait
from profiler.run import Run
from profiler.timeline import Timeline

few_items: Final = 2  # queued: enough to hide a copy
seen_gain: Final = 0.005  # less: the model shows nothing of the cause
drafter_cause: Final = drafter_too_slow.cause
_cured_by_split: Final = {
    drafter_cause: drafter_too_slow.with_split,
    shared_device_wait.cause: shared_device_wait.with_split,
    link_bound.cause: link_bound.with_split,
}


@dataclass(frozen=True, eq=False, slots=True)
class _Base:
    """What a change starts from."""

    timeline: Timeline
    predictor: Predictor

    @property
    def model(self) -> PipelineModel:
        return self.predictor.model

    @property
    def now(self) -> Setting:
        return self.predictor.now


Change = Callable[[_Base], tuple[PipelineModel, Setting] | None]


def predict_gains(forecast: RunForecast, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same findings, with gains where there is something to gain and it can be told."""
    findings = tuple(findings)
    if not any(finding.supported and _may_gain(finding) for finding in findings):
        return tuple(finding if finding.supported else _without(finding) for finding in findings)
    try:
        base = _Base(forecast.timeline, forecast.predictor)
    except DFlashError as error:
        return tuple(replace(f, predicted_gain_reason=error.what) for f in findings)
    return tuple(
        _with_gain(_with_split(finding, base, forecast.run), base) if finding.supported else _without(finding)
        for finding in findings
    )


def _may_gain(finding: Finding) -> bool:
    return finding.is_sickness or bool(finding.remedy and finding.remedy.knobs)


def _without(finding: Finding) -> Finding:
    reason = "rejected: nothing to remove" if finding.verdict == "rejected" else "the cause was not judged"
    return replace(finding, predicted_gain=None, predicted_gain_reason=reason)


def _with_gain(finding: Finding, base: _Base) -> Finding:
    remove = _changes.get(finding.cause)
    change = (remove(base) if remove else None) or _by_remedy(finding, base)
    if change is None and finding.cause == drafter_cause:
        change = _drafters_as_fast_as_targets(base)
    gain = None
    if change is not None:
        model, setting = change
        gain = base.predictor.predict(setting, model).ratio - 1.0
    cost = finding.measured_cost_share
    # A cause that was seen to cost, and whose end changes nothing, is not in the model: its times are untold.
    if (gain is None or abs(gain) < seen_gain) and finding.is_sickness and cost is not None and cost < 1:
        gain = 1.0 / (1.0 - cost) - 1.0
    if gain is None:
        return finding
    return replace(finding, predicted_gain=gain, predicted_gain_reason=None)


def _with_split(finding: Finding, base: _Base, run: Run | None) -> Finding:
    """What a split can cure gets the one that is forecast to help, instead of a rule of thumb's."""
    rule = _cured_by_split.get(finding.cause)
    if rule is None or run is None:
        return finding
    enough = math.inf
    if finding.cause == drafter_cause:
        cured = _drafters_as_fast_as_targets(base)
        enough = base.predictor.predict(cured[1], cured[0]).ratio - 1 if cured else 0.0
    choice = choose_split(run, base.predictor, enough)
    if choice is None:
        return finding
    change = _by_remedy(finding, base) if finding.cause == link_bound.cause else None
    if change is not None and base.predictor.predict(change[1]).ratio - 1 >= nearly_enough * choice.gain:
        return finding  # another transport is the lesser change
    return rule(finding, choice.split, choice.gain)


def _by_remedy(finding: Finding, base: _Base) -> tuple[PipelineModel, Setting] | None:
    """The setting that the remedy's knobs make; None without knobs or for a configuration that cannot be."""
    config = base.timeline.config
    if config is None or finding.remedy is None or not finding.remedy.knobs:
        return None
    try:
        return base.model, Setting.of(config.replacing(finding.remedy.knobs))
    except DFlashError:
        return None


def _copies_beside(base: _Base) -> tuple[PipelineModel, Setting]:
    """States go from device to device beside the stages' work, to a queue of each drafter."""
    now = base.now
    depth = min(now.depth, few_items)
    changed = replace(now, path="peer", shared_queue=False, dispatch="least_depth", depth=depth)
    return base.model, changed


def _free_packing(base: _Base) -> tuple[PipelineModel, Setting]:
    return replace(base.model, pack=Line()), base.now


def _drafters_as_fast_as_targets(base: _Base) -> tuple[PipelineModel, Setting] | None:
    """Without a device to move: drafters' work so short that they no longer hold the targets up."""
    windows = base.predictor.windows(base.now)
    seconds = estimate(base.model, base.now, windows).seconds
    factor = seconds["targets"] / seconds["drafters"]
    if factor >= 1.0:
        return None
    model = base.model
    return replace(model, backward=model.backward.times(factor), step_s=model.step_s * factor), base.now


def _all_as_fast(base: _Base) -> tuple[PipelineModel, Setting] | None:
    """No target slower than the usual one; None where no target is."""
    if not any(factor > 1.0 for factor in base.model.target_factors):
        return None
    return replace(base.model, target_factors=tuple(min(f, 1.0) for f in base.model.target_factors)), base.now


def _copies_alike(base: _Base) -> tuple[PipelineModel, Setting] | None:
    """No target's copies slower than the usual ones; None where none are."""
    if not base.model.copy_factors:
        return None
    return replace(base.model, copy_factors={}), base.now


def _forwards_alone(base: _Base) -> tuple[PipelineModel, Setting] | None:
    """Targets' threads do nothing else that takes longer with more tokens; None where they do not."""
    extra = base.model.target_extra
    if not extra.slope_s:
        return None
    return replace(base.model, target_extra=Line(extra.fixed_s)), base.now


def _without_gil_waits(base: _Base) -> tuple[PipelineModel, Setting] | None:
    """Work without its waits for the GIL; None where nobody was seen to wait."""
    work = {stage: 1.0 - _gil_share(base.timeline, stage) for stage in ("prefetch", "target", "drafter")}
    if all(share == 1.0 for share in work.values()):
        return None
    model = base.model
    changed = replace(
        model,
        pack=model.pack.times(work["prefetch"]),
        forward=model.forward.times(work["target"]),
        target_extra=model.target_extra.times(work["target"]),
        backward=model.backward.times(work["drafter"]),
        drafter_extra=model.drafter_extra.times(work["drafter"]),
        step_s=model.step_s * work["drafter"],
    )
    return changed, base.now


def _gil_share(timeline: Timeline, stage: str) -> float:
    """The part of a stage's work that was waiting for the GIL."""
    mine = timeline.devices[timeline.devices["stage"] == stage]
    waited = float(mine.loc[mine["kind"] == "gil_wait", "seconds"].sum())
    worked = float(mine.loc[mine["kind"] == "work", "seconds"].sum())
    return waited / (waited + worked) if waited else 0.0


_changes: Final[dict[str, Change]] = {
    "sync-d2h-on-critical-path": _copies_beside,
    "h2d-on-drafter-critical-path": _copies_beside,
    "host-staging-queue-too-deep": _copies_beside,
    "shared-queue-cross-device": _copies_beside,
    "prefetch-starvation": _free_packing,
    "one-gpu-throttled": _all_as_fast,
    "numa-remote-host-buffers": _copies_alike,
    "straggling-link": _copies_alike,
    "python-packing-loop": _forwards_alone,
    "per-step-scalar-sync": _forwards_alone,
    "gil-contention": _without_gil_waits,
}
