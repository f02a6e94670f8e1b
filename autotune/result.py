"""What a study has found: the recommendation, the gain with its interval, and why it won.

Everything is computed from the stored trials, so a study can be read while its search runs. What is
recommended is scored on all its runs, not on the run that made it stand out (the fastest of several noisy
runs is in part the luckiest). Knows nothing of rendering.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.applying import Stray, sort_out
from autotune.comparison import Interval, Noise, Rate, compare, measure_fresh_noise, measure_noise
from autotune.default_searcher import default_searcher
from autotune.effort import Effort
from autotune.explanation import caution, explain
from autotune.history import History, find_start
from autotune.identity import Identity, read_identity
from autotune.planning import describe_progress, plan_next
from autotune.recommendation import Standing, find_rates, rank, recommend
from autotune.searcher import Searcher, Stop
from autotune.space import SearchSpace
from autotune.storage import read_trials
from autotune.study import count_complaints
from autotune.trial import Trial
from dflash.contract.errors import RunError

json_schema_version = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A study, concluded as far as it is.

    `verdict` is "better" (a change pays), "equal" (nothing tried is faster than the start beyond the noise,
    so the start is recommended) or "none" (no trial can be recommended).
    """

    study_dir: Path
    identity: Identity
    effort: Effort
    space: SearchSpace
    trials: tuple[Trial, ...]  # those that apply to the space
    strays: tuple[Stray, ...]  # those of an earlier space that do not, with the reason
    standings: tuple[Standing, ...]  # comparable configurations, fastest first
    start: Trial | None  # the trial of the starting configuration
    fastest: Trial | None
    best: Trial | None  # what is recommended
    gain: Interval | None  # the fastest ÷ the start, in fresh processes if both ran there; None: not known
    gains: Mapping[int, Interval]  # {first trial: ÷ the start} of all standings; empty without a start
    verdict: str
    equals: tuple[int, ...]  # trials that the noise does not tell from the fastest
    why: tuple[str, ...]  # sentences
    failures: tuple[tuple[str, int], ...]  # reasons, most common first
    stop: str
    gap_probability: float | None  # that something untried is better by more than the tolerance

    @property
    def best_toml(self) -> Path | None:
        """The recommended configuration as a file, once the search has written it."""
        path = best_path(self.study_dir)
        return path if path.exists() else None

    def run_path(self, trial: Trial) -> Path:
        """The run directory of a trial."""
        return self.study_dir / trial.run_path

    def standing_of(self, trial: Trial | None) -> Standing | None:
        return next((s for s in self.standings if trial and s.trial.number == trial.number), None)

    def best_config_toml(self) -> str | None:
        """The recommended configuration in full, with the starting configuration's own run length."""
        if self.best is None:
            return None
        rate = self.standing_of(self.best)
        found = f"{rate.tokens_per_s.mid:.0f} tokens/s over {rate.runs} runs" if rate else "not measured"
        head = f"# Found by dflash-tune search: trial {self.best.number}, {found}.\n"
        return head + self.identity.base().replacing(self.best.values).to_toml()

    def to_json(self) -> dict[str, Any]:
        """Strict JSON of everything above."""
        return {
            "schema": json_schema_version,
            "study_dir": str(self.study_dir),
            "study": self.identity.to_json(),
            "changes_training": list(self.space.changes_training),
            "space_size": self.space.size,
            "verdict": self.verdict,
            "best": None if self.best is None else self.best.number,
            "fastest": None if self.fastest is None else self.fastest.number,
            "start": None if self.start is None else self.start.number,
            "gain": _interval_json(self.gain),
            "equals": list(self.equals),
            "why": list(self.why),
            "stop": self.stop,
            "gap_probability": self.gap_probability,
            "failures": [{"reason": reason, "trials": count} for reason, count in self.failures],
            "standings": [
                {
                    "trial": s.trial.number,
                    "runs": s.runs,
                    "tokens_per_s": _interval_json(s.tokens_per_s),
                    "gain": _interval_json(self.gains.get(s.trial.number)),
                }
                for s in self.standings
            ],
            "trials": [trial.to_json() for trial in self.trials],
            "not_applying": [{"trial": s.trial.to_json(), "reason": s.reason} for s in self.strays],
        }


def load_study(study_dir: Path, searcher: Searcher | None = None) -> StudyResult:
    """The study in `study_dir` as it stands; `searcher` is the default one if it is left out.

    Takes no lock and writes nothing.
    """
    identity = read_identity(study_dir)
    effort = read_effort(study_dir)
    trials = read_trials(study_dir)
    return conclude(study_dir, identity, identity.search_space(), trials, effort, searcher)


def conclude(
    study_dir: Path,
    identity: Identity,
    space: SearchSpace,
    all_trials: Sequence[Trial],
    effort: Effort,
    searcher: Searcher | None = None,
) -> StudyResult:
    """What the trials amount to; `searcher` is the default one if it is left out."""
    searcher = searcher or default_searcher()
    trials, strays = sort_out(all_trials, space)
    history = History(space, trials, effort, sum(stray.trial.spent_s or 0.0 for stray in strays))
    planned = plan_next(searcher, history, len(identity.machine["gpus"]))
    rates = find_rates(trials)
    noise = measure_noise(rates)
    standings = rank(trials, rates, noise)
    start = find_start(space, trials)
    fastest = recommend(searcher, history)
    finals = find_rates(trials, fresh=True)
    final_noise = measure_fresh_noise(finals)
    gains = _gains(start, rates, noise) | _gains(start, finals, final_noise)
    gain = gains.get(fastest.number) if fastest else None
    verdict, best = _judge(fastest, start, gain, effort.tolerance)
    equals = _find_equals(fastest, rates, noise)
    if fastest is not None and fastest.number in finals:
        equals = tuple(n for n in equals if n not in finals) + _find_equals(fastest, finals, final_noise)
    return StudyResult(
        study_dir=study_dir,
        identity=identity,
        effort=effort,
        space=space,
        trials=trials,
        strays=strays,
        standings=standings,
        start=start,
        fastest=fastest,
        best=best,
        gain=gain,
        gains=gains,
        verdict=verdict,
        equals=equals,
        why=(*explain(verdict, fastest, start, gain, equals), *caution(space.changes_training)),
        failures=count_complaints(trials),
        stop=describe_progress(history, planned),
        gap_probability=planned.gap_probability if isinstance(planned, Stop) else None,
    )


def best_path(study_dir: Path) -> Path:
    """Where the recommended configuration is written."""
    return study_dir / "best.toml"


def effort_path(study_dir: Path) -> Path:
    """What the last search on the study was asked to spend."""
    return study_dir / "effort.json"


def read_effort(study_dir: Path) -> Effort:
    """The effort of the study's last search."""
    path = effort_path(study_dir)
    try:
        return Effort(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Effort()  # killed before it was written: no trial was made yet
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path.name} cannot be read: {error}", where=str(path)) from None


def _gains(start: Trial | None, rates: Mapping[int, list[Rate]], noise: Noise) -> dict[int, Interval]:
    if start is None or start.number not in rates:
        return {}
    same = Interval(1.0, 1.0, 1.0)
    base = rates[start.number]
    return {n: same if n == start.number else compare(ours, base, noise) for n, ours in rates.items()}


def _judge(
    fastest: Trial | None, start: Trial | None, gain: Interval | None, tolerance: float
) -> tuple[str, Trial | None]:
    if fastest is None:
        return "none", None
    if gain is None:  # the start could not be measured, so anything that runs is better
        return "better", fastest
    if gain.low > 1 and gain.mid >= 1 + tolerance:
        return "better", fastest
    return "equal", start


def _find_equals(fastest: Trial | None, rates: Mapping[int, list[Rate]], noise: Noise) -> tuple[int, ...]:
    if fastest is None:
        return ()
    return tuple(
        number
        for number, theirs in rates.items()
        if number != fastest.number and not compare(rates[fastest.number], theirs, noise).excludes(1.0)
    )


def _interval_json(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"mid": interval.mid, "low": interval.low, "high": interval.high}
