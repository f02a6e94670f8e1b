"""What changed between two runs of the same work, in which stage, and whether that is beyond noise.

Throughputs are compared by a bootstrap over the windows of both. That is the noise within the runs: what
differs from one start of a machine to the next, one run each cannot show. Pure: reads runs, writes nothing.
Knows nothing of how a comparison is shown.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from profiler.comparability import Difference, check_comparable, describe_differences
from profiler.run import Run
from profiler.side_figures import Figure, compare_copies, compare_depths, compare_memory
from profiler.stage_changes import StageChange, compare_stages, tell_change
from profiler.stage_costs import measure_costs
from profiler.throughput import Throughput, measure_throughput, percentile_interval, resample_rates
from profiler.timeline import Timeline

Outcome = Literal["faster", "slower", "equal", "unknown"]
schema_version: Final = 1
exit_slower, exit_unknown = 3, 4  # of a gate; 0: not slower by more than the limit


@dataclass(frozen=True, slots=True)
class Ratio:
    """Tokens per second of B over those of A, with the 90 % interval."""

    mid: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        """Equal when 1 is within the interval: then the difference is not beyond noise."""
        if self.low <= 1.0 <= self.high:
            return "equal"
        return "faster" if self.mid > 1.0 else "slower"


@dataclass(frozen=True, slots=True)
class Gate:
    """The answer to "is B slower than A by more than the limit?", as an exit code with its reason."""

    limit: float  # share of A's throughput
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs of one workload, A before B."""

    verdict: str
    outcome: Outcome
    a: str  # path of the run
    b: str
    emulated: bool | None
    throughput_a: Throughput
    throughput_b: Throughput
    ratio: Ratio | None
    reason: str | None  # why there is no ratio
    gate: Gate | None  # none without a limit
    stages: tuple[StageChange, ...]  # largest change of pace first
    stages_reason: str | None  # why the stages cannot be compared
    copies: tuple[Figure, ...]
    depths: tuple[Figure, ...]
    memory: tuple[Figure, ...]
    knobs: tuple[Difference, ...]
    surroundings: tuple[Difference, ...]
    warnings: tuple[str, ...]
    schema: int = schema_version

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)


def compare(a: Run, b: Run, *, limit: float | None = None) -> Comparison:
    """Compare B with A. Raises UsageError when they did not do the same work.

    `limit`: the share of A's throughput that B may be slower by.
    """
    check_comparable(a, b)
    times = Timeline.of(a), Timeline.of(b)
    throughputs = measure_throughput(times[0]), measure_throughput(times[1])
    ratio, reason = _measure_ratio(times, throughputs)
    one_sided = _gil_of_one(times)
    costs = [
        measure_costs(run, time, split_gil=one_sided is None) for run, time in zip((a, b), times, strict=True)
    ]
    stages, stages_reason = compare_stages(*costs)
    outcome: Outcome = "unknown" if ratio is None else ratio.outcome
    knobs, surroundings = describe_differences(a, b)
    return Comparison(
        verdict=_say(ratio, reason, stages),
        outcome=outcome,
        a=str(a.path),
        b=str(b.path),
        emulated=a.emulated,
        throughput_a=throughputs[0],
        throughput_b=throughputs[1],
        ratio=ratio,
        reason=reason,
        gate=None if limit is None else judge(ratio, reason, limit),
        stages=stages,
        stages_reason=stages_reason,
        copies=compare_copies(*times),
        depths=compare_depths(*times),
        memory=compare_memory(a, b, *times),
        knobs=knobs,
        surroundings=surroundings,
        warnings=(
            *([] if one_sided is None else [one_sided]),
            *(f"{name}: {text}" for name, time in zip("AB", times, strict=True) for text in time.warnings),
        ),
    )


def _gil_of_one(times: tuple[Timeline, Timeline]) -> str | None:
    """What to say where waits for the GIL are known of one run only: its work alone would seem less."""
    unknown = {name: time.gil.reason for name, time in zip("AB", times, strict=True) if time.gil.reason}
    if len(unknown) != 1:
        return None
    ((name, reason),) = unknown.items()
    return f"waits for the GIL are unknown in {name} ({reason}): in both runs they count as work"


def judge(ratio: Ratio | None, reason: str | None, limit: float) -> Gate:
    """0: B is not slower than A by more than `limit`; 3: it is, beyond noise; 4: that cannot be told."""
    if ratio is None:
        return Gate(limit, exit_unknown, reason or "there is no ratio")
    most = f"the limit of {_percent(limit)}"
    reach = (ratio.high - ratio.low) / 2
    if ratio.low >= 1.0 - limit:
        return Gate(limit, 0, f"B is not slower by more than {most}, noise included")
    if ratio.mid < 1.0 - limit and ratio.high < 1.0:
        return Gate(limit, exit_slower, f"B is slower by more than {most}, beyond noise")
    if ratio.mid < 1.0 - limit or reach > limit:
        return Gate(limit, exit_unknown, f"noise of ±{_percent(reach)} hides {most}; longer runs narrow it")
    return Gate(limit, 0, f"B is not slower by more than {most}")


def _measure_ratio(
    times: tuple[Timeline, Timeline], throughputs: tuple[Throughput, Throughput]
) -> tuple[Ratio | None, str | None]:
    rates = [throughput.tokens_per_s for throughput in throughputs]
    if rates[0] is None or rates[1] is None:
        lacking = [
            f"{name}: {throughput.reason or 'windows without a token count'}"
            for name, throughput in zip("AB", throughputs, strict=True)
            if throughput.tokens_per_s is None
        ]
        return None, "; ".join(lacking)
    draws = [
        resample_rates(time.windows.iloc[time.steady.warmup_windows :], seed)
        for seed, time in enumerate(times)
    ]
    low, high = percentile_interval(np.asarray(draws[1] / draws[0], dtype=np.float64))
    return Ratio(rates[1] / rates[0], low, high), None


def _say(ratio: Ratio | None, reason: str | None, stages: tuple[StageChange, ...]) -> str:
    """The verdict in one sentence: how much, whether beyond noise, and what changed in which stage."""
    if ratio is None:
        return f"Not enough data to compare throughput: {reason}."
    told = next((tell_change(change) for change in stages if change.is_told), None)
    if ratio.outcome == "equal":
        span = f"90 % interval {ratio.low:.3f} to {ratio.high:.3f} times as fast"
        return f"A and B are equal within noise ({span})" + (f"; still, {told}." if told else ".")
    change = abs(ratio.mid - 1.0)
    ends = sorted((abs(ratio.low - 1.0), abs(ratio.high - 1.0)))
    span = f"beyond noise: {_percent(ends[0])} to {_percent(ends[1])}"
    cause = next((tell_change(c) for c in stages if c.explains(ratio.outcome)), None)
    cause = cause or "no stage's own time changed beyond noise in that direction"
    return f"B is {_percent(change)} {ratio.outcome} than A ({span}); {cause}."


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
