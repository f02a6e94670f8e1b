"""The report of a study: what won against the start, by how much, why, and every trial. One HTML file.

Everything shown comes from the stored trials; nothing is measured or judged here. Knows nothing of how
trials are chosen.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from autotune.effort import Effort
from autotune.recommendation import Standing
from autotune.result import StudyResult, load_study
from autotune.trial import TrialState
from reports import text
from reports.charts import draw_trials
from reports.page import render_page, write_page
from reports.parts import Badge, Tile, VerdictCard, emulated_badge, say
from reports.study_rows import show_point, show_standing, show_trial, times


def write_study_report(study_path: Path, out: Path | None = None) -> Path:
    """Write the report of the study at `study_path` (default: report.html inside it). Raises RunError."""
    return write_page(out or study_path / "report.html", render_study(load_study(study_path)))


def render_study(result: StudyResult) -> str:
    """The page of one study as HTML."""
    trials = draw_trials([show_point(result, trial) for trial in result.trials])
    trial_rows = [show_trial(trial) for trial in result.trials]
    name = result.study_dir.resolve().name
    card = _card(result)
    return render_page(
        "study.html.j2",
        title=f"{name}: {card.verdict}",
        kind="Report of a configuration search",
        heading=name,
        badges=_badges(result),
        card=card,
        tiles=_tiles(result),
        standings=[show_standing(result, standing) for standing in result.standings],
        trials=trials,
        trial_rows=trial_rows,
        failed_rows=[row for row in trial_rows if row.tone == "bad"],
        stop=result.stop,
        best_toml=result.best_config_toml(),
        space=[(path, ", ".join(map(str, choices))) for path, choices in result.identity.space.items()],
        facts=_provenance(result),
        charts=[trials],
    )


def _badges(result: StudyResult) -> list[Badge]:
    words = {"better": "a change pays", "equal": "the start stands", "none": "no recommendation"}
    tone = "bad" if result.verdict == "none" else "good"
    return [Badge(words[result.verdict], tone), *emulated_badge(result.identity.emulated)]


def _card(result: StudyResult) -> VerdictCard:
    return VerdictCard(
        verdict=_sentence(result),
        why=result.why,
        next=(_next_step(result),),
        command=_changed_settings(result),
        bad=result.verdict == "none",
    )


def _sentence(result: StudyResult) -> str:
    if result.verdict == "none" or result.best is None:
        return "No configuration can be recommended."
    if result.verdict == "equal":
        return "Keep the starting configuration: nothing tried is faster beyond the noise or the tolerance."
    if result.gain is None:
        return f"Trial {result.best.number} is recommended; the start gave no figure to compare with."
    return (
        f"Trial {result.best.number} trains {times(result.gain.mid)} as fast as the starting configuration "
        f"({text.interval} {times(result.gain.low)} to {times(result.gain.high)})."
    )


def _next_step(result: StudyResult) -> str:
    if result.best is None:
        return "Look at the reasons of the failed trials below."
    if result.verdict == "equal":
        return "Nothing needs to change."
    file = str(result.best_toml or "best.toml")
    return f"Train with it: dflash-train run {shlex.quote(file)}. Or change the present configuration by:"


def _changed_settings(result: StudyResult) -> str:
    if result.best is None or result.start is None:
        return ""
    before = result.start.values
    return " ".join(
        f"--set {shlex.quote(f'{path}={value}')}"
        for path, value in result.best.values.items()
        if value != before.get(path)
    )


def _tiles(result: StudyResult) -> list[Tile]:
    over = [trial for trial in result.trials if trial.state.is_over]
    failed = sum(trial.state is TrialState.failed for trial in over)
    configurations = len({tuple(trial.values.items()) for trial in over})
    gain = result.gain
    return [
        _rate_tile("recommended", result.standing_of(result.best), "no configuration can be recommended"),
        _rate_tile("starting configuration", result.standing_of(result.start), _why_no_start(result)),
        Tile(
            "speed-up of the fastest",
            text.missing("nothing to compare") if gain is None else times(gain.mid),
            "" if gain is None else f"{text.interval} {times(gain.low)} to {times(gain.high)}",
        ),
        Tile(
            "trials",
            f"{len(over)}",
            f"{configurations:,} of {result.space_size:,} configurations; {failed} failed",
        ),
        Tile("a trial trains for", text.duration(result.identity.seconds), "warm-up included"),
    ]


def _rate_tile(label: str, standing: Standing | None, reason: str | None) -> Tile:
    if standing is None:
        return Tile(label, text.missing(reason))
    rate = standing.tokens_per_s
    runs = text.count_of(standing.runs, "run")
    return Tile(label, text.rate(rate.mid), f"{text.interval} {text.rate_range(rate.low, rate.high)}, {runs}")


def _why_no_start(result: StudyResult) -> str:
    start = result.start
    if start is None:
        return "it was not tried"
    return start.unhealthy or start.reason or "it was not measured"


def _provenance(result: StudyResult) -> list[tuple[str, str]]:
    identity, effort = result.identity, result.effort
    return [
        ("study directory", str(result.study_dir.resolve())),
        ("begun", identity.created_utc),
        ("version", identity.version or text.missing("not installed")),
        ("machine", say(identity.machine)),
        ("devices used", str(identity.devices)),
        ("emulated", "yes: logical devices" if identity.emulated else "no"),
        ("model and data", say(identity.inputs)),
        ("effort", _effort(effort)),
    ]


def _effort(effort: Effort) -> str:
    trials, repeats = text.count_of(effort.trials, "configuration"), text.count_of(effort.repeats, "repeat")
    return f"{trials}, {repeats} of each contender; gaps below {text.share(effort.tolerance)} are no gain"
