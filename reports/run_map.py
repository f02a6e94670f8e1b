"""The pipeline map of a run: who worked, who waited for whom, how full the queues were, how the bytes went.

Reads a Timeline; knows nothing of how a map is drawn.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from profiler.capacity import Capacities
from profiler.timeline import Timeline
from profiler.waits import awaited, family_of, stages
from reports import text
from reports.pipeline_map import Card, Line, NoteCard, PipelineMap, QueueCard, StageCard

roles: Final = {
    "work": "work",
    "gpu_wait": "work",
    "copy": "copy",
    "gil_wait": "wait",
    "wait": "wait",
    "unaccounted": "rest",
}
_shown_waits: Final = 3
_least_share: Final = 0.005  # a wait below it is no news


def map_run(timeline: Timeline, capacities: Capacities) -> PipelineMap:
    """The map over the timeline's range. Stages and queues that left no events are left out."""
    known = {name: _stage_cards(timeline, name, capacities.limit) for name in stages}
    return PipelineMap(
        columns=(
            *_other_columns(timeline),
            known["prefetch"],
            _queue_cards(timeline, "q_pre"),
            known["target"],
            _transport_card(timeline),
            _queue_cards(timeline, "q_hs"),
            known["drafter"],
            _optimizer_card(timeline),
        )
    )


def _other_columns(timeline: Timeline) -> list[tuple[Card, ...]]:
    """Stages of other names, each with the queues it fills, in the order in which the data pass them."""
    waits = timeline.threads[timeline.threads["kind"] == "wait"]
    fills, takes = (
        waits[waits["name"] == name].groupby("stage", observed=True)["channel"].unique().to_dict()
        for name in ("put", "get")
    )
    waiting = [name for name in dict.fromkeys(map(str, timeline.threads["stage"])) if name not in stages]
    unseen = {family_of(str(name)) for name in timeline.depths["channel"]} - {"q_pre", "q_hs"}
    columns: list[tuple[Card, ...]] = []
    while waiting:
        fed = {
            name
            for name in waiting
            for other in waiting
            if set(fills.get(other, ())) & set(takes.get(name, ()))
        }
        stage = next((name for name in waiting if name not in fed), waiting[0])  # a ring begins anywhere
        waiting.remove(stage)
        columns.append(_stage_cards(timeline, stage, None))
        for channel in sorted(unseen & set(fills.get(stage, ()))):
            unseen.discard(channel)
            columns.append(_queue_cards(timeline, channel))
    return [*(_queue_cards(timeline, channel) for channel in sorted(unseen)), *columns]


def _stage_cards(timeline: Timeline, stage: str, limit: str | None) -> tuple[Card, ...]:
    mine = timeline.devices[timeline.devices["stage"] == stage]
    groups = mine.groupby(["index", "device", "tid"], sort=True)
    alone = stage == "prefetch" and len(groups) == 1
    return tuple(
        _stage_card(stage if alone else f"{stage} {index}", stage, str(device), parts, limits=stage == limit)
        for (index, device, _), parts in groups
    )


def _stage_card(title: str, stage: str, device: str, parts: pd.DataFrame, *, limits: bool) -> StageCard:
    by_kind = parts.groupby("kind")[["share", "seconds"]].sum()
    shares: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for kind, share, spent in by_kind.itertuples():
        shares[roles[kind]] = shares.get(roles[kind], 0.0) + share
        seconds[roles[kind]] = seconds.get(roles[kind], 0.0) + spent
    lines = [("busy", _amount(shares.get("work", 0.0), seconds.get("work", 0.0)))]
    if shares.get("copy"):
        lines.append(("copies", _amount(shares["copy"], seconds["copy"])))
    return StageCard(
        title=title, device=device, shares=shares, lines=(*lines, *_wait_lines(stage, parts)), limits=limits
    )


def _wait_lines(stage: str, parts: pd.DataFrame) -> list[Line]:
    waits = parts[parts["kind"].isin(["wait", "gil_wait"])].groupby("name")[["share", "seconds"]].sum()
    waits = waits[waits["share"] >= _least_share]
    waits = waits.sort_values("share", ascending=False).head(_shown_waits)
    return [
        (f"waits: {awaited(stage, str(name))}", _amount(share, seconds))
        for name, share, seconds in waits.itertuples()
    ]


def _amount(share: float, seconds: float) -> str:
    return f"{text.share(share)} · {text.short_duration(seconds)}"


def _queue_cards(timeline: Timeline, family: str) -> tuple[Card, ...]:
    depths = timeline.depths
    mine = depths[[str(name).partition(".")[0] == family for name in depths["channel"]]]
    rows = sorted(mine.to_dict("records"), key=lambda row: _natural(str(row["channel"])))
    return tuple(
        QueueCard(
            title=str(row["channel"]),
            capacity=int(row["capacity"]) if text.is_known(row["capacity"]) else None,
            mean_depth=row["mean"],
            full_share=row["full_share"],
            empty_share=row["empty_share"],
        )
        for row in rows
    )


def _natural(channel: str) -> tuple[int, str]:
    number = channel.rpartition(".")[2]
    return (int(number) if number.isdecimal() else -1, channel)


def _transport_card(timeline: Timeline) -> tuple[Card, ...]:
    lines: list[Line] = []
    if timeline.config is not None:
        choice = timeline.config.transport_choice
        lines += [("queue", choice.queue), ("dispatch", choice.dispatch), ("depth", f"{choice.depth}")]
    for path, copies in timeline.copies.groupby("path", sort=True):
        lines += _copy_lines(str(path), copies)
    if not len(timeline.copies):
        lines.append(("copies", "none recorded"))
    away = _away_share(timeline.takes)
    if away is not None:
        lines.append(("taken away", text.share(away)))
    return (NoteCard(title="transport", lines=tuple(lines), dashed=True),)


def _copy_lines(path: str, copies: pd.DataFrame) -> list[Line]:
    moved_bytes = float(copies["bytes"].sum(skipna=False))
    seconds = float(copies["seconds"].sum())
    known = text.is_known(moved_bytes) and seconds > 0
    lines = [
        (path, text.data_size(moved_bytes)),
        ("  at", f"{text.data_size(moved_bytes / seconds)}/s" if known else text.missing()),
    ]
    for stage, own in copies[copies["stage"] != "link"].groupby("stage", sort=True):
        lines.append((f"  on {stage}s", text.short_duration(float(own["seconds"].sum()))))
    return lines


def _away_share(takes: pd.DataFrame) -> float | None:
    known = takes[takes["where"].isin(["home", "away"])]
    total = int(known["takes"].sum())
    return int(known.loc[known["where"] == "away", "takes"].sum()) / total if total else None


def _optimizer_card(timeline: Timeline) -> tuple[Card, ...]:
    threads = timeline.threads
    lines: list[Line] = [("windows", f"{timeline.steady.windows_used:,}")]
    for name, words in (("sum", "sum"), ("optimizer", "step")):
        mine: Any = threads[threads["name"] == name]
        if len(mine):
            # Each on one leader's thread, so its share of that thread is its share of the time.
            lines.append((words, _amount(float(mine["share"].sum()), float(mine["seconds"].sum()))))
    return (NoteCard(title="optimizer", lines=tuple(lines)),)
