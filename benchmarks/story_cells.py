"""The table of the field stories on real cards. Knows nothing of files or of how cells are written."""

from __future__ import annotations

from typing import Any

from benchmarks.table_cells import percent

Document = dict[str, Any]


def story_table(document: Document) -> tuple[list[str], list[list[Any]]]:
    """A row for each run, with what was forecast of it before."""
    head = ["run", "tokens/s", "90 % interval", "forecast", "off by", "efficiency", "host peak GB"]
    head += ["exposed copies", "most GIL wait", "power W", "tokens/J"]
    rows = []
    for row in document["rows"]:
        waits = row.get("gil_waits") or {}
        most = max(waits, key=lambda name: waits[name], default=None)
        interval = [row.get("measured_low"), row.get("measured_high")]
        rows.append(
            [
                row["name"],
                row["measured"],
                None if None in interval else interval,
                row.get("predicted"),
                percent(row.get("error")),
                row.get("efficiency"),
                row.get("host_peak_gb"),
                percent(row.get("exposed_copy_share")),
                None if most is None else f"{most}: {percent(waits[most])}",
                row.get("power_w"),
                row.get("tokens_per_joule"),
            ]
        )
    return head, rows
