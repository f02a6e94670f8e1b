"""What is done with a run that is over: diagnose it, keep that beside it, write its report.

Says nothing itself: what could not be had is returned with the rest. Knows nothing of how the run came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.contract.errors import RunError

if TYPE_CHECKING:
    from profiler.examination import Examination
    from profiler.finding import Diagnosis


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A run's diagnosis and the place of its report; `troubles` say what is missing, and why."""

    diagnosis: Diagnosis | None
    report: Path | None
    troubles: tuple[str, ...] = ()


def examine_here(run_path: Path, *, measure: bool) -> Examination:
    """What is found in a run; where its GPUs are this machine's, suspected links are measured if `measure`.

    Raises RunError.
    """
    from cli.links_on_the_spot import measure_suspects
    from profiler.ceilings import machine_file
    from profiler.examination import examine

    examined = examine(run_path, machine_file())
    return measure_suspects(examined) if measure else examined


def examine_kept(run_path: Path, *, measure: bool) -> tuple[Examination, tuple[str, ...]]:
    """The same, kept beside the run where the disk allows, and what went wrong with that.

    Raises RunError.
    """
    examined = examine_here(run_path, measure=measure)
    try:
        examined.diagnosis.save(run_path)
    except RunError as error:  # a run on a read-only disk can still be diagnosed
        return examined, (error.render(),)
    return examined, ()


def conclude(run_path: Path, *, measure: bool = False) -> Conclusion:
    """Diagnosis and report; the run stays as it is where one of them cannot be had. `measure`: see above."""
    from reports.run_report import write_run_report

    try:
        examined, troubles = examine_kept(run_path, measure=measure)
    except RunError as error:
        return Conclusion(None, None, (error.render(),))
    try:
        return Conclusion(examined.diagnosis, write_run_report(examined), troubles)
    except RunError as error:
        return Conclusion(examined.diagnosis, None, (*troubles, error.render()))
