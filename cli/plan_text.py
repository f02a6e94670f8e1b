"""A search before it runs, in words.

Knows nothing of streams: returns text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.layout import facts, plain, table
from reports import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.plan import Outline


def describe_outline(outline: Outline) -> str:
    """The space, what is ruled out, the order and the cost."""
    parts = [
        facts(_facts(outline)),
        "",
        table(("knob", "start", "choices"), _dimensions(outline)),
        *_ruled_out(outline),
        "",
        "order:",
        *(f"  {number}. {step.what}" for number, step in enumerate(outline.steps, 1)),
    ]
    return plain("\n".join(parts))


def _facts(outline: Outline) -> list[tuple[str, str]]:
    space, machine = outline.space, outline.machine
    rows = [("machine", _machine(outline))]
    if not outline.emulated and machine.peers is not None and len(machine.islands) > 1:
        rows.append(("links", f"{len(machine.islands)} islands of peer access: {_islands(machine.islands)}"))
    rows += [
        ("space", f"{space.size} of {space.points} combinations can run"),
        ("memory", _memory(outline)),
        ("cost", _cost(outline)),
    ]
    if space.changes_training:
        names = ", ".join(space.changes_training)
        rows.append(("training", f"{names} change what is trained: losses of such trials are not compared"))
    if outline.held:
        rows.append(("held", "searched only when named: " + ", ".join(outline.held)))
    return rows


def _machine(outline: Outline) -> str:
    machine = outline.machine
    if outline.emulated:
        reason = f" ({machine.gpu_reason})" if machine.gpu_reason else ""
        return f"logical devices on {text.count_of(machine.cpus, 'CPU')}{reason}"
    size = outline.memory.gpu_bytes
    each = "of unknown memory" if size is None else f"of {size / 1e9:.0f} GB"
    told = ", as declared: nothing is known of its links" if outline.declared else ""
    return f"{len(machine.gpus)} × {machine.gpus[0].name} {each}{told}"


def _islands(islands: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join("+".join(map(str, island)) for island in islands)


def _memory(outline: Outline) -> str:
    memory = outline.memory
    if memory.reason is not None:
        return f"not known beforehand, so nothing is ruled out by it: {memory.reason}"
    needs = max(memory.start_needs.items(), key=lambda item: (item[0] != "host", item[1]))
    lines = [f"the start needs {needs[1] / 1e9:.1f} GB on {needs[0]} with the longest documents"]
    if memory.unlikely is not None:
        lines.append(
            f"{memory.unlikely.count} more run out of memory if all documents are that long "
            f"(for example {_values(memory.unlikely.example)}: {memory.unlikely.reason})"
        )
    return "\n".join(lines)


def _cost(outline: Outline) -> str:
    cost = outline.cost
    gpu = f", {cost.gpu_hours:.2g} GPU-hours" if cost.gpus else ""
    limit = f"at most {text.duration(round(60 * cost.minutes))}{gpu}, limited by {cost.limited_by}"
    runs = f"{cost.trials} configurations and {cost.repeats} further runs of {cost.training_s:g} s"
    return f"{limit}\n{runs}, each with {cost.start_s:g} s around it ({cost.start_from})"


def _dimensions(outline: Outline) -> list[tuple[str, str, str]]:
    start = outline.space.baseline
    return [
        (dimension.path, str(start[dimension.path]), ", ".join(map(str, dimension.choices)))
        for dimension in outline.space.dimensions
    ]


def _ruled_out(outline: Outline) -> list[str]:
    rows = [(str(out.count), out.kind, out.reason) for out in outline.space.ruled_out]
    return ["", table(("ruled out", "because", "for example"), rows)] if rows else []


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{path} = {value}" for path, value in values.items())
