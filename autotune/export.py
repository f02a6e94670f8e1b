"""A configuration taken out of a study, to be run elsewhere. Knows nothing of rendering."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.result import StudyResult
from autotune.trial import Trial
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError, UsageError


@dataclass(frozen=True, slots=True)
class Exported:
    """The whole configuration of a trial, with the run length of the one that the study started from."""

    trial: Trial
    config: TrainConfig
    toml: str


def find_trial(result: StudyResult, number: int) -> Trial:
    """A trial of the study by its number, also one that no longer applies. Raises UsageError."""
    known = [*result.trials, *(stray.trial for stray in result.strays)]
    for trial in known:
        if trial.number == number:
            return trial
    numbers = sorted(trial.number for trial in known)
    raise UsageError(
        f"the study has no trial {number}",
        where=str(result.study_dir),
        expected=f"{numbers[0]} to {numbers[-1]}" if numbers else "a study with trials",
        remedy=f"`dflash-tune show {result.study_dir}` lists them",
    )


def export(result: StudyResult, number: int | None = None) -> Exported:
    """The configuration of a trial, or (None) of the one that is recommended.

    Raises UsageError where there is no such trial, DFlashError where nothing can be recommended.
    """
    if number is None:
        text = result.best_config_toml()
        if result.best is None or text is None:
            raise DFlashError(
                "nothing can be recommended, so there is nothing to export",
                where=str(result.study_dir),
                found=result.stop,
                remedy="name a trial with --trial",
            )
        return Exported(result.best, _config(result, result.best), text)
    trial = find_trial(result, number)
    config = _config(result, trial)
    return Exported(
        trial, config, f"# Trial {number} of a dflash-tune study: {_told(trial)}.\n{config.to_toml()}"
    )


def _config(result: StudyResult, trial: Trial) -> TrainConfig:
    return result.identity.base().replacing(trial.values)


def _told(trial: Trial) -> str:
    if trial.tokens_per_s is None:
        return f"{trial.state}, {trial.failure}" if trial.failure else str(trial.state)
    unsound = "" if trial.unhealthy is None else ", must not win"
    return f"{trial.tokens_per_s:.0f} tokens/s in one run{unsound}"
