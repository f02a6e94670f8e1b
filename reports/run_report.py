"""The report of one run: reads and diagnoses it, says it in words, tables and charts, writes one HTML file.

Everything shown comes from the run directory; nothing is measured here. Knows nothing of studies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dflash.contract.rundir import RunDir
from profiler.capacity import Capacities, measure_loads
from profiler.examination import Examination
from profiler.finding import Diagnosis
from profiler.rules.verdicts import named_cost_share
from profiler.run import Run
from profiler.throughput import Throughput
from profiler.timeline import Timeline
from reports import style, text
from reports.charts import RateBar, draw_rates
from reports.closing import draw_threads, tabulate
from reports.finding_rows import count_verdicts, say_settings, show_finding
from reports.memory_rows import compare_memory, no_plan
from reports.page import Chart, render_page, write_page
from reports.parts import Badge, Tile, VerdictCard, emulated_badge
from reports.pipeline_map import draw_map
from reports.provenance import list_facts, list_settings, show_command
from reports.route_rows import list_routes
from reports.run_map import map_run
from reports.run_marks import list_views, mark_lanes, mark_spans
from reports.run_panels import collect_panels
from reports.run_waterfall import explain_limit, explain_steps, mark_rows, step_to_limit
from reports.time_chart import draw_over_time
from reports.waterfall import draw_waterfall
from reports.what_if import list_changes

stage_words: Final = {"prefetch": "prefetch", "target": "targets", "drafter": "drafters"}
_off_scale: Final = 2.0  # a bar this many times as long as the others is said, not drawn


def write_run_report(examined: Examination, out: Path | None = None) -> Path:
    """Write the report of a run; the file's path. Raises RunError.

    Without `out` it is report.html inside the run.
    """
    return write_page(out or RunDir(examined.run.path).report_path, render_run(examined))


def render_run(examined: Examination) -> str:
    """The page of one run as HTML."""
    run, timeline, diagnosis = examined.run, examined.timeline, examined.diagnosis
    measured, capacities = diagnosis.throughput, diagnosis.capacities
    rates, rates_note = _draw_capacities(diagnosis)
    steps = step_to_limit(measured, capacities, measure_loads(timeline), diagnosis.limit)
    waterfall = draw_waterfall(steps)
    threads = draw_threads(diagnosis.closing_sums)
    panels = collect_panels(run)
    time = draw_over_time(panels, mark_spans(timeline, diagnosis), mark_lanes(timeline, diagnosis))
    pipeline = map_run(timeline, capacities)
    return render_page(
        "run.html.j2",
        title=f"{run.path.resolve().name}: {diagnosis.headline}",
        kind="Report of a training run",
        heading=run.path.resolve().name,
        badges=_badges(run),
        card=_card(diagnosis),
        notices=diagnosis.warnings,
        tiles=_tiles(diagnosis),
        steps=steps,
        steps_note=explain_steps(capacities),
        limit_note=explain_limit(diagnosis.limit),
        marks=mark_rows(diagnosis.limit),
        waterfall=waterfall,
        rates=rates,
        rates_note=rates_note,
        map_wide=draw_map(pipeline),
        map_tall=draw_map(pipeline, tall=True),
        map_note=_map_note(timeline),
        routes=list_routes(run, timeline),
        findings=[show_finding(finding) for finding in diagnosis.findings],
        named=text.share(named_cost_share),
        findings_note=count_verdicts(diagnosis.findings),
        changes=list_changes(examined.forecast, diagnosis),
        threads=threads,
        closing=tabulate(diagnosis.closing_sums),
        time=time,
        views=list_views(timeline, diagnosis),
        absent=[(p.title, text.missing(p.reason)) for p in panels if not any(len(s.t_s) for s in p.series)],
        memory=compare_memory(run, timeline),
        no_plan=text.missing(no_plan),
        command=show_command(run),
        facts=list_facts(run),
        settings=list_settings(run),
        charts=[waterfall, rates, threads, time],
    )


def _badges(run: Run) -> list[Badge]:
    status = run.status.status
    badges = [Badge(status, {"finished": "good", "failed": "bad"}.get(status, ""))]
    return badges + emulated_badge(run.emulated)


def _card(diagnosis: Diagnosis) -> VerdictCard:
    primary = diagnosis.primary
    remedy = primary.remedy if primary is not None else None
    command = say_settings(remedy.knobs) if remedy is not None else ""
    return VerdictCard(
        verdict=diagnosis.headline,
        why=(diagnosis.why,),
        numbers=diagnosis.numbers,
        next=(remedy.text if remedy is not None and command else diagnosis.next_step,),  # not said twice
        command=command,
        bad=primary is not None and primary.is_sickness,
    )


def _tiles(diagnosis: Diagnosis) -> list[Tile]:
    measured, capacities = diagnosis.throughput, diagnosis.capacities
    windows = text.count_of(measured.windows_used, "window")
    interval = f"{text.interval} {text.rate_range(measured.low, measured.high)}, {windows}"
    limit, limit_note = _limit(capacities)
    return [
        Tile(
            "tokens per second",
            text.rate(measured.tokens_per_s, measured.reason),
            interval if text.is_known(measured.low) else windows,
        ),
        Tile(
            "pipeline efficiency",
            text.share(capacities.pipeline_efficiency, capacities.reason),
            "of what targets and drafters alone allow",
        ),
        Tile("limited by", limit, limit_note),
        Tile("documents per second", _plain_rate(measured.samples_per_s, measured.reason), ""),
        Tile("padding", *_padding(measured)),
        Tile("measured for", *_measured_for(measured)),
    ]


def _plain_rate(value: float | None, reason: str | None) -> str:
    return text.missing(reason) if value is None else text.significant(value)


def _limit(capacities: Capacities) -> tuple[str, str]:
    alone = {
        "prefetch": capacities.prefetch_alone,
        "target": capacities.targets_alone,
        "drafter": capacities.drafters_alone,
    }
    if capacities.limit is None:
        return text.missing(capacities.reason), ""
    rate = alone.get(capacities.limit)
    note = "" if rate is None else f"{text.rate(rate)} alone"
    return stage_words.get(capacities.limit, capacities.limit), note


def _padding(measured: Throughput) -> tuple[str, str]:
    tokens, processed = measured.tokens_per_s, measured.processed_tokens_per_s
    if tokens is None or not processed:
        return text.missing(measured.reason or "the windows do not say"), ""
    return text.share(max(0.0, 1 - tokens / processed)), f"{text.rate(processed)} processed"


def _measured_for(measured: Throughput) -> tuple[str, str]:
    if measured.range_s is None:
        return text.missing(measured.reason), ""
    start, end = measured.range_s
    cut = f"{text.duration(measured.warmup_s)} of warm-up left out" if measured.warmup_s else "no warm-up cut"
    return text.duration(end - start), cut


def _draw_capacities(diagnosis: Diagnosis) -> tuple[Chart, str]:
    measured, capacities = diagnosis.throughput, diagnosis.capacities
    bars = [
        RateBar(
            name="measured",
            tokens_per_s=measured.tokens_per_s,
            low=measured.low,
            high=measured.high,
            colour=style.accent,
            reason=measured.reason,
        ),
        RateBar(name="targets alone", tokens_per_s=capacities.targets_alone, reason=capacities.reason),
        RateBar(name="drafters alone", tokens_per_s=capacities.drafters_alone, reason=capacities.reason),
    ]
    prefetch = RateBar(
        name="prefetch alone", tokens_per_s=capacities.prefetch_alone, reason=capacities.reason
    )
    reach = max((bar.tokens_per_s or 0.0 for bar in bars), default=0.0)
    note = "Stages alone: the same batches at the measured pace of their work, without waits and copies."
    if prefetch.tokens_per_s is not None and prefetch.tokens_per_s > _off_scale * reach:
        note += f" Prefetch alone: {text.rate(prefetch.tokens_per_s)}, off the scale."
    else:
        bars.insert(1, prefetch)
    unknown = [f"{bar.name}: {text.missing(bar.reason)}" for bar in bars if bar.tokens_per_s is None]
    return draw_rates(bars), " ".join([note, *unknown])


def _map_note(timeline: Timeline) -> str:
    if not len(timeline.devices):
        return text.missing("the run holds no spans of stage threads")
    start, end = timeline.range_s
    clocks = "GPU time" if (timeline.service["clock"] == "gpu").any() else "host time"
    return (
        f"From {text.duration(start)} to {text.duration(end)} after the start, {clocks}. "
        "A stage's bar is its whole time; a queue shows its mean depth."
    )
