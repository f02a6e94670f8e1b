"""The parts of the live view as coloured text of a given width: pipeline, GPUs, threads, memory, events.

One drawing serves the screen and the plain snapshot: every kind of time has its own character, so nothing
hangs on colour. Text from a run is escaped here and never read as markup. Knows nothing of screens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from cli.layout import plain
from cli.live_style import bar, cell, gauge, join_lines, sparkline, styles
from dflash.contract.rundir import printable
from reports import text

if TYPE_CHECKING:
    from profiler.live.view import GpuRow, LiveView, Number, QueueRow, StageRow, ThreadRow

threads_shown = 8
least_share = 0.005  # a loss below it is no news
moods = {
    "sick": ("▲", "bad"),
    "healthy": ("●", "good"),
    "unknown": ("○", "muted"),
    "stalled": ("■", "bad"),
    "failed": ("✖", "bad"),
}
_unit = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?B|[mµ]?s|[KM]?tok)(?:\W|$))")  # stays with its number
_direction = re.compile(
    "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)  # would turn the rest of a line round
Panel = Callable[["LiveView", int], Text]


def safe(words: str) -> str:
    """A run's own words on one line: no control characters, no change of direction, no glued spaces."""
    return " ".join(_direction.sub("\N{REPLACEMENT CHARACTER}", printable(plain(words))).split())


def fold(words: str, width: int, later: str = "") -> list[str]:
    """A run's own words in lines of at most `width`; numbers stay with their units."""
    lines = wrap(_unit.sub(text.nbsp, safe(words)), width, subsequent_indent=later)
    return [plain(line) for line in lines]


def percent(value: float | None) -> str:
    """A share in four cells or so: `93 %`, `n/a`."""
    return "n/a" if value is None else f"{100 * value:.0f} %"


def draw_head(view: LiveView, width: int) -> Text:
    """Which run, and how it is."""
    run = view.run
    tone = {"running": "good", "finished": "good", "failed": "bad"}.get(run.status, "wait")
    facts = [
        Text("dflash live", styles["accent"]),
        Text(safe(run.path), "bold"),
        Text(f"{safe(run.status)} {plain(text.duration(run.elapsed_s))}", styles[tone]),
    ]
    if run.status == "unknown" and run.reason:
        facts += [Text(line, styles["muted"]) for line in fold(run.reason, width)]
    if run.emulated:
        facts.append(Text("emulated", styles["wait"]))
    if not run.recorded:
        facts.append(Text("not recorded: only what the trainer itself tells", styles["muted"]))
    return join_lines(_flow(facts, width))


def draw_verdict(view: LiveView, width: int) -> Text:
    """What limits it, why, what next."""
    verdict = view.verdict
    sign, tone = moods[verdict.mood]
    lines = [
        Text(("  " if i else f"{sign} ") + line, f"bold {styles[tone]}")
        for i, line in enumerate(fold(verdict.headline, width - 2))
    ]
    for label, words in (("why", verdict.why), ("next", verdict.next_step)):
        for i, line in enumerate(fold(words, width - 6)):
            lines.append(Text.assemble(("      " if i else label.ljust(6), styles["muted"]), line))
    if verdict.range_s is not None:
        lo, hi = verdict.range_s
        lines.append(Text(f"      judged over {plain(text.duration(hi - lo))}", styles["muted"]))
    return join_lines(lines)


def draw_pace(view: LiveView, width: int) -> Text:
    """Tokens per second now, and how they went."""
    pace = view.pace
    rate = Text(
        plain(text.rate(pace.tokens_per_s.value, pace.tokens_per_s.reason)), f"bold {styles['accent']}"
    )
    interval = (
        pace.interval_reason if pace.low is None else f"90 % interval {text.rate_range(pace.low, pace.high)}"
    )
    facts = [rate, Text(plain(interval or ""), styles["muted"])]
    if pace.step is not None:
        of = f" of {pace.steps_planned}" if pace.steps_planned else ""
        facts.append(Text(f"step {pace.step}{of}"))
    facts += [Text(f"{name} {value:.3f}") for name, value in _losses(view) if value is not None]
    if pace.window_s is not None and pace.last_window_s is not None:
        usual, last = (plain(text.duration(s)) for s in (pace.window_s, pace.last_window_s))
        ago = "" if view.run.over else f", last {last} ago"
        facts.append(Text(f"window {usual}{ago}", styles["muted"]))
    lines = _flow(facts, width)
    rates = [value for _, value in pace.series]
    if len(rates) > 1:
        ends = f" {plain(text.rate_range(min(rates), max(rates)))}"
        room = width - len(ends)
        line = Text().append(sparkline(rates, room), styles["accent"])
        lines.append(line.append(ends, styles["muted"]))
    return join_lines(lines)


def _losses(view: LiveView) -> list[tuple[str, float | None]]:
    return [("loss", view.pace.loss), ("accuracy", view.pace.accuracy)]


def draw_pipeline(view: LiveView, width: int) -> Text:
    """Stages and queues in the order of the data: time by kind, and how full."""
    if not view.stages and not view.queues:
        return Text("n/a: no stage or queue has told anything yet", styles["muted"])
    lines: list[Text] = []
    for stage, family in (("prefetch", "q_pre"), ("target", "q_hs"), ("drafter", None)):
        lines += [_stage_line(row, view, width) for row in view.stages if row.stage == stage]
        lines += [_queue_line(row, width) for row in view.queues if row.name.partition(".")[0] == family]
    known = {"q_pre", "q_hs"}
    lines += [_queue_line(row, width) for row in view.queues if row.name.partition(".")[0] not in known]
    return join_lines([*lines, _legend(view, width)])


def _widths(width: int) -> tuple[int, int, int]:
    """Cells for a row's name, its device and its bar."""
    device = 11 if width >= 72 else 0
    return 12, device, min(max(width - 12 - device - 43, 8), 40)


def _stage_line(row: StageRow, view: LiveView, width: int) -> Text:
    name_width, device_width, bar_width = _widths(width)
    parts = [
        ("work", row.work),
        ("copy", row.copy),
        ("wait", sum(wait.share for wait in row.waits)),
        ("open", row.open),
    ]
    losses = [(wait.share, f"waits: {wait.on}", "wait") for wait in row.waits] + [(row.copy, "copy", "copy")]
    words = [Text(f"work {percent(row.work)}")]
    for share, name, tone in sorted(losses, reverse=True):
        if share >= least_share:
            words.append(Text(f"{name} {percent(share)}", styles[tone]))
    if view.run.over:
        pass
    elif row.ended:
        words.append(Text("ended", styles["muted"]))
    elif row.open >= 0.15:
        words.append(Text(f"at it for {row.quiet_s:.0f} s", styles["muted"]))
    limits = view.limit == row.stage
    label = row.stage if row.stage == "prefetch" else f"{row.stage} {row.index}"
    start = (
        Text()
        .append("▶" if limits else " ", styles["accent"])
        .append_text(cell(label, name_width - 1, "bold"))
    )
    if device_width:
        start.append_text(cell(safe(row.device), device_width, styles["muted"]))
    start.append_text(bar(parts, bar_width)).append("  ")
    return start.append_text(_fit(words, width - name_width - device_width - bar_width - 2))


def _queue_line(row: QueueRow, width: int) -> Text:
    name_width, device_width, bar_width = _widths(width)
    capacity = row.capacity.value
    size = "?" if capacity is None else f"{capacity:.0f}"
    line = cell(f"   {safe(row.name)}", name_width + device_width, styles["muted"])
    line.append_text(gauge(row.depth, capacity, bar_width)).append("  ")
    words = [Text(f"{row.depth}/{size}", "bold"), Text(f"mean {row.mean:.1f}", styles["muted"])]
    if row.full_share is not None and row.full_share >= 0.05:
        words.append(Text(f"full {percent(row.full_share)}", styles["muted"]))
    if row.empty_share >= 0.05:
        words.append(Text(f"empty {percent(row.empty_share)}", styles["muted"]))
    return line.append_text(_fit(words, width - name_width - device_width - bar_width - 2))


def _legend(view: LiveView, width: int) -> Text:
    entries = [("work", "work"), ("copy", "copy"), ("wait", "wait"), ("open", "open")]
    line = Text()
    if view.limit:
        line.append("▶", styles["accent"]).append(" limits   ", styles["muted"])
    for role, words in entries:
        line.append_text(bar([(role, 1.0)], 2)).append(f" {words}   ", styles["muted"])
    line.truncate(width)
    return line


def draw_gpus(view: LiveView, width: int) -> Text:
    """A row per GPU with its role; what is missing says why below."""
    lines: list[Text] = []
    known = [row for row in view.gpus if row.uuid is not None]
    if known:
        columns = _gpu_columns(width)
        name_width = min(max(len(safe(row.name)) for row in view.gpus) + 1, 14, width // 4)
        role_width = max(width - name_width - sum(size for _, size, _ in columns), 8)
        head = cell("gpu", name_width).append_text(cell("role", role_width))
        for title, size, _ in columns:
            head.append_text(cell(title, size, right=True))
        head.stylize(styles["muted"])
        lines.append(head)
        for row in known:
            tone = styles["muted"] if row.role == "not used" else ""
            line = cell(safe(row.name), name_width, "bold").append_text(
                cell(safe(row.role), role_width, tone)
            )
            for _, size, show in columns:
                line.append_text(cell(show(row), size, tone, right=True))
            lines.append(line)
        lines += _reasons(width, _gpu_reasons(known))
    others = [row for row in view.gpus if row.uuid is None]
    if others:
        told = ", ".join(f"{row.name} {row.role}" for row in others)
        lines += [Text(line) for line in fold(told, width)]
    if view.gpus_reason is not None:
        lines += _reasons(width, [("GPUs", view.gpus_reason)])
    return join_lines(lines or [Text("none", styles["muted"])])


def _gpu_columns(width: int) -> list[tuple[str, int, Callable[[GpuRow], str]]]:
    columns: list[tuple[str, int, Callable[[GpuRow], str]]] = [
        ("util", 6, lambda row: percent(row.util.value)),
        ("sm act", 8, lambda row: percent(row.sm_active.value)),
        ("power", 11, lambda row: _of(row.power_w, row.power_limit_w, 1.0, "W")),
        ("memory", 12, lambda row: _of(row.memory_bytes, row.memory_total_bytes, 1e-9, "GB")),
    ]
    columns.append(("temp", 7, _temperature))
    while len(columns) > 1 and sum(size for _, size, _ in columns) > width - 18:
        columns.pop()
    return columns


def _temperature(row: GpuRow) -> str:
    return "n/a" if row.temperature_c.value is None else f"{row.temperature_c.value:.0f} °C"


def _gpu_reasons(rows: Sequence[GpuRow]) -> list[tuple[str, str]]:
    named = [
        ("util", "util"),
        ("sm act", "sm_active"),
        ("power", "power_w"),
        ("power limit", "power_limit_w"),
        ("memory", "memory_bytes"),
    ]
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for words, name in named:
            reason = getattr(row, name).reason
            if reason is not None:
                found[words, reason] = None
    return list(found)


def _of(part: Number, whole: Number, scale: float, unit: str) -> str:
    """`512/700 W`, `81 GB` where the whole is unknown, `n/a`."""
    if part.value is None:
        return "n/a"
    limit = "" if whole.value is None else f"/{whole.value * scale:.0f}"
    return f"{part.value * scale:.0f}{limit} {unit}"


def draw_threads(view: LiveView, width: int) -> Text:
    """Threads by their wait for the GIL, then by CPU time."""
    if not view.threads:
        return join_lines(_reasons(width, [("threads", view.threads_reason or "none were seen")]))
    columns: list[tuple[str, int, Callable[[ThreadRow], Number]]] = [
        ("gil wait", 9, lambda row: row.gil_wait),
        ("gil held", 9, lambda row: row.gil_hold),
        ("cpu", 6, lambda row: row.cpu),
        ("cpu wait", 9, lambda row: row.cpu_wait),
    ]
    if all((row.gil_hold.reason or "").startswith("switched off") for row in view.threads):
        del columns[1]  # it is by default: no column of n/a
    while len(columns) > 1 and sum(size for _, size, _ in columns) > width - 12:
        columns.pop()
    name_width = width - sum(size for _, size, _ in columns)
    head = cell("thread", name_width)
    for title, size, _ in columns:
        head.append_text(cell(title, size, right=True))
    head.stylize(styles["muted"])
    lines = [head]
    for row in view.threads[:threads_shown]:
        line = cell(safe(row.name), name_width)
        for _, size, pick in columns:
            line.append_text(cell(percent(pick(row).value), size, right=True))
        lines.append(line)
    if len(view.threads) > threads_shown:
        lines.append(Text(f"and {len(view.threads) - threads_shown} more", styles["muted"]))
    missing = [
        (title, reason)
        for title, _, pick in columns
        if all(pick(row).value is None for row in view.threads)
        for reason in [pick(view.threads[0]).reason or "not seen"]
    ]
    return join_lines([*lines, *_reasons(width, missing)])


def draw_memory(view: LiveView, width: int) -> Text:
    """Resident memory against its limit."""
    memory, resident = view.memory, view.memory.resident_bytes
    if resident is None:
        return join_lines(_reasons(width, [("host memory", memory.anon_bytes.reason or "")]))
    limit = memory.limit_bytes.value
    of = f" of {text.data_size(limit)}" if limit else ""
    facts = [Text(plain(text.data_size(resident) + of), "bold")]
    for words, number in (
        ("shared", memory.shared_bytes),
        ("files", memory.file_bytes),
        ("available", memory.available_bytes),
    ):
        if number.value:
            facts.append(Text(plain(f"{words} {text.data_size(number.value)}"), styles["muted"]))
    lines = _flow(facts, width)
    if limit:
        share = min(resident / limit, 1.0)
        tone = "bad" if share > 0.9 else "work"
        lines.append(bar([(tone, share)], max(width - 6, 8)).append(f" {percent(share):>5}"))
    else:
        lines += _reasons(width, [("limit", memory.limit_bytes.reason or "none")])
    return join_lines(lines)


def draw_journal(view: LiveView, width: int) -> Text:
    """What happened last, newest first, and what the figures leave out."""
    lines = []
    for row in reversed(view.journal):
        tone = {"warning": "bad", "window": "muted"}.get(row.kind, "accent")
        at = plain(text.duration(max(row.at_s, 0.0)))
        head = Text.assemble((f"{at:>12}  ", styles["muted"]), (f"{safe(row.kind):<10} ", styles[tone]))
        indent = head.cell_len
        for i, words in enumerate(fold(row.text, max(width - indent, 10)) or [""]):
            lines.append((Text(" " * indent) if i else head).append(words))
    lines += [Text(line, styles["wait"]) for told in view.warnings for line in fold(told, width)]
    return join_lines(lines or [Text("nothing yet", styles["muted"])])


panels: tuple[tuple[str, str, Panel], ...] = (  # id, title, drawing; in reading order
    ("verdict", "verdict", draw_verdict),
    ("pace", "tokens per second", draw_pace),
    ("pipeline", "pipeline", draw_pipeline),
    ("gpus", "GPUs", draw_gpus),
    ("threads", "threads", draw_threads),
    ("memory", "host memory", draw_memory),
    ("journal", "events", draw_journal),
)


def _reasons(width: int, reasons: Iterable[tuple[str, str]]) -> list[Text]:
    """`n/a` lines: what is missing, and why."""
    return [
        Text(line, styles["muted"])
        for what, reason in reasons
        for line in fold(f"{what} n/a: {reason}", width, "  ")
    ]


def _flow(parts: Sequence[Text], width: int) -> list[Text]:
    """Parts side by side, as many as fit on a line."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append("   ").append_text(part)
        else:
            lines.append(Text().append_text(part))
    return lines


def _fit(words: Sequence[Text], width: int) -> Text:
    """As many words as fit, in order."""
    line = Text()
    for word in words:
        if line.cell_len + 2 * bool(line) + word.cell_len <= width:
            line.append("  " if line else "").append_text(word)
    return line
