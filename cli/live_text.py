"""The live view without a screen: one line now and then, or one snapshot. Lines are ASCII, but for names.

Knows nothing of streams or runs: it is given views and returns text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from cli.layout import plain
from cli.live_panels import draw_head, panels, percent, safe
from reports import text

if TYPE_CHECKING:
    from profiler.live.view import LiveView, QueueRow


def live_line(view: LiveView) -> str:
    """One line in the trainer's own style: `q_pre=4/4 q_hs=8/20 step 12 loss 7.931 14.8 Ktok/s …`."""
    pace, memory = view.pace, view.memory
    parts = [_queues(view.queues)] if view.queues else []
    if pace.step is not None:
        parts.append(f"step {pace.step}" + (f"/{pace.steps_planned}" if pace.steps_planned else ""))
    parts += [f"{name} {value:.3f}" for name, value in (("loss", pace.loss),) if value is not None]
    rate = pace.tokens_per_s.value
    parts.append("n/a Ktok/s" if rate is None else f"{rate / 1000:.3g} Ktok/s")
    if pace.low is not None and pace.high is not None:
        parts.append(f"({pace.low / 1000:.3g} to {pace.high / 1000:.3g})")
    used = [row for row in view.gpus if row.uuid is not None and row.role != "not used"]
    if used:
        parts.append("gpu " + " ".join(percent(row.util.value).replace(" ", "") for row in used))
    if memory.resident_bytes is not None:
        limit = memory.limit_bytes.value
        of = "" if not limit else f"/{text.data_size(limit)}"
        parts.append(f"rss {text.data_size(memory.resident_bytes)}{of}")
    parts.append(f"[{view.verdict.cause or view.verdict.mood}]")
    return plain(" ".join(parts))


def _queues(queues: tuple[QueueRow, ...]) -> str:
    """`q_pre=4/4 q_hs=[1 0]/2`: queues of one kind together."""
    kinds: dict[tuple[str, float | None], list[int]] = {}
    for row in queues:
        kinds.setdefault((safe(row.name.partition(".")[0]), row.capacity.value), []).append(row.depth)
    words = []
    for (name, capacity), depths in kinds.items():
        filled = str(depths[0]) if len(depths) == 1 else f"[{' '.join(map(str, depths))}]"
        words.append(f"{name}={filled}/{'?' if capacity is None else f'{capacity:.0f}'}")
    return " ".join(words)


def live_verdict(view: LiveView) -> str:
    """The verdict as a paragraph of its own, for when it changes."""
    verdict = view.verdict
    return " ".join(safe(words) for words in (verdict.headline, verdict.next_step) if words)


def snapshot(view: LiveView, width: int) -> str:
    """All panels one below the other, as text."""
    blocks = [draw_head(view, width)]
    blocks += [Text(f"{title.upper()}\n").append_text(draw(view, width)) for _, title, draw in panels]
    return "\n\n".join("\n".join(line.rstrip() for line in block.plain.split("\n")) for block in blocks)
