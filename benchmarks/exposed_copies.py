"""How long stages stood still because bytes were on their way, from the events of a run.

Knows nothing of what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dflash.contract.arrowlog import Row
from dflash.contract.events import event_schema
from profiler.intervals import length, merged

_columns = {name: place for place, name in enumerate(event_schema.names)}


def exposed_copy_ns(rows: Sequence[Row], first_ns: int, last_ns: int) -> float:
    """Nanoseconds of exposed copies of all stages between two times.

    Copies that a stage makes itself count whole. Of its waits for a copy (`copy_wait`) only the part counts
    in which a copy from or to its device ran: the rest is waiting for whoever makes the data.
    """
    spans = [row for row in rows if _of(row, "kind") == "span"]
    copies = [row for row in spans if _of(row, "name") == "copy"]
    own = [_ends(row) for row in copies if _of(row, "stage") != "link"]
    total_ns = sum(length(np.clip([ends], first_ns, last_ns)) for ends in own)
    on_the_way = [row for row in copies if _of(row, "stage") == "link"]
    for wait in (row for row in spans if _of(row, "name") == "copy_wait"):
        device, (start_ns, end_ns) = _of(wait, "device"), _ends(wait)
        beside = merged([_ends(row) for row in on_the_way if device in (_of(row, "src"), _of(row, "dst"))])
        total_ns += length(np.clip(beside, max(start_ns, first_ns), max(first_ns, min(end_ns, last_ns))))
    return total_ns


def _of(row: Row, column: str) -> Any:
    return row[_columns[column]]


def _ends(row: Row) -> tuple[float, float]:
    start_ns = float(_of(row, "t_ns"))
    return start_ns, start_ns + float(_of(row, "dur_ns"))
