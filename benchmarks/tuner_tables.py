"""The table of a tuning contest. Knows nothing of files or of how cells are written."""

from __future__ import annotations

from typing import Any

from benchmarks.table_cells import percent

Document = dict[str, Any]


def tuner_contest(document: Document) -> tuple[list[str], list[list[Any]]]:
    """A row for each set and tuner."""
    shown = [5, 10, 20, 40, 60]
    head = ["set", "tuner", "problems", "trials until within 2 %", "90th percentile", "within 2 % at the end"]
    head += [*(f"regret at {at}" for at in shown), "failed trials", "stops at", "within 2 % there"]
    head += ["two-run forecast off by", "memory missed", "memory wrongly refused"]
    rows = []
    for entry in document["scores"]:
        more = f">{document['trials']}"
        rows.append(
            [
                entry["set"],
                entry["tuner"],
                entry["problems"],
                entry["trials_median"] or more,
                entry["trials_p90"] or more,
                percent(entry["good_at_end"], 0),
                *(percent(entry["regret"].get(str(at))) for at in shown),
                percent(entry["failed_share"]),
                entry.get("stopped_median"),
                percent(entry.get("stopped_covered"), 0),
                *(percent(entry.get(key)) for key in ("two_run_error", "missed_memory", "pruned_memory")),
            ]
        )
    return head, rows
